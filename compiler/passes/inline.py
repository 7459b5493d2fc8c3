"""Inlining: which values become buffers, and which are only a way to index others.

Before: every definition is an Array of its own. After: `bodies[array]` holds, for each array that
stays, its expressions over inputs and other staying arrays; pointwise producers that are cheaper
to compute again than to carry through memory are substituted into their readers.

Rules, for a pointwise producer that is no result (scored by work per point and how often it
would be evaluated): free bodies (movement, casts, constants) go everywhere; a producer with one
reader that evaluates it no more often than it has elements goes there (a heavy one not into a sum
over columns); a cheap one with few loads goes to all its readers. Contractions take only plain
loads at affine indices, since their packing wants addresses, not work.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from jitgrad.compiler.cost import points, weight
from jitgrad.compiler.index import Simplifier, offset
from jitgrad.compiler.loops import (
    JOINT,
    Array,
    Call,
    Contraction,
    Expr,
    Pointwise,
    Reduction,
    Scatter,
    Sort,
    axis,
    definition_exprs,
    load,
    loads,
    postorder,
    rewrite,
)
from jitgrad.compiler.lower import Program
from jitgrad.compiler.symbolic import Dim, hint

MAX_WEIGHT = 500  # a body past this stays an array: beside it a trip through memory is cheap
CHEAP = 12  # work per element that costs less than a trip through memory
HEAVY = 100  # more work per element than this is done in memory order, not in that of a column sum
NARROW = 8  # an array so many times smaller than another costs nothing beside it to read
_MOST_READS = 3  # that are told apart
_NO_PLACE = {"check", "select", "min", "max", "load"}  # in an index: its place is not affine


@dataclass
class Bodies:
    """The staying arrays in order, and the root expressions of each (as definition_exprs)."""

    arrays: list[Array]
    exprs: dict[Array, tuple[Expr, ...]]
    virtual: int  # how many definitions were substituted away


def axis_extents(array: Array) -> dict[int, Dim]:
    """The extents of a definition's axes: its shape, then its inner space."""
    d = array.define
    inner: tuple[Dim, ...] = ()
    if isinstance(d, (Reduction, Scatter)):
        inner = d.extents
    elif isinstance(d, Contraction):
        inner = d.k
    extents = dict(enumerate((*array.shape, *inner)))
    if isinstance(d, Sort):
        extents[d.along] = d.extent
    return extents


def inline(program: Program) -> Bodies:
    """Decides for every array, operands first, and substitutes."""
    readers = _readers(program.arrays)
    keep = {*program.roots, *_called_with(program.arrays)}
    bodies: dict[Array, tuple[Expr, ...]] = {}
    virtual: dict[Array, Expr] = {}
    known: dict[Array, _Summary] = {}
    staying: list[Array] = []
    seen: dict[tuple[Expr, tuple[Dim, ...]], Array] = {}  # equal bodies are one array
    for array in live_arrays(program):
        roots = tuple(_expand(e, array, virtual) for e in definition_exprs(array))
        if isinstance(array.define, Pointwise):
            summary = _summarise(array, known)
            if array not in keep and _goes_inline(array, roots[0], summary, readers[array]):
                known[array] = summary
                virtual[array] = roots[0]
                continue
            twin = seen.setdefault((roots[0], array.shape), array)
            if twin is not array and array not in keep:
                known[array] = _Summary(0, frozenset([twin]), False)
                here = load(twin, tuple(axis(k) for k in range(array.ndim)))
                virtual[array] = Simplifier(axis_extents(array)).simplify(here)
                continue
        bodies[array] = roots
        staying.append(array)
    return Bodies(_still_read(staying, bodies, program.roots), bodies, len(virtual))


def _called_with(arrays: list[Array]) -> set[Array]:
    """The operands of calls: they are read as whole arrays, from memory of their own."""
    return {e.attr for a in arrays if isinstance(a.define, Call) for e in a.define.operands}


def _still_read(
    arrays: list[Array], bodies: dict[Array, tuple[Expr, ...]], roots: list[Array]
) -> list[Array]:
    """The arrays that roots need after substitution, in order. (Simplified indices may have
    dropped the last load of one; all outputs of a sort or call stay.)"""
    needed = set(roots)
    joint: set[object] = set()
    for array in reversed(arrays):
        if array in needed or isinstance(array.define, JOINT) and array.define.key in joint:
            needed.add(array)
            needed.update(e.attr for e in loads(bodies[array]))
            if isinstance(array.define, JOINT):
                joint.add(array.define.key)
    return [
        a for a in arrays
        if a in needed or (isinstance(a.define, JOINT) and a.define.key in joint)
    ]  # fmt: skip


@dataclass(frozen=True)
class _Summary:
    """A pointwise body with what was substituted into it, added up without walking it again
    (shared work counts twice). reads: of arrays about as large as itself, the first few. epilogue:
    it could be computed in a contraction's epilogue."""

    work: int
    reads: frozenset[Array]
    epilogue: bool


def _summarise(array: Array, virtual: dict[Array, _Summary]) -> _Summary:
    own = definition_exprs(array)
    work, epilogue = weight(own), False
    reads: dict[Array, None] = {}
    for e in loads(own):
        below = virtual.get(e.attr)
        narrow = hint(e.attr.numel) * NARROW <= hint(array.numel)
        work += below.work if below else 0
        if not narrow:
            reads.update(dict.fromkeys(below.reads if below else [e.attr]))
        here = e.attr.shape == array.shape and _identity(e.args, array)
        is_contraction = isinstance(e.attr.define, Contraction)
        epilogue |= here and (below.epilogue if below else is_contraction)
    return _Summary(work, frozenset(islice(reads, _MOST_READS)), epilogue)


