"""Tree of traces: functions in which Python looks at tensors' values.

Owns the tree: what each branch computes to see its value (`Branch`), what is left to do once all
values are known (`Leaf`), and which trace grows where (`Forest`). A recorded call is one way
through the tree; recorder.py says where its values were looked at (`Cut`). Each leaf has guards,
effects and results of its own (replay.py), so a call that comes out elsewhere goes on at another
leaf: branches write nothing, and what they computed is handed over (`Seen`).

Values of different traces are one if the same ops make them of the same inputs: each has a number.
A branch computes what its value needs, and the checks that eager code would have made by then;
all else is left to leaves. Of what a branch has computed it keeps what branches and leaves below
it read, but for what costs nothing, or little, to compute again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from jitgrad.compiler.ir import Graph, Node, Value, Write
from jitgrad.compiler.ops.record import Elementwise
from jitgrad.compiler.options import Options
from jitgrad.compiler.passes.fix_sizes import decided, substituted
from jitgrad.compiler.passes.simplify import may_fault
from jitgrad.compiler.symbolic import ShapeEnv, Sym
from jitgrad.compiler.types import TensorType
from jitgrad.dims import Symbols
from jitgrad.facts import layout
from jitgrad.tree_code import outcome_of, write_way

MAX_WAYS = 16  # leaves of a tree
MAX_CUTS = 64  # values that one call looks at
MAX_ELEMENTS = 64  # of a tensor whose list of values is one outcome
_CHEAP = 8  # elementwise ops that are computed again rather than kept by a branch that has compiled

Compile = Callable[[Graph, Options], tuple[Any, Callable[[Any], Any]]]
"""Compiles a graph; gives its code, and what runs it."""


@dataclass(eq=False)
class Cut:
    """A value that Python looked at while a call was recorded.

    nodes: how many nodes the graph had by then. how: what Python asked, a key of OUTCOMES.
    """

    nodes: int
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

    forest: Forest
    sizes: Sizes
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

    forest: Forest
    sizes: Sizes
    root: Any
    way: list[tuple[Branch, Hashable]]
    part: Part
    results: list[int]
    call: Any = None
    missed: Any = None
    relearn: Any = None
    taken: Any = None
    run_new: Any = None

    def compile(self, compile_now: Compile) -> None:
        with self.forest.lock:
            guards = len(self.sizes.env.guards)
            for branch, _ in self.way:
                branch.compile(compile_now)
            self.part.compile(compile_now)
            self.run_new = self._link()
            for leaf in self.forest.leaves[self.root]:  # whose branches may be others by now
                if leaf.run_new is not None:
                    leaf.run_new = leaf._link()
                if len(self.sizes.env.guards) > guards:
                    leaf.relearn()

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


class Sizes:
    """The symbolic sizes of a tree's traces. True where there are any.

    key: equal for traces whose sizes are the same. env: of all parts of the tree; its guards are
    those that decide sizes, and what compiling the parts adds.
    """

    def __init__(self, key: Any, env: ShapeEnv) -> None:
        self.key = key
        self.env = ShapeEnv(dict(env.hints), [], dict(env.low), dict(env.high))
        self._mine: dict[str, Any] = {name: Sym({(name,): 1}, self.env) for name in env.hints}
        for name, value in decided(env).items():
            self.env.guard("==", self._mine[name], self.of(value), True)

    def __bool__(self) -> bool:
        return bool(self._mine)

    def of(self, x: Any) -> Any:
        """An attribute or a dim of a trace, in these sizes."""
        return substituted(x, self._mine) if self._mine else x

    def type(self, t: TensorType) -> TensorType:
        """A trace's type, in these sizes."""
        return t.with_shape(self.of(tuple(t.shape))) if self._mine else t


def _named(x: Any) -> Any:
    """Attributes as they are compared, without the hints of sizes."""
    if isinstance(x, tuple):
        return tuple(map(_named, x))
    return f"<{x}>" if isinstance(x, Sym) else x


