"""Fusion: groups the arrays that stay into kernels.

Before: `Bodies`, arrays in dependency order, each with its expressions. After: a list of `Group`s,
each one kernel to be: a loop space (outer parallel axes, inner axes) and members, every member's
own axes mapped onto axes of that space. Arrays read only inside their group need no memory.

Greedy, in dependency order. An array joins the group with which it shares most bytes, if its
axes can be unified with the group's: each of its loads of a member must be at the member's own
point of the loop space, so that the value is at hand (in a register, or in the row that this
outer point just computed). Kinds of members:

  full    one value for each (outer, inner) point
  row     one value for each outer point
  reduce  one value for each outer point, combined over the inner axes
  column  one value for each inner point, combined over the outer axes while the rows pass by;
          nothing in the group reads it

A pointwise group becomes a row group when a reduction over some of its axes joins it. Contractions
take pointwise consumers of their own shape as epilogue. Scans, sorts and scatters stand alone.
Size-1 axes do not take part: they are dropped from every space.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from jitgrad.compiler.cost import nbytes, weight
from jitgrad.compiler.loops import (
    Array,
    Contraction,
    Expr,
    Pointwise,
    Reduction,
    loads,
)
from jitgrad.compiler.passes.inline import HEAVY, Bodies, axis_extents, sums_columns
from jitgrad.compiler.passes.reach import Precedence
from jitgrad.compiler.symbolic import Dim, Sym, hint, is_static, prod, same

ROW_BYTES = 256 * 1024  # a row that later stages read again should stay in a core's cache
SMALL_WORK = 1 << 15  # points below which a kernel runs on one thread anyway
MIN_ROWS = 8  # outer points that give every thread work
SUM_ROWS = 256  # rows that one thread sums one after the other (codegen/columns.py)
SERIAL_WORK = 1 << 17  # points below which one thread is fast enough
MAX_GROUP_WEIGHT = 1000
"""What is past it is a kernel of its own: code of many registers is no faster than a trip through
memory, and of a long chain's kernels, which are alike, a small one is soon compiled."""
MAX_POINT_WEIGHT = 100
"""Of a group with one point, past which only what reads it joins: that saves no more than a launch,
and what is alike (the corrections of each parameter's Adam) is one code where it stands apart."""
MAX_READERS = 32  # of the groups that read an array, the latest are considered for joining


@dataclass(eq=False)
class Member:
    """An array in a group: its kind, and own axis -> axis of the group's space."""

    array: Array
    kind: str
    axes: dict[int, int]


@dataclass(eq=False)
class Group:
    """A kernel to be. Axes 0..len(outer)-1 are outer, the rest inner."""

    kind: str  # "loop", "contraction", "special"
    outer: list[Dim]
    inner: list[Dim]
    in_order: bool = True  # one worker does the rows of a block one after the other
    members: list[Member] = field(default_factory=list)
    loaded: dict[Array, list[tuple[object, ...]]] = field(default_factory=dict)
    weight: int = 0
    index: dict[Array, Member] = field(default_factory=dict)
    after: set[Group] = field(default_factory=set)  # groups that must run before, directly

    @property
    def dims(self) -> list[Dim]:
        return [*self.outer, *self.inner]

    def member(self, array: Array) -> Member | None:
        return self.index.get(array)


def fuse(bodies: Bodies, in_order: bool = True) -> list[Group]:
    """Groups in an order that respects dependencies. in_order: whether the target's workers do the
    rows of a kernel one after the other, so that sums over rows can be made on the way."""
    home: dict[Array, Group] = {}
    readers: dict[Array, dict[Group, None]] = {}
    order: dict[Group, int] = {}
    sorts: dict[object, Group] = {}  # both outputs of a sort come from one kernel
    groups: Precedence[Group] = Precedence()
    for array in bodies.arrays:
        exprs = bodies.exprs[array]
        reads = list({e.attr: None for e in loads(exprs)})
        producers = list({home[x]: None for x in reads if x in home})
        sort_key = getattr(array.define, "key", None)
        candidates: dict[Group, int] = {}
        for x in reads:
            recent = islice(reversed(readers.get(x, {})), MAX_READERS)
            for g in [*([home[x]] if x in home else []), *recent]:
                candidates[g] = candidates.get(g, 0) + nbytes(x)
        joined = None
        if sort_key is not None:
            joined = sorts.get(sort_key)
            if joined is not None:
                _add(joined, Member(array, "full", {}), exprs)
        else:
            ranked = sorted(candidates, key=lambda g: (-candidates[g], -order[g]))
            for g in ranked[:8]:
                if groups.must_follow([p for p in producers if p is not g], g):
                    continue  # joining would make a cycle
                if join(g, array, exprs):
                    joined = g
                    break
        if joined is None:
            joined = _start(array, exprs)
            joined.in_order = in_order
            order[joined] = len(order)
            if sort_key is not None:
                sorts[sort_key] = joined
        groups.add(joined, [p for p in producers if p is not joined])
        joined.weight += weight(exprs)
        home[array] = joined
        for x in reads:
            readers.setdefault(x, {})[joined] = None
    for g in order:
        g.after = set(groups.before[g])
    return _topological(order, groups)


