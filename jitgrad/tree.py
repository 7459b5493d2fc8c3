"""Tree of traces: functions in which Python looks at tensors' values.

Owns the tree: what each branch computes to see its value (`Branch`), and what is left to do once
all values are known (`Leaf`). Which trace grows where is forest.py. A recorded call is one way
through the tree; recorder.py says where its values were looked at (`Cut`). Each leaf has guards,
effects and results of its own (replay.py), so a call that comes out elsewhere goes on at another
leaf: branches write nothing, and what they computed is handed over (`Seen`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitgrad.compiler.ir import Graph, Value
from jitgrad.compiler.options import Options
from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.tree_code import outcome_of, write_way

MAX_CUTS = 64  # values that one call looks at
MAX_ELEMENTS = 64  # of a tensor whose list of values is one outcome

Compile = Callable[[Graph, Options], tuple[Any, Callable[[Any], Any]]]
"""Compiles a graph; gives its code, and what runs it."""


@dataclass(eq=False)
class Cut:
    """A value that Python looked at while a call was recorded.

    nodes: how many nodes the graph had by then; guards: how many guards its sizes had. how: what
    Python asked, a key of OUTCOMES.
    """

    nodes: int
    guards: int
    value: Value
    how: str
    outcome: Hashable
    line: str

    def __str__(self) -> str:
        return f"{self.how} of {self.value.type} at {self.line or '?'}"


def branches_on(what: str, array: np.ndarray[Any, Any]) -> bool:
    """Whether what Python asks of a tensor with this data is an outcome that a call can match."""
    whole = array.dtype.kind in "biu"
    if what == "tolist":
        return whole and array.size <= MAX_ELEMENTS
    return array.size == 1 and (what in ("bool", "int") or (what == "item" and whole))


@dataclass(eq=False)
class Part:
    """A graph that computes a part of a trace.

    inputs: where its inputs are: entry i of the call (as ~i), or the value of a number. outputs:
    the numbers of its outputs. compiled, run: its code and what runs it, once it is compiled.
    """

    graph: Graph
    inputs: list[int]
    outputs: list[int]
    options: Options
    compiled: Any = None
    run: Any = None

    def compile(self, compile_now: Compile) -> None:
        if self.run is None:
            self.compiled, self.run = compile_now(self.graph, self.options)


class Seen:
    """What a call has computed so far. entries: its arrays; values: by number; looked: for each
    branch, the part that ran and the outcome. dims: where sizes are symbolic, a tuple of the tuple
    of them. arrived: a leaf has given the result."""

    __slots__ = ("arrived", "dims", "entries", "looked", "values")

    def __init__(self, entries: list[Any]) -> None:
        self.arrived = False
        self.entries = entries
        self.dims: tuple[Any, ...] = ()
        self.values: dict[int, Any] = {}
        self.looked: dict[Branch, tuple[Part | None, Hashable]] = {}

    def run(self, part: Part) -> list[Any]:
        """Runs a part on the arrays that it reads."""
        entries, values = self.entries, self.values
        arrays = [entries[~n] if n < 0 else values[n] for n in part.inputs]
        found: list[Any] = part.run(arrays, *self.dims)
        return found

    def holds_for(self, entries: list[Any]) -> bool:
        """Whether all of it was computed of these arrays."""
        read = {~branch.observed for branch in self.looked if branch.observed < 0}
        for part, _ in self.looked.values():
            read.update([~n for n in part.inputs if n < 0] if part is not None else ())
        return all(i < len(entries) and _same(self.entries[i], entries[i]) for i in read)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    small = a.size <= MAX_ELEMENTS and a.dtype == b.dtype and a.shape == b.shape
    return small and a.tobytes() == b.tobytes()


@dataclass(eq=False)
class Branch:
    """A value that Python looks at, after one way through the branches above.

    observed: the number of the value; checked: of values whose computing may raise, up to here.
    owned: what is computed here first; kept: which of that is handed on. latest: for each outcome
    the leaf that was taken last.
    """

    forest: Any
    sizes: Any
    name: str
    above: tuple[Branch, ...]
    observed: int
    checked: tuple[int, ...]
    how: str
    text: str
    owned: set[int] = field(default_factory=set)
    kept: list[int] = field(default_factory=list)
    part: Part | None = None
    compiled: bool = False
    latest: dict[Hashable, Leaf] = field(default_factory=dict)

    def look(self, seen: Seen) -> Hashable:
        """The outcome of a call."""
        part, n = self.part, self.observed
        known = seen.looked.get(self)
        if known is not None and known[0] is part:
            return known[1]
        if part is not None:
            seen.values.update(zip(part.outputs, seen.run(part), strict=True))
        outcome = outcome_of(self.how, seen.entries[~n] if n < 0 else seen.values[n])
        seen.looked[self] = part, outcome
        return outcome

    def gives(self, n: int) -> bool:
        """Whether those below find the value of a number."""
        return n == self.observed or n in self.kept

    def keep(self, n: int) -> None:
        """Hands on the value of a number, from the next compilation on."""
        if not self.gives(n):
            self.kept.append(n)
            self.compiled = False

    def report(self) -> str:
        """What is computed for it, for people."""
        if not self.compiled:
            return " (not compiled yet)"
        if self.part is None:
            return " (nothing to compute)"
        r = self.part.compiled.report
        return (
            f" ({r.nodes} nodes, {r.kernels} kernels, peak {r.peak} bytes, keeps {len(self.kept)})"
        )

    def compile(self, compile_now: Compile) -> None:
        if not self.compiled:
            part = self.forest.branch_part(self)
            if part is not None:
                part.compile(compile_now)
            self.part, self.compiled = part, True


@dataclass(eq=False)
class Leaf:
    """One way through a tree: a trace. `run` is to its Specialisation what a compiled graph's is.

    root: the key of its tree. way: branches and outcomes. part: what is left to do after them.
    results: for each result of the trace's graph the number of an output of the part, or (as ~n) of
    a value that is kept. call: its Specialisation's; missed: tells that one why a call was no hit.
    taken: makes the next call begin here. relearn: makes it check the guards on sizes anew.
    run_new: runs a call of which nothing is computed yet (tree_code.py).
    """

    forest: Any
    sizes: Any
    root: Any
    way: list[tuple[Branch, Hashable]]
    part: Part
    results: list[int]
    told: int = 0
    call: Any = None
    missed: Any = None
    relearn: Any = None
    taken: Any = None
    run_new: Any = None

    def compile(self, compile_now: Compile) -> None:
        with self.forest.lock:
            for branch, _ in self.way:
                branch.compile(compile_now)
            self.part.compile(compile_now)
            self.run_new = self._link()
            for leaf in self.forest.leaves[self.root]:  # whose branches may be others by now
                if leaf.run_new is not None:
                    leaf.run_new = leaf._link()
                guards = sum([len(env.guards) for env in leaf.envs()])
                if leaf.told < guards:
                    leaf.told = guards
                    leaf.relearn()

    def envs(self) -> list[ShapeEnv]:
        """The sizes of the parts that lead here, and of the leaf's own."""
        return [*(branch.sizes.env for branch, _ in self.way), self.sizes.env]

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether the code of all parts is for these sizes."""
        return all(env.holds(values) for env in self.envs())

    def _link(self) -> Any:
        """`run_new`: what runs a call of which nothing is computed yet."""
        parts = [branch.part for branch, _ in self.way]
        so_far: list[list[int]] = []

        def away(entries: list[Any], k: int, outcome: Hashable, values: tuple[Any, ...]) -> Any:
            seen = Seen(entries)
            seen.values = dict(zip(so_far[k], values, strict=True))
            for (branch, wanted), part in zip(self.way[:k], parts[:k], strict=True):
                seen.looked[branch] = part, wanted
            branch, wanted = self.way[k]
            seen.looked[branch] = parts[k], outcome
            return Divergence(self, branch, wanted, outcome, seen)

        branches = [(b.part, b.how, b.observed, wanted) for b, wanted in self.way]
        run, found = write_way(branches, self.part, self.results, away, bool(self.sizes))
        so_far.extend(found)
        return run

    def arrived(self) -> None:
        """Notes that a call that began at another leaf ended here; after two, calls begin here."""
        if self.forest.arrived is self and self.taken is not None:
            self.taken()
        self.forest.arrived = self

    def run(self, entries: list[Any], seen: Seen | None = None, *dims: Any) -> Any:
        """The arrays that the trace's graph gives; or a Divergence: nothing is written then. dims:
        the symbolic sizes, as one tuple, if there are any."""
        if seen is None or not seen.holds_for(entries):
            return self.run_new(entries, *dims)
        seen.entries, seen.dims = entries, dims
        for branch, wanted in self.way:
            outcome = branch.look(seen)
            if outcome != wanted:
                return Divergence(self, branch, wanted, outcome, seen)
        made = seen.run(self.part)
        if len(made) == len(self.results):
            return made
        out, given = [], set()
        for n in self.results:
            array = made[n] if n >= 0 else seen.values[~n]
            out.append(array.copy() if n in given else array)
            given.add(n)
        return out


class Divergence:
    """A call that came out otherwise than at the leaf where it began."""

    __slots__ = ("branch", "leaf", "outcome", "seen", "wanted")

    def __init__(
        self, leaf: Leaf, branch: Branch, wanted: Hashable, outcome: Hashable, seen: Seen
    ) -> None:
        self.leaf, self.branch, self.wanted = leaf, branch, wanted
        self.outcome, self.seen = outcome, seen

    def follow(self, args: Any, kwargs: Any, miss: Any) -> Any:
        """The call's result at the leaf that fits; `miss` where there is none."""
        leaf = self.branch.latest.get(self.outcome)
        if leaf is not None and leaf.call is not None:
            result = leaf.call(args, kwargs, self.seen)
            if result is not miss:
                if not self.seen.arrived:
                    self.seen.arrived = True
                    leaf.arrived()
                return result
        self.leaf.missed(f"{self.branch.text}: {self.wanted} -> {self.outcome}")
        return miss
