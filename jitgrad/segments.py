"""Segments: what a call that runs in segments has computed before, as a tree of steps.

Owns `Step` (one more operation after those before it; a call that does what an earlier one did
walks the same steps, and makes no graph), `Program` (the steps up to one end of a segment and what
is wanted of them, run by references at first and compiled when met again), and `Segments`, which
holds both for one function. Walking is lazy_recorder.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad import gpu
from jitgrad.compiler.interpret import with_line
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.options import Options
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import CompileError
from jitgrad.segment_forms import Forms, to_graph
from jitgrad.storage import Storage

MAX_STEPS = 100_000
"""Steps that are kept for one function; past this all of them are forgotten."""

Key = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""What is wanted at the end of a segment: the numbers of values that become memory of their own,
and (value, new value) for inputs that are written."""


def _as_array(x: Any) -> np.ndarray[Any, Any]:
    """x, or the array of a NumPy scalar. An array on a GPU stays what it is."""
    return x if isinstance(x, np.ndarray) else np.asarray(x)


class Step:
    """One operation of a segment, after those of its parent and of the parents of that.

    Values are numbered in order: the first is 0, and `first` is that of this step's first result.

    Attributes:
        kind: "root", "op", "input" (a tensor with data), or "number" (a Python number).
        op, attrs, kernel, inputs: of an op, as dispatch's plans have them; inputs are numbers of
            values.
        types: of the results.
        strides: of an input that is not dense, in elements.
        data: of a number, its 0-d array.
        line: the user's, when the step was made.
        next: what has followed, by key. ends: programs that end here, by what they give.
        numbers: Python numbers that have followed, by dtype: (bytes, step); lifted: the inputs that
            they became when another number followed.
    """

    __slots__ = (
        "attrs", "data", "ends", "first", "inputs", "kernel", "kind", "lifted", "line", "next",
        "numbers", "op", "parent", "strides", "types",
    )  # fmt: skip

    def __init__(self, parent: Step | None, kind: str, first: int, types: Sequence[Any]) -> None:
        self.parent = parent
        self.kind = kind
        self.first = first
        self.types = tuple(types)
        self.op: Any = None
        self.attrs: dict[str, Any] = {}
        self.kernel: Any = None
        self.inputs: tuple[int, ...] = ()
        self.strides: tuple[int, ...] | None = None
        self.data: Any = None
        self.line = ""
        self.next: dict[Any, Step] = {}
        self.ends: dict[Key, Program] = {}
        self.numbers: dict[Any, tuple[bytes, Step]] = {}
        self.lifted: dict[Any, Step] = {}

    def path(self) -> list[Step]:
        """The steps from the first to this one."""
        found = []
        step: Step | None = self
        while step is not None and step.kind != "root":
            found.append(step)
            step = step.parent
        found.reverse()
        return found


class Segments:
    """What one function has run in segments.

    Attributes:
        root: where each segment begins.
        programs: those that were made, in order.
        ran: how many native segments have run. compiled: how many programs were compiled.
        written: storages that the function has written: parts of them are views of the whole.
        compile: makes of a graph and options what runs on arrays (a Compiled, and its run).
        refuse: told of what the compiler cannot do: (reason, line).
        symbolic: whether programs that differ in sizes share code; forms: those that do.
    """

    def __init__(
        self,
        name: str,
        compile: Callable[[Graph, Options], tuple[Any, Callable[[Any], Any]]],
        refuse: Callable[[CompileError], None],
        symbolic: bool = True,
    ) -> None:
        self.name, self.symbolic = name, symbolic
        self.compile, self.refuse = compile, refuse
        self.lock = threading.RLock()
        self.written: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.ran = self.compiled = 0
        self.forget()

    @property
    def patience(self) -> int:
        """At which of its runs a program is compiled: the second, and later in a function whose
        segments are ever others (shapes that follow values, say)."""
        return 2 + self.compiled // 8

    def forget(self) -> None:
        """Forgets all steps and programs."""
        self.root = Step(None, "root", 0, ())
        self.count = 0
        self.programs: list[Program] = []
        self.forms = Forms(self.name, self.compile)

    def made(self, step: Step) -> None:
        """Counts a step that was made."""
        self.count += 1
        if self.count > MAX_STEPS:  # segments that are under way keep theirs
            self.forget()