def live_arrays(program: Program) -> list[Array]:
    """Arrays that some result or check needs, in order."""
    live: set[Array] = set()
    stack = list(program.roots)
    joint: dict[object, list[Array]] = {}  # the outputs that are made together
    for a in program.arrays:
        if isinstance(a.define, JOINT):
            joint.setdefault(a.define.key, []).append(a)
    while stack:
        a = stack.pop()
        if a not in live:
            live.add(a)
            stack.extend(e.attr for e in loads(definition_exprs(a)))
            if isinstance(a.define, JOINT):
                stack.extend(joint[a.define.key])
    return [a for a in program.arrays if a in live]


@dataclass
class _Reader:
    """An array that reads another one: in how many ways it indexes it, which dims of it by an
    index that has a check, and whether it has the same shape and reads at its own point only."""

    array: Array
    ways: int = 0
    checked: frozenset[int] = frozenset()
    at_own_point: bool = True


def _readers(arrays: list[Array]) -> dict[Array, list[_Reader]]:
    """For each array, its readers."""
    readers: dict[Array, list[_Reader]] = {a: [] for a in arrays}
    for a in arrays:
        found: dict[Array, _Reader] = {}
        for e in loads(definition_exprs(a)):
            if e.attr not in readers:
                continue
            reader = found.get(e.attr)
            if reader is None:
                reader = found[e.attr] = _Reader(a)
                readers[e.attr].append(reader)
            reader.ways += 1
            same_space = e.attr.shape == a.shape
            reader.at_own_point &= same_space and _identity(e.args, a)
            reader.checked |= {k for k, index in enumerate(e.args) if index.has_check}
    return readers


def _expand(root: Expr, array: Array, virtual: dict[Array, Expr]) -> Expr:
    """root with loads of virtual arrays replaced by their bodies, and indices simplified."""
    extents = axis_extents(array)
    memo: dict[Array, dict[tuple[Expr, ...], Expr]] = {}

    def leaf(e: Expr) -> Expr | None:
        if e.op != "load" or e.attr not in virtual:
            return None
        found = memo.setdefault(e.attr, {})
        if e.args not in found:
            found[e.args] = _at(virtual[e.attr], e.args, e.attr, extents)
        return found[e.args]

    plain = Simplifier(extents).simplify(root)
    found = rewrite(plain, leaf)
    if found is not plain and found.has_check:
        return Simplifier(extents).simplify(found)  # of an index that is known now
    return found


def _at(body: Expr, index: tuple[Expr, ...], array: Array, extents: dict[int, Dim]) -> Expr:
    """A virtual array's body at an index; nothing to do when the index is the identity. (Bodies
    are simplified, so that the axis of a dim of size 1 is in none.)"""
    if all(
        (i.op == "axis" and i.attr == k) or (i.op == "const" and array.shape[k] == 1)
        for k, i in enumerate(index)
    ):
        return body
    replace = dict(enumerate(index))
    moved = rewrite(body, lambda e: replace[e.attr] if e.op == "axis" else None)
    return Simplifier(extents).simplify(moved)


def _goes_inline(array: Array, body: Expr, summary: _Summary, readers: list[_Reader]) -> bool:
    if summary.work > MAX_WEIGHT or _drops_check(array, body, readers):
        return False
    if _plain_load(array, body):
        return True
    if any(isinstance(r.array.define, Contraction) for r in readers):
        return False
    if summary.work <= 1 and len(summary.reads) <= 1:
        return True
    if summary.work <= CHEAP and not loads([body]):
        return True  # made of the index alone, as a causal mask is
    if summary.epilogue and not all(
        isinstance(r.array.define, Pointwise) and r.at_own_point for r in readers
    ):
        return False
    if any(isinstance(r.array.define, Sort) for r in readers):
        return False
    if summary.work > HEAVY and any(sums_columns(r.array) for r in readers):
        return False
    factor = sum(points(r.array) * r.ways for r in readers) / max(1, hint(array.numel))
    if len(readers) == 1 and factor <= 1.0:
        return True
    return summary.work * factor <= CHEAP and len(summary.reads) <= 1


def sums_columns(array: Array) -> bool:
    """Whether it is a reduction over leading axes."""
    d = array.define
    return isinstance(d, Reduction) and d.order.startswith("columns")


def _drops_check(array: Array, body: Expr, readers: list[_Reader]) -> bool:
    """Whether substitution would lose the check of an index: the body does not use that axis."""
    checked = frozenset[int]().union(*(r.checked for r in readers))
    return not all(body.axes >> k & 1 for k in checked)


def _identity(index: tuple[Expr, ...], array: Array) -> bool:
    """Whether an index is the array's own point; size-1 dims are read at 0."""
    return all(
        (i.op == "axis" and i.attr == k) or (i.op == "const" and array.shape[k] == 1)
        for k, i in enumerate(index)
    )


def _plain_load(array: Array, body: Expr) -> bool:
    """A load, maybe cast, at a place that is affine in the array's axes; or a constant.

    The place in memory counts, not the index: a reshape of a dense array only renames places.
    """
    while body.op == "cast":
        body = body.args[0]
    if body.op != "load":
        return False
    if any(e.op in _NO_PLACE for e in postorder(body.args)):
        return False
    if not any(e.op in ("floordiv", "mod") for e in postorder(body.args)):
        return True
    place = offset(body.attr, body.args, axis_extents(array))
    return not any(e.op in ("floordiv", "mod") for e in postorder([place]))
