"""The sizes that a native library takes: the range of each symbolic dim, and what they are at most.

A library has one program for all sizes, and memory for the largest. Owns `with_limits`, which gives
a graph's dims their ranges, and `at_most`, the bounds that follow. What a call does with sizes is
`codegen/sizes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from jitgrad.compiler.fixed_sizes import at_sizes
from jitgrad.compiler.ir import Graph, Node, all_nodes
from jitgrad.compiler.parse import parse
from jitgrad.compiler.symbolic import (
    LARGEST,
    Dim,
    Guard,
    ShapeEnv,
    Sym,
    bounds,
    evaluate,
    same,
    substitute,
    surely_le,
)
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.errors import CompileError

_MOST_CORNERS = 64
_MOST_STEPS = 4096
_MOST_TRIED = 16  # least sizes of a dim that ops may refuse


def with_limits(graph: Graph) -> Graph:
    """A copy of a graph whose dims have ranges: `env.low`, `env.high`; its other guards are left.

    The least size is what was declared, 0 too, else 1; more where conditions, or ops that do not
    take it, say so. Raises CompileError where a dim has no maximum, or a size of 0 was declared and
    is not taken.
    """
    copy = parse(str(graph))
    env = copy.env
    zeros = {str(g.b): str(g) for g in env.guards if _declares_zero(g, env)}
    env.low.update({name: 0 if name in zeros else 1 for name in env.hints})
    env.guards = [g for g in env.guards if not _is_range(g, env)]
    unlimited = [name for name in env.hints if name not in env.high]
    if unlimited:
        raise CompileError(
            f"[native] expected a largest size of each symbolic dim, which memory is made for; "
            f"{', '.join(map(repr, unlimited))} has none: export with dynamic_shapes={{...: "
            f'{{...: Dim("{unlimited[0]}", max=64)}}}}'
        )
    hidden = {*env.hints} - {str(d) for i in copy.inputs for d in i.value.type.shape}
    if hidden:
        raise CompileError(f"[native] no input shows the dims {sorted(hidden)} by themselves")
    env.guards += _at_least_one(copy)
    _raise_low(env)
    for name in env.hints:
        first = env.low[name]
        while env.low[name] - first < _MOST_TRIED and _fault(copy, {name: env.low[name]}):
            env.low[name] += 1
        if name in zeros and env.low[name]:
            why = _fault(copy, {name: 0}) or "what was recorded holds where " + " and ".join(
                g.told() for g in graph.env.guards if not g.holds({**env.high, name: 0})
            )
            raise CompileError(
                f"[native] expected to take {name} = 0, which Dim({name!r}, min=0) declares; the "
                f"least that can be is {env.low[name]}: {why}; leave min out, or export that case, "
                "with other inputs, for itself"
            )
    names = list(env.hints)
    corners = product(*((env.low[n], env.high[n]) for n in names))
    for _, corner in zip(range(_MOST_CORNERS), corners, strict=False):
        sizes = dict(zip(names, corner, strict=True))
        if _fault(copy, sizes):
            at_sizes(copy, sizes)  # says which op
    return copy


def _declares_zero(g: Guard, env: ShapeEnv) -> bool:
    """Whether a guard is the least size of 0 that was declared of a dim."""
    least = g.kind == "<=" and g.outcome and not isinstance(g.a, Sym) and g.a == 0
    return least and str(g.b) in env.hints


def _at_least_one(graph: Graph) -> list[Guard]:
    """What keeps the sizes of a graph's values from being 0 where an op does not take that."""
    env = graph.env
    named: dict[str, Dim] = {name: Sym({(name,): 1}, env) for name in env.hints}
    found: dict[Dim, Guard] = {}
    tried: dict[Dim, bool | None] = {}
    for node in all_nodes(graph):
        types = [v.type for v in node.inputs]
        for d in dict.fromkeys(d for t in types for d in t.shape if isinstance(d, Sym)):
            if not d.names() <= named.keys():
                continue
            own = substitute(d, named)
            if str(own) in named or own in found or surely_le(1, own):
                continue
            if own not in tried:
                tried[own] = _taken_at_zero(graph, own)
            if not (_takes_zero(node, d) if tried[own] is None else tried[own]):
                found[own] = Guard("<=", 1, own, True, node.line)
    return list(found.values())