class Forest:
    """The trees of one function.

    Attributes: `made`, for each number a value of the first trace that had it; `leaves`, by the
    key of their tree's root.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.arrived: Leaf | None = None
        self.made: list[Value] = []
        self.leaves: dict[Any, list[Leaf]] = {}
        self._keys: dict[Any, int] = {}
        self._numbers: dict[Value, int] = {}  # of `made`
        self._operands: list[tuple[int, ...]] = []
        self._facts: list[tuple[Any, ...]] = []  # of those operands that are entries
        self._branches: dict[Any, Branch] = {}
        self._sizes: dict[Any, Sizes] = {}

    # -- growing -------------------------------------------------------------------------------
    def grow(self, trace: Any, symbols: Symbols) -> Leaf:
        """The leaf of a trace, new in its tree."""
        with self.lock:
            facts = [(e.kind, e.value.type, layout(e.array)) for e in trace.entries]
            sizes = self._sizes_of(symbols)
            numbers = self._number(trace.graph, facts, sizes)
            way: list[tuple[Branch, Hashable]] = []
            path: tuple[Any, ...] = (sizes.key,)
            start = 0
            for cut in trace.cuts:
                checked = _checked(trace.graph.nodes[start : cut.nodes], numbers)
                start = cut.nodes
                n = numbers[cut.value]
                if not checked and any(b.observed == n and b.how == cut.how for b, _ in way):
                    continue  # it is known
                path = (*path, (n, checked, cut.how))
                branch = self._branches.get(path)
                if branch is None:
                    above = tuple([b for b, _ in way])
                    branch = Branch(
                        self, sizes, trace.graph.name, above, n, checked, cut.how, str(cut)
                    )
                    branch.owned = set(self._walk(above, [n, *checked])[0])
                    self._branches[path] = branch
                way.append((branch, cut.outcome))
                path = (*path, cut.outcome)
            checked = _checked(trace.graph.nodes[start:], numbers)
            part, results = self._rest(
                [b for b, _ in way], trace.graph, facts, numbers, checked, sizes
            )
            leaf = Leaf(self, sizes, path[:2], way, part, results)
            self.leaves.setdefault(leaf.root, []).append(leaf)
            for branch, outcome in way:
                branch.latest[outcome] = leaf
            return leaf

    def ways(self, root: Any) -> set[tuple[Hashable, ...]]:
        """The outcomes that lead to the leaves of a tree."""
        return {tuple([outcome for _, outcome in leaf.way]) for leaf in self.leaves[root]}

    def fell(self, root: Any) -> list[Leaf]:
        """Forgets a tree; gives what its leaves were."""
        with self.lock:
            for path in [p for p in self._branches if p[:2] == root]:
                del self._branches[path]
            return self.leaves.pop(root, [])

    def spared(self) -> int:
        """How many leaves there are beside the first of each tree."""
        return sum(len(leaves) - 1 for leaves in self.leaves.values() if leaves)

    def _sizes_of(self, symbols: Symbols) -> Sizes:
        """The symbolic sizes of a trace: those of a tree where they are the same, and fit what
        compiling has made guards of; else new ones."""
        signature = symbols.signature()
        for k in count():
            key = (signature, k) if signature else None
            found = self._sizes.get(key)
            if found is None:
                found = self._sizes[key] = Sizes(key, symbols.env)
            if found.env.holds(symbols.env.hints):
                return found
        raise AssertionError

    def _number(self, graph: Graph, facts: Sequence[Any], sizes: Sizes) -> dict[Value, int]:
        """The numbers of a trace's values: ~i for entry i."""
        texts = [(kind, f"{t} {t.device}", strides) for kind, t, strides in facts]
        numbers = {item.value: ~i for i, item in enumerate(graph.inputs)}
        for node in graph.nodes:
            operands = tuple([numbers[v] for v in node.inputs])
            of_entries = tuple([facts[~n] for n in operands if n < 0])
            for v in node.outputs:
                known = tuple([texts[~n] for n in operands if n < 0])
                attrs = repr(_named(node.attrs))
                key = (sizes.key, node.op.name, operands, known, attrs, v.index, node.line)
                n = self._keys.setdefault(key, len(self.made))
                if n == len(self.made):
                    self.made.append(v)
                    self._numbers[v] = n
                    self._operands.append(operands)
                    self._facts.append(of_entries)
                numbers[v] = n
        return numbers

    def text(self, places: dict[Leaf, int]) -> list[str]:
        """The trees, line by line. places: the numbers of the specialisations that are leaves."""
        out: list[str] = []
        for leaves in self.leaves.values():
            known = [(leaf, places[leaf]) for leaf in leaves if leaf in places]
            out.append(f"tree of {len(known)} leaves:")
            out += ["  " + line for line in _subtree(known, 0)]
        return out

    # -- what is computed where ----------------------------------------------------------------
    def _walk(self, above: Iterable[Branch], roots: Iterable[int]) -> tuple[list[int], list[int]]:
        """What a part below these branches computes for its roots, in order, and what it takes
        from them (they keep it from now on)."""
        owner = {n: b for b in reversed([*above]) for n in b.owned}
        computed: set[int] = set()
        taken: list[int] = []
        stack = [*roots]
        while stack:
            n = stack.pop()
            if n < 0 or n in computed or n in taken:
                continue
            branch = owner.get(n)
            if branch is not None and not self._again(n, branch, owner):
                branch.keep(n)
                taken.append(n)
                continue
            node = self.made[n].node
            assert node is not None
            computed.update([self._numbers[v] for v in node.outputs])
            stack.extend(self._operands[n])
        return sorted(computed), taken  # operands have smaller numbers

    def _again(self, n: int, branch: Branch, owner: dict[int, Branch]) -> bool:
        """Whether what a branch has computed is computed again rather than handed on."""
        if self._is_free(n):
            return True
        if branch.part is None or branch.gives(n):
            return False
        cone: set[int] = set()
        stack = [n]
        while stack and len(cone) <= _CHEAP:
            k = stack.pop()
            if k < 0 or k in cone or (k in owner and owner[k].gives(k)):
                continue
            node = self.made[k].node
            assert node is not None
            if not (self._is_free(k) or (isinstance(node.op, Elementwise) and not may_fault(node))):
                return False
            cone.add(k)
            stack.extend(self._operands[k])
        return len(cone) <= _CHEAP

    def _is_free(self, n: int) -> bool:
        node = self.made[n].node
        assert node is not None
        return node.op.view or not (node.inputs or node.op.random)

    # -- parts ---------------------------------------------------------------------------------
    def branch_part(self, branch: Branch) -> Part | None:
        """What a branch computes; None where it has but to look at an entry, or what is kept."""
        outputs = [n for n in (branch.observed, *branch.kept) if n in branch.owned]
        roots = [*outputs, *branch.checked]
        if not roots:
            return None
        name = f"{branch.name}_branch{len(branch.above)}"
        builder = Builder(self, branch.sizes, name, *self._walk(branch.above, roots))
        builder.graph.outputs = [builder.values[n] for n in outputs]
        return builder.part(outputs)

    def _rest(
        self, above: Sequence[Branch], graph: Graph, facts: Sequence[Any],
        numbers: dict[Value, int], checked: Sequence[int], sizes: Sizes,
    ) -> tuple[Part, list[int]]:  # fmt: skip
        """What is left of a trace below these branches, and Leaf.results."""
        found = [*graph.outputs, *(r.value for r in graph.rebinds if r.value is not None)]
        places = [numbers[v] for v in found]
        writes = [(w.input, numbers[w.value]) for w in graph.writes]
        roots = [*places, *(n for _, n in writes), *checked]
        order, taken = self._walk(above, roots)
        builder = Builder(self, sizes, graph.name, order, taken)
        results: list[int] = []
        for n in places:
            if n in taken:
                results.append(~n)
            else:
                results.append(len(builder.graph.outputs))
                builder.graph.outputs.append(builder.values[n])
        for i, n in writes:
            target = builder.entry(i, facts[i], graph.inputs[i].name)
            value = builder.values[n] if n >= 0 else builder.entry(~n, facts[~n], "")
            place = [item.value for item in builder.graph.inputs].index(target)
            builder.graph.writes.append(Write(place, value))
        return builder.part([]), results