def _topological(order: dict[Group, int], groups: Precedence[Group]) -> list[Group]:
    """Joining can put a group before one it needs; order again, keeping the given order."""
    done: set[Group] = set()
    out: list[Group] = []
    for root in order:
        stack = [root]
        while stack:
            g = stack[-1]
            if g in done:
                stack.pop()
                continue
            waiting = [p for p in groups.before[g] if p not in done]
            if waiting:
                stack.extend(sorted(waiting, key=order.__getitem__))
            else:
                done.add(g)
                out.append(g)
                stack.pop()
    return out


def own_axes(array: Array) -> tuple[list[int], list[int]]:
    """The axes of a definition that are not of size 1: output axes, inner axes."""
    extents = axis_extents(array)
    rank = array.ndim
    real = [k for k, d in extents.items() if isinstance(d, Sym) or d != 1]
    return [k for k in real if k < rank], [k for k in real if k >= rank]


def _start(array: Array, exprs: tuple[Expr, ...]) -> Group:
    """A group of this array alone."""
    extents = axis_extents(array)
    out, inner = own_axes(array)
    if isinstance(array.define, (Pointwise, Reduction)):
        kind = "reduce" if isinstance(array.define, Reduction) else "full"
        group = Group("loop", [extents[k] for k in out], [extents[k] for k in inner])
        member = Member(array, kind, {k: i for i, k in enumerate([*out, *inner])})
    elif isinstance(array.define, Contraction):
        group = Group("contraction", [extents[k] for k in out], [])
        member = Member(array, "full", {k: i for i, k in enumerate(out)})
    else:
        group = Group("special", [], [])
        member = Member(array, "full", {})
    _add(group, member, exprs)
    return group


def _add(group: Group, member: Member, exprs: tuple[Expr, ...]) -> None:
    group.members.append(member)
    group.index[member.array] = member
    if group.kind == "loop":
        for e in loads(exprs):
            index = tuple(_place(i, member.axes) for i in e.args)
            group.loaded.setdefault(e.attr, []).append(index)


def _place(index: Expr, axes: dict[int, int]) -> object:
    """An index in the group's axes: the axis number, or None for anything but a plain axis."""
    return axes.get(index.attr) if index.op == "axis" else None


def join(group: Group, array: Array, exprs: tuple[Expr, ...]) -> bool:
    """Adds the array to the group if their spaces unify and it pays."""
    if not isinstance(array.define, (Pointwise, Reduction)) or group.kind == "special":
        return False
    if group.weight + weight(exprs) > MAX_GROUP_WEIGHT:
        return False
    if not group.dims and group.weight > MAX_POINT_WEIGHT:
        if not any(group.member(e.attr) for e in loads(exprs)):
            return False
    mapping = _unify(group, array, exprs)
    if mapping is None:
        return False
    out, inner = own_axes(array)
    rest = [k for k in (*out, *inner) if k not in mapping]
    if isinstance(array.define, Reduction):
        return group.kind == "loop" and _join_reduction(group, array, exprs, mapping, rest)
    reads_full = any(
        (m := group.member(e.attr)) is not None and m.kind == "full" for e in loads(exprs)
    )
    p = len(group.outer)
    outer_only = not rest and sorted(mapping.values()) == list(range(p))
    if outer_only and (group.inner or group.kind == "contraction"):
        if group.kind == "contraction":
            _add(group, Member(array, "full", mapping), exprs)
            return True
        if reads_full:
            return False
        _add(group, Member(array, "row", mapping), exprs)
        return True
    if group.kind == "contraction":
        return False
    free = [k for k in range(len(group.dims)) if k not in mapping.values()]
    if len(rest) != len(free) or not all(
        same(axis_extents(array)[a], group.dims[b]) for a, b in zip(rest, free, strict=True)
    ):
        return False
    mapping |= dict(zip(rest, free, strict=True))
    if group.inner and not _row_fits(group, array):
        return False
    _add(group, Member(array, "full", mapping), exprs)
    return True


