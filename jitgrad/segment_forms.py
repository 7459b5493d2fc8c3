"""Forms of segments: programs that differ in sizes share code, in which these are symbolic.

Owns `Form`, one graph with symbolic sizes and what it is a graph of, and `Forms`, those of one
function. Python has run when a program is known, so all sizes are numbers by then: a form is
guessed from two programs (where 32 became 20, and a batch of 32 one of 20, it is the batch), and
all types, attributes and numbers of a further program are compared with what the form says for its
sizes before it runs by it. What a segment is: segments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

from jitgrad.compiler.body import Body
from jitgrad.compiler.fixed_sizes import concrete
from jitgrad.compiler.ir import Graph, Value, Write
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.options import Options
from jitgrad.compiler.symbolic import ShapeEnv, Sym, evaluate, hint
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.errors import CompileError
from jitgrad.values import plain_attrs, plain_type

_MAX_TRIES = 4
"""So many forms are made of programs that are alike but for sizes, before each has its own code."""

Compile = Callable[[Graph, Options], tuple[Any, Callable[..., Any]]]


class Form:
    """Two programs that are alike, as one with symbolic sizes.

    Attributes:
        env: the sizes, and what guards them. types, attrs: of each step, with symbolic sizes.
        lifted: the places of steps that are Python numbers and become inputs.
        graph, options: to be compiled; compiled, run: then.
    """

    def __init__(self, name: str, old: Any, new: Any) -> None:
        """Raises _Differs where the programs are not one with other sizes."""
        self.env = ShapeEnv()
        self._pairs: dict[tuple[int, int], Sym] = {}
        self._places: list[tuple[int, int]] = []  # of each size: an input's step, and its dim
        self.types: list[tuple[TensorType, ...]] = []
        self.attrs: list[dict[str, Any]] = []
        self._values: list[TensorType] = []
        self._before: dict[str, int] = {}
        self.lifted = {
            k
            for k, (a, b) in enumerate(zip(old.steps, new.steps, strict=True))
            if b.kind == "number" and (k in old.lifted or a.data.tobytes() != b.data.tobytes())
        }
        inputs = [k for k, s in enumerate(new.steps) if s.kind == "input"]
        shapes = {k: self._shape_of_input(k, old.steps[k], new.steps[k]) for k in inputs}
        if not self._pairs:
            raise _Differs
        self._numbers = [s.data.tobytes() if s.kind == "number" else b"" for s in new.steps]
        for k, (a, b) in enumerate(zip(old.steps, new.steps, strict=True)):
            type_ = plain_type(b.types[0])
            operands = [self._values[n] for n in b.inputs]
            attrs = self._merged(plain_attrs(a.attrs), plain_attrs(b.attrs), operands)
            if b.kind == "op":
                found = b.op.infer(*operands, **attrs)
                types = found if isinstance(found, tuple) else (found,)
            else:
                types = (type_.with_shape(shapes[k]) if k in shapes else type_,)
            self.types.append(types)
            self.attrs.append(attrs)
            self._values.extend(types)
        self.graph, self.options = to_graph(name, new, self)
        self.compiled: Any = None
        self.run: Callable[..., Any] | None = None

    def _shape_of_input(self, k: int, old: Any, new: Any) -> tuple[Any, ...]:
        shape: list[Any] = []
        for axis, (a, b) in enumerate(zip(old.types[0].shape, new.types[0].shape, strict=True)):
            if a == b:
                shape.append(int(b))
                continue
            if min(a, b) < 2:
                raise _Differs
            pair = (int(a), int(b))
            if pair not in self._pairs:
                name = f"s{len(self._pairs)}"
                self._pairs[pair] = self.env.dim(name, pair[1])
                self._before[name] = pair[0]
                self._places.append((k, axis))
            shape.append(self._pairs[pair])
        return tuple(shape)

    def _guess(self, operands: Sequence[TensorType]) -> Callable[[int, int], Any]:
        """What gives, for a number that was `a` and is `b`, the size that it is."""
        rank = max([len(t.shape) for t in operands], default=0)

        def guess(a: int, b: int) -> Any:
            if -rank <= min(a, b) and max(a, b) < rank:
                raise _Differs  # a dim, not a size
            return self._size(a, b, operands)

        return guess

    def _size(self, a: int, b: int, operands: Sequence[TensorType]) -> Any:
        """The size that was `a` and is `b`."""
        for d in self._candidates(operands):
            if (evaluate(d, self._before), d.hint) == (a, b):
                return d
        for (old, new), size in self._pairs.items():
            if (a - b) % (old - new) == 0:
                times = (a - b) // (old - new)
                return size * times + (b - new * times)
        raise _Differs

    def _candidates(self, operands: Sequence[TensorType]) -> Iterator[Any]:
        yield from self._pairs.values()
        yield from (d for t in operands for d in t.shape if isinstance(d, Sym))
        yield from (a * b for a, b in combinations(self._pairs.values(), 2))

    def _merged(self, old: Any, new: Any, operands: Sequence[TensorType]) -> Any:
        """Attributes of an op with sizes in the place of ints that differ."""
        if isinstance(new, dict):
            return {k: self._merged(old[k], x, operands) for k, x in new.items()}
        if isinstance(new, tuple):
            pairs = zip(old, new, strict=True)
            return tuple([self._merged(a, b, operands) for a, b in pairs])
        if isinstance(new, Body):
            return new if new == old else self._body(old.graph, new.graph, operands)
        return new if type(new) is not int or old == new else self._guess(operands)(old, new)

    def _body(self, old: Graph, new: Graph, operands: Sequence[TensorType]) -> Body:
        """A graph that a node with these operands holds."""
        graph = Graph(name=new.name)
        values: dict[Value, Value] = {}
        for a, b in zip(old.inputs, new.inputs, strict=True):
            shapes = zip(a.value.type.shape, b.value.type.shape, strict=True)
            sizes = [(hint(m), hint(n)) for m, n in shapes]
            shape = tuple([m if m == n else self._size(m, n, operands) for m, n in sizes])
            type_ = b.value.type.with_shape(shape)
            values[b.value] = graph.add_input(type_, b.kind, b.name)
        for x, y in zip(old.nodes, new.nodes, strict=True):
            inputs = [values[v] for v in y.inputs]
            attrs = self._merged(x.attr, y.attr, [v.type for v in inputs])
            made = graph.add_node(y.op, inputs, attrs, y.line)
            values.update(zip(y.outputs, made, strict=True))
        graph.outputs = [values[v] for v in new.outputs]
        return Body(graph)

    # -- programs ----------------------------------------------------------------------------------
    def dims(self, program: Any) -> tuple[int, ...]:
        """The sizes of a program that is alike."""
        return tuple([int(program.steps[k].types[0].shape[axis]) for k, axis in self._places])

    def admits(self, program: Any) -> bool:
        """Whether the graph, with the sizes of a program that is alike, is that program."""
        values = dict(zip(self.env.hints, self.dims(program), strict=True))
        if min(values.values()) < 2 or not self.env.holds(values):
            return False
        for k, step in enumerate(program.steps):
            if step.kind == "number":
                if k not in self.lifted and step.data.tobytes() != self._numbers[k]:
                    return False
                continue
            for mine, its in zip(self.types[k], step.types, strict=True):
                if [evaluate(d, values) for d in mine.shape] != [*its.shape]:
                    return False
            attrs = plain_attrs(step.attrs)
            try:
                if any(concrete(x, values) != attrs[name] for name, x in self.attrs[k].items()):
                    return False
            except (CompileError, RuntimeError, ValueError, IndexError):
                return False  # these sizes do not fit a graph that the op holds
        return True

    def runner(self, program: Any) -> Callable[[Sequence[Any]], Any]:
        """What runs a program that is admitted on its arrays."""
        run, dims = self.run, self.dims(program)
        assert run is not None
        if not self.lifted:
            return lambda arrays: run(arrays, dims)
        kinds = [s.kind for s in program.steps]
        numbers = {k: program.steps[k].data for k in self.lifted}

        def with_numbers(arrays: Sequence[Any]) -> Any:
            given = iter(arrays)
            held = [
                numbers[k] if k in numbers else next(given)
                for k, kind in enumerate(kinds)
                if k in numbers or kind == "input"
            ]
            return run(held, dims)

        return with_numbers


class Forms:
    """The forms of one function's programs."""

    def __init__(self, name: str, compile: Compile) -> None:
        self.name, self.compile = name, compile
        self._kinds: dict[Any, Kind] = {}

    def add(self, program: Any) -> Kind:
        """The programs that are like this one, which is one of them from here on."""
        kind = self._kinds.setdefault(_likeness(program), Kind())
        kind.latest = kind.now
        kind.now = program
        return kind

    def of(self, program: Any, kind: Kind) -> Form | None:
        """A form that admits the program, compiled; None where it is to have code of its own."""
        for form in kind.forms:
            if form.admits(program):
                return form
        old = kind.latest
        if old is None or old is program or kind.tries >= _MAX_TRIES:
            return None
        kind.tries += 1
        try:
            form = Form(self.name, old, program)
            if not (form.admits(program) and form.admits(old)):
                return None
            form.compiled, form.run = self.compile(form.graph, form.options)
        except Exception:  # what was taken for sizes is none to some record: each has its own code
            return None
        kind.forms.append(form)
        return form if form.admits(program) else None  # compiling may have added guards