def _subtree(leaves: Sequence[tuple[Leaf, int]], depth: int) -> list[str]:
    """The lines of the branch at this depth of leaves that are one way up to there."""
    out: list[str] = []
    branches: dict[Branch, dict[Hashable, list[tuple[Leaf, int]]]] = {}
    for leaf, place in leaves:
        branch, outcome = leaf.way[depth]
        branches.setdefault(branch, {}).setdefault(outcome, []).append((leaf, place))
    for branch, outcomes in branches.items():
        out.append(branch.text + branch.report())
        for outcome, below in outcomes.items():
            ends = [place for leaf, place in below if len(leaf.way) == depth + 1]
            rest = [(leaf, place) for leaf, place in below if len(leaf.way) > depth + 1]
            out += [f"  {outcome}: specialisation {place}" for place in ends]
            if rest:
                out += [f"  {outcome}:", *("    " + line for line in _subtree(rest, depth + 1))]
    return out


def _checked(nodes: Iterable[Node], numbers: dict[Value, int]) -> tuple[int, ...]:
    return tuple([numbers[node.outputs[0]] for node in nodes if may_fault(node)])


class Builder:
    """Builds the graph of a part: what it takes are inputs, then what it computes, in order."""

    def __init__(
        self, forest: Forest, sizes: Sizes, name: str, order: Iterable[int], taken: list[int]
    ) -> None:
        self.graph = Graph(name=name, env=sizes.env)
        self.sizes = sizes
        self.values: dict[int, Value] = {}
        self._inputs: list[int] = []
        self._strides: list[tuple[int, tuple[int, ...]]] = []
        for n in taken:
            self.values[n] = self._input(n, forest.made[n].type, "arg", f"kept{len(self._inputs)}")
        for n in order:
            if n not in self.values:
                self._compute(forest, n)

    def _compute(self, forest: Forest, n: int) -> None:
        node = forest.made[n].node
        assert node is not None
        facts = iter(forest._facts[n])
        operands = []
        for k, v in zip(forest._operands[n], node.inputs, strict=True):
            operands.append(self.values[k] if k >= 0 else self.entry(k, next(facts), v.name))
        attrs = {name: self.sizes.of(x) for name, x in node.attrs}
        types = [self.sizes.type(v.type) for v in node.outputs]
        made = self.graph.add_node(node.op, operands, attrs, node.line, types)
        for old, new in zip(node.outputs, made, strict=True):
            self.values[forest._numbers[old]] = new

    def entry(self, i: int, facts: tuple[Any, ...], name: str) -> Value:
        """The input for an entry (i or ~i)."""
        key = i if i < 0 else ~i
        if key not in self.values:
            kind, type_, strides = facts
            if strides is not None:
                self._strides.append((len(self._inputs), strides))
            self.values[key] = self._input(key, type_, kind, name or f"input{~key}")
        return self.values[key]

    def _input(self, n: int, type_: TensorType, kind: str, name: str) -> Value:
        self._inputs.append(n)
        taken = {item.name for item in self.graph.inputs}
        type_ = self.sizes.type(type_)
        return self.graph.add_input(type_, kind, name if name not in taken else f"{name}#{n}")

    def part(self, outputs: list[int]) -> Part:
        return Part(self.graph, self._inputs, outputs, Options(strides=tuple(self._strides)))
