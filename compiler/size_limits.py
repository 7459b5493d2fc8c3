"""The sizes that a native library takes: the range of each symbolic dim, and what they are at most.

A library has one program for all sizes, and memory for the largest. Owns `with_limits`, which gives
a graph's dims their ranges, and `at_most`, the bounds that follow. What a call does with sizes is
`codegen/sizes.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product

from jitgrad.compiler.fixed_sizes import at_sizes
from jitgrad.compiler.ir import Graph, all_nodes
from jitgrad.compiler.parse import parse
from jitgrad.compiler.symbolic import (
    LARGEST,
    Dim,
    Guard,
    ShapeEnv,
    Sym,
    bounds,
    evaluate,
    substitute,
)
from jitgrad.runtime.errors import CompileError

_MOST_CORNERS = 64
_MOST_STEPS = 4096


def with_limits(graph: Graph) -> Graph:
    """A copy of a graph whose dims have ranges: `env.low`, `env.high`; its other guards are left.

    The least size is 1, or 2 for a dim at whose size of 1 the graph's types would not hold. Raises
    CompileError where a dim has no maximum.
    """
    copy = parse(str(graph))
    env = copy.env
    env.low.update(dict.fromkeys(env.hints, 1))
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
    for name in env.hints:
        if env.low[name] == 1 and not _holds(copy, {**env.high, name: 1}):
            env.low[name] = 2
    _raise_low(env)
    names = list(env.hints)
    corners = product(*((env.low[n], env.high[n]) for n in names))
    for _, corner in zip(range(_MOST_CORNERS), corners, strict=False):
        sizes = dict(zip(names, corner, strict=True))
        if not _holds(copy, sizes):
            at_sizes(copy, sizes)  # says which op
    return copy


def _at_least_one(graph: Graph) -> list[Guard]:
    """What keeps the sizes of a graph's values from being 0, where those of its dims are not: code
    reads operands that have an element."""
    env = graph.env
    named: dict[str, Dim] = {name: Sym({(name,): 1}, env) for name in env.hints}
    shapes = [v.type.shape for node in all_nodes(graph) for v in node.outputs]
    found: dict[Dim, Guard] = {}
    for d in (d for shape in shapes for d in shape if isinstance(d, Sym)):
        if d.names() <= named.keys():
            own = substitute(d, named)
            least = bounds(own)[0]
            if least is None or least < 1:
                found[own] = Guard("<=", 1, own, True, "")
    return list(found.values())


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
        least = env.low[name] == 1 and name not in tied and not graph.writes
        if least and empty and env.holds(sizes) and _holds(graph, sizes):
            found.append(name)
    return found


def expect_declared_zeros(env: ShapeEnv, empty: Collection[str]) -> None:
    """Raises CompileError where a size of 0 was declared (`0 <= n`) of a dim with a range that is
    not among the `empty` ones."""
    for g in env.guards:
        name = str(g.b)
        declared = g.kind == "<=" and g.outcome and not isinstance(g.a, Sym) and g.a == 0
        if declared and name in env.hints and name not in empty:
            raise CompileError(
                f"[native] expected to take {name} = 0, which Dim({name!r}, min=0) declares; "
                f"native code takes {name} from {env.low[name]}, and 0 only where all results then "
                "have no elements and all ops take it; leave min out and call what is exported in "
                "Python for 0, or export that case, with other inputs, for itself"
            )


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


def _holds(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether the types of all values are what their symbolic forms say, where sizes may be so."""
    if not graph.env.holds(sizes):
        return True
    try:
        at_sizes(graph, sizes)
    except (CompileError, RuntimeError, ValueError, IndexError):
        return False
    return True


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