class Kind:
    """Programs that are alike but for sizes and numbers.

    now: the program that was made last; latest: the one before it. tries: forms that were made.
    """

    def __init__(self) -> None:
        self.forms: list[Form] = []
        self.now: Any = None
        self.latest: Any = None
        self.tries = 0

    @property
    def met(self) -> bool:
        """Whether there are others."""
        return self.latest is not None


class _Differs(Exception):
    """Two programs are not one with other sizes."""


def _likeness(program: Any) -> Any:
    """Equal for programs that may differ in sizes and numbers only."""
    parts: list[Any] = []
    for step in program.steps:
        types = tuple([(t.dtype.name, len(t.shape), str(t.device)) for t in step.types])
        if step.kind == "op":
            attrs = [(k, _frame(x)) for k, x in plain_attrs(step.attrs).items()]
            parts.append((step.op.name, step.inputs, types, repr(sorted(attrs))))
        else:
            parts.append((step.kind, types, step.strides))
    return (tuple(parts), program.wanted, program.writes)


def _frame(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_frame, x))
    if isinstance(x, Body):
        return _frame_of_body(x)
    return "#" if type(x) is int else x


@lru_cache(256)
def _frame_of_body(body: Body) -> Any:
    graph = body.graph
    places = {item.value: k for k, item in enumerate(graph.inputs)}
    parts: list[Any] = [[(t.dtype.name, len(t.shape)) for t in body.inputs]]
    for node in graph.nodes:
        attrs = [(k, _frame(x)) for k, x in node.attrs]
        parts.append((node.op.name, [places[v] for v in node.inputs], attrs))
        places.update((v, len(places) + k) for k, v in enumerate(node.outputs))
    return (parts, [places[v] for v in graph.outputs])


