"""Chains by blocks of rows: where one batch index is large, a chain takes some rows at a time.

Owns `by_rows`. Before: kernels of a chain, all at one batch index. After: the same kernels with the
axis of rows in two, blocks and rows of a block, so that blocks are batch indices too; or nothing
where a kernel mixes rows (the gradients of keys and values add over them). What one row is computed
from, and in which order, stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.kernels import (
    ContractionKernel,
    Kernel,
    LoopKernel,
    Store,
    kernel_exprs,
    kernel_reads,
    kernel_writes,
)
from jitgrad.compiler.loops import (
    Array,
    Expr,
    axis,
    load,
    loads,
    rewrite,
)
from jitgrad.compiler.symbolic import Dim, hint, prod

TILE_BYTES = 1 << 20  # private memory of one tile that stays near a core
_BLOCKS = (512, 256, 128, 64, 32, 16)


@dataclass
class Rows:
    """The kernels of the chain by rows, what is private to them, how many tiles there are, and the
    kernels that are left to run before."""

    kernels: list[Kernel]
    local: list[Array]
    tiles: int
    before: list[Kernel]


def by_rows(kernels: list[Kernel], local: list[Array], tiles: int) -> Rows | None:
    """The chain by blocks of rows where one tile is large; None where that cannot be, or need
    not be."""
    if sum(map(nbytes, local)) // tiles <= 2 * TILE_BYTES:
        return None
    places = {k: _row_axis(k, tiles) for k in kernels}
    last = kernels[-1]
    at = places[last]
    if at is None:
        return None
    length = _dims(last)[at]
    private = set(local)
    before: list[Kernel] = []
    while True:
        wrong = {
            a for k in kernels for a in _touched(k)
            if a in private and not _by_row(k, places[k], a, tiles, length)
        }  # fmt: skip
        if not wrong:
            break
        private -= wrong
        leaving = [k for k in kernels if wrong.intersection(kernel_writes(k))]
        if any(private.intersection(_touched(k)) for k in leaving):
            return None
        before += leaving
        kernels = [k for k in kernels if k not in leaving]
    where = {k: n for k in kernels if (n := places[k]) is not None}
    if len(kernels) < 2 or len(where) < len(kernels):
        return None
    if any(_dims(k)[n] != length for k, n in where.items()):
        return None
    size = sum(nbytes(a) for a in local if a in private) // tiles
    rows = hint(length)
    fits = [b for b in _BLOCKS if rows % b == 0 and b < rows]
    if not fits:
        return None
    block = next((b for b in fits if size // rows * b <= TILE_BYTES), fits[-1])
    made = [_split(k, where[k], block) for k in kernels]
    return Rows(made, [a for a in local if a in private], tiles * (rows // block), before)


def _dims(k: Kernel) -> tuple[Dim, ...]:
    return k.array.shape if isinstance(k, ContractionKernel) else k.outer  # type: ignore[union-attr]


def _row_axis(k: Kernel, tiles: int) -> int | None:
    """The axis behind those of the tiles, if a kernel has its rows there."""
    dims = _dims(k)
    n = next((n for n in range(len(dims)) if hint(prod(dims[:n])) == tiles), None)
    if n is None:
        return None
    if isinstance(k, ContractionKernel):
        c = k.contraction
        wide = [a for a in range(len(dims)) if dims[a] != 1]
        batch = [a for a in c.batch if a in wide]
        m = [a for a in c.m if a in wide]
        return n if batch == [a for a in wide if a < n] and m == [n] else None
    return n


def _touched(k: Kernel) -> list[Array]:
    return [*kernel_reads(k), *kernel_writes(k)]


def _by_row(k: Kernel, at: int | None, a: Array, tiles: int, length: Dim) -> bool:
    """Whether every access of an array is at the kernel's own row."""
    n = next((n for n in range(a.ndim) if hint(prod(a.shape[:n])) == tiles), None)
    if at is None or n is None or a.shape[n] != length:
        return False
    found = [e.args for e in loads(kernel_exprs(k)) if e.attr is a]
    found += [t.index for t in _stores(k) if t.array is a]
    return all(index[n] is axis(at) for index in found)


def _stores(k: Kernel) -> list[Store]:
    if isinstance(k, LoopKernel):
        return [t for s in k.stages for t in s.stores]
    assert isinstance(k, ContractionKernel)
    return list(k.stores)


def _split(k: Kernel, at: int, block: int) -> Kernel:
    """A kernel with axis `at` in two: blocks, and the rows of a block."""
    both = axis(at) * block + axis(at + 1)
    memo: dict[Expr, Expr] = {}

    def moved(e: Expr) -> Expr:
        return rewrite(e, leaf, memo)

    def store(t: Store) -> Store:
        return replace(t, index=tuple(map(moved, t.index)), value=moved(t.value))

    def dims(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return (*shape[:at], shape[at] // block, block, *shape[at + 1 :])

    renumber: Callable[[int], int] = lambda n: n if n < at else n + 1  # noqa: E731
    if isinstance(k, LoopKernel):

        def leaf(e: Expr) -> Expr | None:
            if e.op != "axis" or e.attr < at:
                return None
            return both if e.attr == at else axis(e.attr + 1)

        stages = [
            replace(
                s,
                stores=tuple(map(store, s.stores)),
                reduces=tuple(replace(r, value=moved(r.value)) for r in s.reduces),
            )
            for s in k.stages
        ]
        return replace(k, outer=dims(k.outer), stages=stages)
    assert isinstance(k, ContractionKernel)
    old, c = k.array, k.contraction
    shape = dims(old.shape)
    made = Array(old.name, shape, old.dtype, None, old.line)
    whole = tuple(axis(n) for n in range(len(shape)))

    def leaf(e: Expr) -> Expr | None:  # type: ignore[no-redef]
        if e.op == "load" and e.attr is old:
            return load(made, whole)
        if e.op != "axis" or e.attr < at:
            return None
        return both if e.attr == at else axis(e.attr + 1)

    made.define = replace(
        c,
        batch=(*map(renumber, c.batch), at),
        m=(*(renumber(x) for x in c.m if x != at), at + 1),
        n=tuple(map(renumber, c.n)),
        a=moved(c.a),
        b=moved(c.b),
    )
    return replace(k, array=made, stores=[store(t) for t in k.stores])
