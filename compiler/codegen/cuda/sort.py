"""Sorts on the GPU.

A long line is sorted by digits (`radix.py`), all lines at once: keys that sort as the values do,
which go with their places. A short line is one block's: a bitonic network whose comparisons look at
the place too, which makes it stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.radix import Radix
from jitgrad.compiler.codegen.cuda.special import Flat, ones_of, space_of
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Part, Scope
from jitgrad.compiler.loops import Array, Expr, Sort, axis
from jitgrad.compiler.symbolic import Dim, hint, is_static
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_MOST = 1 << 31  # places are of 32 bits


def sort(arrays: Sequence[Array], symbol: str, target: CudaTarget) -> list[Part]:
    """The launches of a stable sort: values and places."""
    define = arrays[0].define
    assert isinstance(define, Sort)
    known = is_static([define.extent, *arrays[0].shape])
    if known and target.long_line <= hint(define.extent) < _MOST:
        return _by_digits(arrays, define, symbol, target)
    return [_by_blocks(arrays, define, symbol, target)]


# -- by digits -------------------------------------------------------------------------------------
def _by_digits(
    arrays: Sequence[Array], define: Sort, symbol: str, target: CudaTarget
) -> list[Part]:
    """Keys that sort as the values do, their sort, and what is wanted of it."""
    along, rank = define.along, arrays[0].ndim
    whole = [define.extent if k == along else d for k, d in enumerate(arrays[0].shape)]
    others = [k for k in range(rank) if k != along]
    lines = prod(int(whole[k]) for k in others)
    bits, text = _key(define.body.dtype)
    radix = Radix(lines, int(define.extent), bits, target)

    flat = Flat(dict(enumerate(whole)), [])
    body = flat.expr(define.body)
    keys, places = flat.operands.array(radix.keys[0]), flat.operands.array(radix.places[0])
    w = flat.writer("keys", target)
    w.workspace += radix.workspace
    order = [*others, along]
    space, ones = (
        space_of(order, [whole[k] for k in order]),
        ones_of(order, [whole[k] for k in order]),
    )
    with w.block(f"for p in range(cuda.grid(1), {w.extent(space)}, cuda.gridsize(1)):"):
        scope = Scope(w, ones, {})
        w.unflatten("p", space, scope)
        key = text.format(scope.value(body))
        if define.descending:
            key = f"({key} ^ {'u64' if bits > 32 else 'u32'}({(1 << bits) - 1}))"
        w.line(f"{w.array(keys)}[p] = {key}")
        w.line(f"{w.array(places)}[p] = i32(p % {radix.count})")
    first = Part(w, space.total, w.threads)

    flat = Flat(dict(enumerate(whole)), list(arrays))
    body = flat.expr(define.body)
    index = tuple(axis(k) for k in range(rank))
    stores = [(a, *flat.place(a, index)) for a in arrays]
    found = flat.operands.array(radix.sorted_places)
    w = flat.writer(symbol, target)
    count = arrays[0].shape[along]
    sizes = [count if k == along else whole[k] for k in order]
    space = space_of(order, sizes)
    with w.block(f"for p in range(cuda.grid(1), {w.extent(space)}, cuda.gridsize(1)):"):
        point = Scope(w, ones_of(order, sizes), {})
        w.unflatten("p", space, point)
        w.line(f"place = i64({w.array(found)}[p // {count} * {radix.count} + p % {count}])")
        moved = point.child()
        moved.axes[along] = "place"
        for a, stand_in, offset in stores:
            assert isinstance(a.define, Sort)
            point.store(stand_in, offset, "place" if a.define.part else moved.value(body))
    return [first, *radix.parts(), Part(w, space.total, w.threads)]


def _key(dtype: DType) -> tuple[int, str]:
    """How many bits tell values apart, and the text of an unsigned number that sorts as `{}`."""
    if dtype in scalar.HALVES or dtype.is_floating_point:
        return (64, "key_f64({})") if dtype.name == "float64" else (32, "key_f32({})")
    bits = 1 if dtype.name == "bool" else dtype.bits
    kind = "u64" if bits > 32 else "u32"
    if not dtype.signed:
        return bits, f"{kind}({{}})"
    if bits == 64:
        return bits, f"(u64({{}}) ^ u64({1 << 63}))"
    return bits, f"u32(i64({{}}) + {1 << bits - 1})"


# -- by blocks -------------------------------------------------------------------------------------
def _by_blocks(arrays: Sequence[Array], define: Sort, symbol: str, target: CudaTarget) -> Part:
    """A bitonic network over each line by one block, in the memory of the results."""
    along, rank = define.along, arrays[0].ndim
    shape = tuple(define.extent if k == along else d for k, d in enumerate(arrays[0].shape))
    wanted = {a.define.part: a for a in arrays if isinstance(a.define, Sort)}
    # The first elements alone are copied from a sort of all.
    by_part = wanted if arrays[0].shape[along] == define.extent else {}
    spare = [
        by_part.get(0) or Array("values", shape, define.body.dtype),
        by_part.get(1) or Array("places", shape, dtypes.int64),
    ]
    flat = Flat(dict(enumerate(shape)), [*spare, *arrays])
    body = flat.expr(define.body)
    index = tuple(axis(k) for k in range(rank))
    (keys, at), (places, place_at) = (flat.place(a, index) for a in spare)
    firsts = [] if by_part else [(k, *flat.place(a, index)) for k, a in sorted(wanted.items())]
    w = flat.writer(symbol, target)
    w.workspace += [a for k, a in enumerate(spare) if k not in by_part]
    others = [k for k in range(rank) if k != along]
    outer = space_of(others, [shape[k] for k in others])
    count = w.dim(shape[along])
    w.line("t = cuda.threadIdx.x")
    with w.block(f"for p in range(cuda.blockIdx.x, {w.extent(outer)}, cuda.gridDim.x):"):
        point = Scope(w, ones_of(others, [shape[k] for k in others]), {})
        w.unflatten("p", outer, point)
        with w.block(f"for e in range(t, {count}, {w.threads}):"):
            scope = point.child()
            scope.axes[along] = "e"
            scope.store(keys, at, scope.value(body))
            w.line(f"{w.array(places)}[{scope.value(place_at)}] = e")
        w.line("cuda.syncthreads()")
        w.line("width = 2")
        with w.block(f"while width < 2 * {count}:"):
            w.line("reach = width // 2")
            w.line("mirror = width - 1")
            with w.block("while reach > 0:"):
                with w.block(f"for e in range(t, {count}, {w.threads}):"):
                    w.line("other = e ^ mirror")
                    with w.block(f"if e < other and other < {count}:"):
                        _exchange(w, point, along, (keys, at), (places, place_at), define)
                w.line("cuda.syncthreads()")
                w.line("reach //= 2")
                w.line("mirror = reach")
            w.line("width *= 2")
        if firsts:
            _first(
                w, point, along, arrays[0].shape[along], firsts, ((keys, at), (places, place_at))
            )
    return Part(w, outer.total, 1)


def _first(
    w: KernelWriter,
    point: Scope,
    along: int,
    count: Dim,
    firsts: Sequence[tuple[int, Array, Expr]],
    sources: Sequence[tuple[Array, Expr]],
) -> None:
    """Copies the first elements of what was sorted to the results."""
    with w.block(f"for e in range(t, {w.dim(count)}, {w.threads}):"):
        scope = point.child()
        scope.axes[along] = "e"
        for part, target, offset in firsts:
            source, at = sources[part]
            element = f"{w.array(source)}[{scope.value(at)}]"
            w.line(f"{w.array(target)}[{scope.value(offset)}] = {element}")
    w.line("cuda.syncthreads()")


def _exchange(
    w: KernelWriter,
    point: Scope,
    along: int,
    keys: tuple[Array, Expr],
    places: tuple[Array, Expr],
    define: Sort,
) -> None:
    """Puts elements e and other in order."""
    low, high = point.child(), point.child()
    low.axes[along], high.axes[along] = "e", "other"
    where = [w.let(s.value(offset), "j") for s in (low, high) for _, offset in (keys, places)]
    key, place = w.array(keys[0]), w.array(places[0])
    raw = [w.let(f"{(key, place)[k % 2]}[{i}]") for k, i in enumerate(where)]
    x, y = (scalar.loaded(raw[k], keys[0].dtype) for k in (0, 2))
    x, y = w.let(x), w.let(y)
    before = f"({y} {'>' if define.descending else '<'} {x})"
    same = f"({x} == {y})"
    if keys[0].dtype.is_floating_point:
        one, two = (y, x) if define.descending else (x, y)
        before = f"({before} or ({one} != {one} and {two} == {two}))"
        same = f"({same} or ({x} != {x} and {y} != {y}))"
    with w.block(f"if {before} or ({same} and {raw[3]} < {raw[1]}):"):
        for k, i in enumerate(where):
            w.line(f"{(key, place)[k % 2]}[{i}] = {raw[(k + 2) % 4]}")