def _join_reduction(
    group: Group, array: Array, exprs: tuple[Expr, ...], mapping: dict[int, int], rest: list[int]
) -> bool:
    out, inner = own_axes(array)
    extents = axis_extents(array)
    assert isinstance(array.define, Reduction)
    columns = array.define.order.startswith("columns")
    p = len(group.outer)
    if not group.inner and not any(m.kind == "reduce" for m in group.members):
        # A pointwise group: split its space into this reduction's outer and inner axes.
        if rest or len(mapping) != p or not inner:
            return False
        new_outer, new_inner = [mapping[k] for k in out], [mapping[k] for k in inner]
        if not _parallel_enough([group.outer[k] for k in new_outer], group.outer):
            return False
        if group.weight > HEAVY and sums_columns(array):
            return False
        _respace(group, new_outer, new_inner)
        place = {old: new for new, old in enumerate([*new_outer, *new_inner])}
        _add(group, Member(array, "reduce", {k: place[v] for k, v in mapping.items()}), exprs)
        return True
    free = [k for k in range(len(group.dims)) if k not in mapping.values()]
    if len(rest) != len(free) or not all(
        same(extents[a], group.dims[b]) for a, b in zip(rest, free, strict=True)
    ):
        return False
    mapping |= dict(zip(rest, free, strict=True))
    if columns and _sums_over_rows(group, array, mapping):
        _add(group, Member(array, "column", mapping), exprs)
        return True
    if columns and any(m.kind == "column" for m in group.members):
        return False
    if any(mapping[k] >= p for k in out) or any(mapping[k] < p for k in inner):
        return False
    placed = [mapping[k] for k in inner]
    if placed != sorted(placed) or len(placed) != len(group.inner):
        return False
    depends = any(group.member(e.attr) is not None for e in loads(exprs))
    if depends and not _row_fits(group, array):
        return False
    _add(group, Member(array, "reduce", mapping), exprs)
    return True


def _sums_over_rows(group: Group, array: Array, mapping: dict[int, int]) -> bool:
    """Whether a reduction over the outer axes can be made while the rows of a group pass by."""
    out, inner = own_axes(array)
    p, dims = len(group.outer), group.dims
    if not group.in_order or not group.inner or not is_static(group.inner):
        return False
    if array.define.combine.startswith("arg"):  # type: ignore[union-attr]
        return False
    if [mapping[k] for k in out] != list(range(p, len(dims))):
        return False
    if [mapping[k] for k in inner] != list(range(p)):
        return False
    for m in group.members:
        d = m.array.define
        if m.kind == "reduce" and isinstance(d, Reduction) and d.order.startswith("columns"):
            return False
    if hint(prod(group.inner)) * array.dtype.itemsize > ROW_BYTES:
        return False
    blocks = hint(prod(group.outer)) // SUM_ROWS
    return blocks >= MIN_ROWS or hint(prod(dims)) <= SERIAL_WORK


def _row_fits(group: Group, array: Array) -> bool:
    """Whether another pass over the row is cheap, and enough rows are left to run in parallel."""
    row = hint(prod(group.inner)) * array.dtype.itemsize
    return row <= ROW_BYTES and _parallel_enough(group.outer, group.dims)


def _parallel_enough(outer: list[Dim], dims: list[Dim]) -> bool:
    return hint(prod(outer)) >= MIN_ROWS or hint(prod(dims)) <= SMALL_WORK


def _respace(group: Group, outer: list[int], inner: list[int]) -> None:
    """Makes a pointwise group's axes `outer` and `inner` (old numbers) the new space."""
    place: dict[object, object] = {old: new for new, old in enumerate([*outer, *inner])}
    place[None] = None
    dims = group.outer
    group.outer, group.inner = [dims[k] for k in outer], [dims[k] for k in inner]
    for m in group.members:
        m.axes = {k: place[v] for k, v in m.axes.items()}  # type: ignore[misc]
    group.loaded = {
        a: [tuple(place[i] for i in index) for index in many] for a, many in group.loaded.items()
    }


def _unify(group: Group, array: Array, exprs: tuple[Expr, ...]) -> dict[int, int] | None:
    """Own axis -> group axis, forced by loads of members, suggested by loads in common.

    None where a load of a member is not at the member's own point.
    """
    extents = axis_extents(array)
    mapping: dict[int, int] = {}
    shared = []
    for e in loads(exprs):
        member = group.member(e.attr)
        if member is None:
            shared.append(e)
            continue
        if member.kind == "column":
            return None
        for k, index in enumerate(e.args):
            if k not in member.axes:
                if index.op != "const":
                    return None
                continue
            target = member.axes[k]
            if index.op != "axis" or mapping.get(index.attr, target) != target:
                return None
            if not same(extents[index.attr], group.dims[target]):
                return None
            mapping[index.attr] = target
    if len(set(mapping.values())) != len(mapping):
        return None
    for e in shared:
        for places in group.loaded.get(e.attr, []):
            trial = dict(mapping)
            for index, place in zip(e.args, places, strict=True):
                if index.op == "axis" and isinstance(place, int):
                    if trial.get(index.attr, place) != place:
                        break
                    if not same(extents[index.attr], group.dims[place]):
                        break
                    trial[index.attr] = place
            else:
                if len(set(trial.values())) == len(trial):
                    mapping = trial
                    break
    return mapping