def _taken_at_zero(graph: Graph, d: Dim) -> bool | None:
    """Whether the graph's types hold at the sizes of a dim that make `d` 0; None where it is of
    several dims, or of one with too many sizes to try."""
    assert isinstance(d, Sym)
    name, *others = d.names()
    low, high = graph.env.low[name], graph.env.high[name]
    if others or high - low > _MOST_STEPS:
        return None
    zeros = [n for n in range(low, high + 1) if evaluate(d, {name: n}) == 0]
    return len(zeros) <= _MOST_TRIED and not any(_fault(graph, {name: n}) for n in zeros)


def _takes_zero(node: Node, d: Sym) -> bool:
    """Whether an op is known to take operands of which this size is 0."""

    def without(t: TensorType) -> TensorType:
        return t.with_shape(tuple(0 if same(s, d) else s for s in t.shape))

    guards = list(d.env.guards)
    try:
        node.op.infer(*(without(v.type) for v in node.inputs), **dict(node.attrs))
    except (CompileError, RuntimeError, ValueError, IndexError, TypeError):
        return False
    finally:
        d.env.guards[:] = guards
    return True


def empty_at_zero(graph: Graph) -> list[str]:
    """The dims of a graph with ranges that may be 0 as well: all results then have no elements, so
    nothing is to be computed. Graphs that write state have none, nor are there those that a
    condition ties to others."""
    env = graph.env
    tied: set[str] = set()
    for g in conditions(env):
        names = {n for d in (g.a, g.b) if isinstance(d, Sym) for n in d.names()}
        tied |= names if len(names) > 1 else set()
    shapes = [v.type.shape for v in graph.outputs]
    found = []
    for name in env.hints:
        sizes = {**env.high, name: 0}
        empty = all(0 in [evaluate(d, sizes) for d in shape] for shape in shapes)
        least = env.low[name] <= 1 and name not in tied and not graph.writes
        if least and empty and env.holds(sizes) and not _fault(graph, sizes):
            found.append(name)
    return found


def _raise_low(env: ShapeEnv) -> None:
    """Takes conditions on one dim alone into its range, as far as they say what its least and most
    are."""
    for g in conditions(env):
        names = {n for d in (g.a, g.b) if isinstance(d, Sym) for n in d.names()}
        if len(names) != 1:
            continue
        (name,) = names
        low, high = env.low[name], env.high[name]
        while low < high and low - env.low[name] < _MOST_STEPS and not g.holds({name: low}):
            low += 1
        while high > low and env.high[name] - high < _MOST_STEPS and not g.holds({name: high}):
            high -= 1
        if g.holds({name: low}) and g.holds({name: high}):
            env.low[name], env.high[name] = low, high


def _fault(graph: Graph, sizes: Mapping[str, int]) -> str:
    """Why the types of values are not what their symbolic forms say, at sizes (others are the
    largest) that may be; "" where they are."""
    sizes = {**graph.env.high, **sizes}
    if not graph.env.holds(sizes):
        return ""
    try:
        at_sizes(graph, sizes)
    except (CompileError, RuntimeError, ValueError, IndexError) as error:
        return str(error)
    return ""


def _is_range(g: Guard, env: ShapeEnv) -> bool:
    """Takes a guard that bounds one dim by a number into the env's ranges; says whether they have
    all of it. (Those from below also say whether 0 is taken.)"""
    if g.kind == "==":
        return False
    strict = int((g.kind == "<") == g.outcome)  # least < most, else least <= most
    least, most = (g.a, g.b) if g.outcome else (g.b, g.a)
    if isinstance(least, Sym) and str(least) in env.hints and not isinstance(most, Sym):
        env.high[str(least)] = min(env.high.get(str(least), LARGEST), most - strict)
        return True
    if isinstance(most, Sym) and str(most) in env.hints and not isinstance(least, Sym):
        env.low[str(most)] = max(env.low[str(most)], least + strict)
    return False


def conditions(env: ShapeEnv) -> list[Guard]:
    """The guards that the ranges do not decide, to be checked in each call."""
    return [g for g in env.guards if not _decided(g)]


def _decided(g: Guard) -> bool:
    low, high = bounds(g.a - g.b)
    if g.kind == "==":
        apart = (low is not None and low > 0) or (high is not None and high < 0)
        return low == high == 0 if g.outcome else apart
    edge = 0 if g.kind == "<" else 1  # a - b < edge
    if g.outcome:
        return high is not None and high < edge
    return low is not None and low >= edge


def at_most(d: Dim) -> int:
    """What a size is at most. Raises CompileError where its form does not tell."""
    if not isinstance(d, Sym):
        return d
    high = bounds(d)[1]
    if high is None:
        raise CompileError(
            f"[native] expected sizes whose largest value is known; {d} has none; export the model "
            "with that size fixed"
        )
    return max(0, high)