def to_graph(name: str, program: Any, form: Form | None = None) -> tuple[Graph, Options]:
    """The graph of a program, for the compiler; of its form, where sizes are symbolic. Inputs are
    the steps that are inputs (or become ones), in order."""
    graph = Graph(name=name)
    if form is not None:
        graph.env = form.env
    values: list[Value] = []
    strides: list[tuple[int, tuple[int, ...]]] = []
    inputs: dict[int, int] = {}  # by the number of the value
    written = {n for n, _ in program.written}
    for k, step in enumerate(program.steps):
        type_ = plain_type(step.types[0]) if form is None else form.types[k][0]
        if step.kind == "input" or (form is not None and k in form.lifted):
            i = inputs[step.first] = len(graph.inputs)
            kind = "state" if step.first in written else "arg"
            values.append(graph.add_input(type_, kind, f"x{i}"))
            if step.strides is not None:
                strides.append((i, step.strides))
        elif step.kind == "number":
            attrs: dict[str, Any] = {"shape": (), "value": step.data.item(), "dtype": type_.dtype}
            values.append(graph.add(OPS["full"], line=step.line, device="cpu", **attrs))
        else:
            attrs = plain_attrs(step.attrs) if form is None else form.attrs[k]
            operands = [values[n] for n in step.inputs]
            values.extend(graph.add_node(step.op, operands, attrs, step.line))
    taken = {item.value for item in graph.inputs}

    def own(n: int) -> Value:
        value = values[n]
        if value in taken:
            value = graph.add(OPS["clone"], value)
        taken.add(value)
        return value

    graph.outputs.extend(own(n) for n in program.wanted)
    graph.writes.extend(Write(inputs[n], own(new)) for n, new in program.written)
    return graph, Options(strides=tuple(strides))