class Program:
    """All steps to the end of a segment, and what is wanted of them.

    Attributes:
        wanted: numbers of the values that become memory of their own. writes: (input, value).
        runs: how often it ran; native: how often as machine code.
        written: writes, by the number of the input's value.
        kind: the programs that are like it but for sizes. lifted: of the form whose code it runs.
        compiled: None until its second run. graph: what was compiled.
        why, line: what ended the segment, when it was first met.
    """

    def __init__(self, owner: Segments, end: Step, key: Key, why: str, line: str) -> None:
        self.owner = owner
        self.steps = end.path()
        given = [s.first for s in self.steps if s.kind == "input"]
        place = {n: i for i, n in enumerate(given)}
        self.wanted = key[0]
        self.written = key[1]
        self.writes = tuple([(place[i], n) for i, n in key[1]])
        self.why, self.line = why, line
        self.runs = self.native = 0
        self.compiled: Any = None
        self.graph: Graph | None = None
        self._run: Callable[[Any], Any] | None = None
        self._refused = False
        self.lifted: set[int] = set()
        self.kind = owner.forms.add(self) if owner.symbolic else None

    def run(self, arrays: Sequence[Any], lines: Mapping[int, str]) -> dict[int, Any]:
        """The arrays of the wanted values, by number; and writes what is to be written.

        arrays: for the inputs, in order. lines: the user's lines, by the number of a value, of ops
        that may fail. Raises what eager code would have raised; then nothing is written.
        """
        self.runs += 1
        if self._run is None and not self._refused:
            patient = self.runs < self.owner.patience
            if not patient or (self.runs == 1 and self.kind is not None and self.kind.met):
                self._compile(patient)
        if self._run is None:
            return self._interpret(arrays, lines)
        try:
            results = self._run(arrays)
        except Exception as error:
            raise self._fault(error, arrays, lines)  # noqa: B904 (the cause says nothing more)
        self.native += 1
        self.owner.ran += 1
        return dict(zip(self.wanted, results, strict=True))

    # -- references ----------------------------------------------------------------------------
    def _interpret(self, arrays: Sequence[Any], lines: Mapping[int, str]) -> dict[int, Any]:
        values = self._values(arrays, lines)
        wanted, writes = self.wanted, self.writes
        results: dict[int, Any] = {}
        given = {step.first for step in self.steps if step.kind != "op"}
        for n in wanted:
            array = _as_array(values[n])
            theirs = n in given or any(array is x for k, x in enumerate(values) if k != n)
            if theirs or array.base is not None or not array.flags.c_contiguous:
                array = array.copy(order="C")
            results[n] = values[n] = array
        written = [(arrays[i], values[n]) for i, n in writes]
        new = [v.copy() if len(written) > 1 or v.base is not None else v for _, v in written]
        for (target, _), value in zip(written, new, strict=True):
            if type(target) is type(value) is np.ndarray:
                np.copyto(target, value)
            else:
                kind = TensorType(target.shape, dtypes.from_numpy(target.dtype))
                gpu.kernels.store(target, value, kind)
        return results

    def _values(self, arrays: Sequence[Any], lines: Mapping[int, str]) -> list[Any]:
        values: list[Any] = []
        given = iter(arrays)
        with Quiet():
            for step in self.steps:
                if step.kind == "input":
                    values.append(next(given))
                elif step.kind == "number":
                    values.append(step.data)
                else:
                    operands = [values[n] for n in step.inputs]
                    kernel = step.kernel
                    try:
                        if kernel is None:
                            found = step.op.reference(*operands, **step.attrs)
                        else:
                            found = kernel(*operands)
                    except Exception as error:
                        raise _at(error, lines.get(step.first, step.line))  # noqa: B904 (as above)
                    if step.op.nout == 1:
                        values.append(_as_array(found))
                    else:
                        values.extend(map(_as_array, found))
        return values

    def _fault(
        self, error: Exception, arrays: Sequence[Any], lines: Mapping[int, str]
    ) -> Exception:
        """The error of compiled code as the references, run one by one, raise it: a step's line is
        that of the call that made it, which may be another than this call's."""
        try:
            self._values(arrays, lines)
        except Exception as exact:
            return exact
        return error

    # -- compiled code -------------------------------------------------------------------------
    def _compile(self, patient: bool) -> None:
        """patient: only by a form that it shares with programs that ran before."""
        with self.owner.lock:
            if self._run is not None or self._refused:
                return
            form = None if self.kind is None else self.owner.forms.of(self, self.kind)
            if form is not None:
                self.graph, self.compiled, self.lifted = form.graph, form.compiled, form.lifted
                self._run = form.runner(self)
            if form is not None or patient:
                return
            graph, options = to_graph(self.owner.name, self)
            try:
                compiled, run = self.owner.compile(graph, options)
            except CompileError as error:
                self._refused = True
                self.owner.refuse(error)
                return
            self.graph, self.compiled, self._run = graph, compiled, run
            self.owner.compiled += 1

    def __repr__(self) -> str:
        return f"<Program {self.owner.name}: {len(self.steps)} steps, {self.runs} runs>"


def _at(error: Exception, line: str) -> Exception:
    """The error, its text now naming the user's line."""
    if not line:
        return error
    return with_line(error, _Place(line))  # type: ignore[return-value, arg-type]


class _Place:
    """What with_line asks of a node."""

    def __init__(self, line: str) -> None:
        self.line = line
