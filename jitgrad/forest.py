"""Forest: which trace grows where in the trees of traces (tree.py), and what is computed where.

Values of different traces are one if the same ops make them of the same inputs: each has a number.
A branch computes what its value needs, and the checks that eager code would have made by then;
all else is left to leaves. Of what a branch has computed it keeps what branches and leaves below
it read, but for what costs nothing, or little, to compute again. Traces whose symbolic sizes differ
in place or range are different trees (`Sizes`).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from itertools import count
from typing import Any

from jitgrad.compiler.ir import Graph, Node, Value, Write
from jitgrad.compiler.ops.record import Elementwise
from jitgrad.compiler.options import Options
from jitgrad.compiler.passes.fix_sizes import decided, substituted
from jitgrad.compiler.passes.simplify import may_fault
from jitgrad.compiler.symbolic import Guard, ShapeEnv, Sym
from jitgrad.compiler.types import TensorType
from jitgrad.facts import layout
from jitgrad.symbols import Symbols
from jitgrad.tree import Branch, Leaf, Part

MAX_WAYS = 16  # leaves of a tree
_CHEAP = 8  # elementwise ops that are computed again rather than kept by a branch that has compiled


class Sizes:
    """The symbolic sizes of one part of a tree. True where there are any.

    env: their ranges; its guards are those that decide sizes, what the trace had found of their
    order before the part ended (by that slices are within what they are of), and what compiling the
    part adds. Which sizes differ is compared anew.
    """

    def __init__(self, env: ShapeEnv, orders: Iterable[Guard]) -> None:
        self.env = ShapeEnv(dict(env.hints), [], dict(env.low), dict(env.high))
        self._mine: dict[str, Any] = {name: Sym({(name,): 1}, self.env) for name in env.hints}
        for name, value in decided(env).items():
            self.env.guard("==", self._mine[name], self.of(value), True)
        for g in orders:
            self.env.guard(g.kind, self.of(g.a), self.of(g.b), g.outcome)

    def __bool__(self) -> bool:
        return bool(self._mine)

    def of(self, x: Any) -> Any:
        """An attribute or a dim of a trace, in these sizes."""
        return substituted(x, self._mine) if self._mine else x

    def type(self, t: TensorType) -> TensorType:
        """A trace's type, in these sizes."""
        return t.with_shape(self.of(tuple(t.shape))) if self._mine else t


def _orders(guards: Iterable[Guard]) -> list[Guard]:
    return [g for g in guards if g.kind != "=="]


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

    # -- growing -------------------------------------------------------------------------------
    def grow(self, trace: Any, symbols: Symbols) -> Leaf:
        """The leaf of a trace, new in its tree."""
        with self.lock:
            facts = [(e.kind, e.value.type, layout(e.array)) for e in trace.entries]
            symbols = symbols if trace.sized else Symbols()
            env, signature = symbols.env, symbols.signature()
            numbers = self._number(trace.graph, facts, signature)
            way: list[tuple[Branch, Hashable]] = []
            path: tuple[Any, ...] = (signature,)
            start = 0
            for cut in trace.cuts:
                checked = _checked(trace.graph.nodes[start : cut.nodes], numbers)
                start = cut.nodes
                n = numbers[cut.value]
                if not checked and any(b.observed == n and b.how == cut.how for b, _ in way):
                    continue  # it is known
                orders = _orders(env.guards[: cut.guards])
                path = self._next(path, (n, checked, cut.how, *map(str, orders)), env)
                branch = self._branches.get(path)
                if branch is None:
                    above = tuple([b for b, _ in way])
                    sizes = Sizes(env, orders)
                    branch = Branch(
                        self, sizes, trace.graph.name, above, n, checked, cut.how, str(cut)
                    )
                    branch.owned = set(self._walk(above, [n, *checked])[0])
                    self._branches[path] = branch
                way.append((branch, cut.outcome))
                path = (*path, cut.outcome)
            checked = _checked(trace.graph.nodes[start:], numbers)
            sizes = Sizes(env, _orders(env.guards))
            part, results = self._rest(
                [b for b, _ in way], trace.graph, facts, numbers, checked, sizes
            )
            leaf = Leaf(self, sizes, path[:2], way, part, results)
            self.leaves.setdefault(leaf.root, []).append(leaf)
            for branch, outcome in way:
                branch.latest[outcome] = leaf
            return leaf

    def _next(self, path: tuple[Any, ...], key: tuple[Any, ...], env: ShapeEnv) -> tuple[Any, ...]:
        """The path of a branch: one whose code is for the sizes of this trace, or a new one."""
        for k in count():
            found = (*path, (*key, k))
            branch = self._branches.get(found)
            if branch is None or branch.sizes.env.holds(env.hints):
                return found
        raise AssertionError

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

    def _number(self, graph: Graph, facts: Sequence[Any], sizes: Any) -> dict[Value, int]:
        """The numbers of a trace's values: ~i for entry i. sizes: what those of the trace are."""
        texts = [(kind, f"{t} {t.device}", strides) for kind, t, strides in facts]
        numbers = {item.value: ~i for i, item in enumerate(graph.inputs)}
        for node in graph.nodes:
            operands = tuple([numbers[v] for v in node.inputs])
            of_entries = tuple([facts[~n] for n in operands if n < 0])
            for v in node.outputs:
                known = tuple([texts[~n] for n in operands if n < 0])
                attrs = repr(_named(node.attrs))
                key = (sizes, node.op.name, operands, known, attrs, v.index, node.line)
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
