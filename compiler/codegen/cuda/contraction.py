"""Tiled contractions on the GPU: matmul, einsum, convolution and its gradients.

A block computes a tile of (rows, columns) of one batch: slices of both operands go through shared
memory, read by whatever their index expressions say (so transposes and the windows of convolutions
need no copies), each thread accumulates some rows and columns of the tile in registers, and the
epilogue is applied before the store. Products are added in the order of k, by fma for floats. Where
tiles are few and k is long, k is split: parts are summed in order by a second kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.special import Flat
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Part, Scope
from jitgrad.compiler.codegen.schedule import Space, coefficient, constant_of
from jitgrad.compiler.kernels import ContractionKernel
from jitgrad.compiler.loops import (
    Array,
    Expr,
    axis,
    load,
    loads,
    rewrite,
)
from jitgrad.compiler.symbolic import Dim, Sym, is_static, prod
from jitgrad.runtime.dtypes import DType

_DEPTH = 256  # the least k of a part
_TILES = 128  # so many tiles keep a GPU busy


def contraction(kernel: ContractionKernel, symbol: str, target: CudaTarget) -> list[Part]:
    """One kernel, or two where k is split."""
    return _Tiles(kernel, symbol, target).kernels()


class _Tiles:
    def __init__(self, kernel: ContractionKernel, symbol: str, target: CudaTarget) -> None:
        self.kernel, self.symbol, self.target = kernel, symbol, target
        c = self.c = kernel.contraction
        rank, shape = kernel.array.ndim, kernel.array.shape
        self.extents: dict[int, Dim] = {
            **dict(enumerate(shape)),
            **{rank + j: d for j, d in enumerate(c.k)},
        }
        self.depth = tuple(rank + j for j in range(len(c.k)))
        self.M, self.N = (prod(shape[a] for a in group) for group in (c.m, c.n))
        self.count, self.K = prod(shape[a] for a in c.batch), prod(c.k)
        self.rows, self.cols, self.step, self.each_row, self.each_col = target.tile
        self.threads = (self.rows // self.each_row) * (self.cols // self.each_col)
        self.tiles = -(-self.M // self.rows) * -(-self.N // self.cols) * self.count
        self.splits = self._splits()
        self.partial: Array | None = None
        if self.splits > 1:
            self.partial = Array("partial", (self.splits * self.count * self.M * self.N,), c.acc)

    def _splits(self) -> int:
        if not is_static([self.tiles, self.K]):
            return 1
        tiles, depth = int(self.tiles), int(self.K)
        least = _DEPTH if not self.target.simulated else 16
        wanted = _TILES if not self.target.simulated else 2
        return max(1, min(wanted // max(tiles, 1), depth // least))

    def kernels(self) -> list[Part]:
        first = self._products()
        if self.partial is None:
            return [first]
        first.writer.workspace.append(self.partial)
        return [first, self._sums()]

    def _flat(self) -> Flat:
        arrays = [self.kernel.array, *(s.array for s in self.kernel.stores)]
        return Flat(self.extents, arrays)

    def _space(self, group: Sequence[int]) -> Space:
        wide = [a for a in group if isinstance(self.extents[a], Sym) or self.extents[a] != 1]
        return Space(wide, [self.extents[a] for a in wide])

    def _ones(self) -> dict[int, str]:
        return {a: "0" for a, d in self.extents.items() if not isinstance(d, Sym) and d == 1}

    # -- products ----------------------------------------------------------------------------------
    def _products(self) -> Part:
        flat, c = self._flat(), self.c
        a, b = flat.expr(c.a), flat.expr(c.b)
        epilogue = _Epilogue(self, flat) if self.partial is None else None
        partial = None if self.partial is None else flat.operands.array(self.partial)
        w = flat.writer(self.symbol, self.target)
        w.threads = self.threads
        M, N, K, count = (w.dim(d) for d in (self.M, self.N, self.K, self.count))
        rows, cols, step = self.rows, self.cols, self.step
        across = self.cols // self.each_col
        tile_a, tile_b = w.shared(rows * step, c.acc), w.shared(cols * step, c.acc)
        acc = w.local(self.each_row * self.each_col, c.acc)
        w.line("t = cuda.threadIdx.x")
        w.line(f"ty, tx = t // {across}, t % {across}")
        col_tiles = w.let(f"({N} + {cols - 1}) // {cols}", "tiles")
        row_tiles = w.let(f"({M} + {rows - 1}) // {rows}", "tiles")
        total = w.let(f"{row_tiles} * {col_tiles} * {count} * {self.splits}", "total")
        with w.block(f"for tile in range(cuda.blockIdx.x, {total}, cuda.gridDim.x):"):
            w.line(f"col = tile % {col_tiles} * {cols}")
            w.line(f"row = tile // {col_tiles} % {row_tiles} * {rows}")
            w.line(f"number = tile // ({row_tiles} * {col_tiles})")
            k0, k1 = "0", K
            if self.splits > 1:
                part = -(-int(self.K) // self.splits)
                w.line(f"split = number // {count}")
                w.line(f"number = number % {count}")
                k0 = w.let(f"split * {part}", "k")
                k1 = w.let(f"min({k0} + {part}, {K})", "k")
            point = Scope(w, self._ones(), {})
            w.unflatten("number", self._space(c.batch), point)
            size = self.each_row * self.each_col
            with w.block(f"for n in range({size}):"):
                w.line(f"{acc}[n] = {scalar.constant(0, c.acc)}")
            with w.block(f"for first in range({k0}, {k1}, {step}):"):
                self._fetch(w, point, tile_a, a, ("row", M, rows, c.m), k1)
                self._fetch(w, point, tile_b, b, ("col", N, cols, c.n), k1)
                w.line("cuda.syncthreads()")
                self._multiply(w, acc, tile_a, tile_b)
                w.line("cuda.syncthreads()")
            with w.block(f"for n in range({size}):"):
                w.line(f"r = row + ty * {self.each_row} + n // {self.each_col}")
                w.line(f"s = col + tx + n % {self.each_col} * {across}")
                with w.block(f"if r < {M} and s < {N}:"):
                    if epilogue is None:
                        assert partial is not None
                        at = f"((split * {count} + number) * {M} + r) * {N} + s"
                        w.line(f"{w.array(partial)}[{at}] = {acc}[n]")
                    else:
                        epilogue.emit(w, point, "r", "s", f"{acc}[n]")
        tiles = self.tiles * self.splits
        return Part(w, tiles, 1)

    def _fetch(
        self,
        w: KernelWriter,
        point: Scope,
        into: str,
        operand: Expr,
        side: tuple[str, str, int, Sequence[int]],
        end: str,
    ) -> None:
        """A slice of one operand: into[k][r], zeros outside. Threads run along what lies side by
        side in memory."""
        start, extent, size, group = side
        with w.block(f"for e in range(t, {size * self.step}, {self.threads}):"):
            if self._along(operand, self.depth) > self._along(operand, group):
                w.line(f"r, k = e // {self.step}, e % {self.step}")
            else:
                w.line(f"r, k = e % {size}, e // {size}")
            value = w.let(scalar.constant(0, self.c.acc), "got")
            with w.block(f"if {start} + r < {extent} and first + k < {end}:"):
                scope = point.child()
                w.unflatten(w.let(f"{start} + r", "j"), self._space(group), scope)
                w.unflatten(w.let("first + k", "j"), self._space(self.depth), scope)
                text = scalar.cast(scope.value(operand), operand.dtype, self.c.acc)
                w.line(f"{value} = {text}")
            w.line(f"{into}[k * {size} + r] = {value}")

    def _along(self, operand: Expr, group: Sequence[int]) -> int:
        """How many loads of an operand have neighbours along a group's last axis."""
        space = self._space(group)
        if not space.axes:
            return 0
        from_last = axis(space.axes[-1])
        s = Flat(self.extents, []).simplifier
        found = [coefficient(s.poly(x.args[0]), from_last) for x in loads([operand]) if x.args]
        return sum(constant_of(p) == 1 for p in found)

    def _multiply(self, w: KernelWriter, acc: str, tile_a: str, tile_b: str) -> None:
        """Every product of the slices of a tile."""
        c, across = self.c, self.cols // self.each_col
        with w.block(f"for k in range({self.step}):"):
            left = [
                w.let(f"{tile_a}[k * {self.rows} + ty * {self.each_row} + {i}]")
                for i in range(self.each_row)
            ]
            right = [
                w.let(f"{tile_b}[k * {self.cols} + tx + {j * across}]")
                for j in range(self.each_col)
            ]
            for i, x in enumerate(left):
                for j, y in enumerate(right):
                    at = f"{acc}[{i * self.each_col + j}]"
                    w.line(f"{at} = {product(x, y, at, c.acc)}")

    # -- the sum of the parts ----------------------------------------------------------------------
    def _sums(self) -> Part:
        flat, c = self._flat(), self.c
        assert self.partial is not None
        partial = flat.operands.array(self.partial)
        epilogue = _Epilogue(self, flat)
        w = flat.writer(self.symbol + "_sum", self.target)
        M, N, count = int(self.M), int(self.N), int(self.count)
        with w.block(f"for p in range(cuda.grid(1), {count * M * N}, cuda.gridsize(1)):"):
            total = w.let(scalar.constant(0, c.acc), "acc")
            with w.block(f"for n in range({self.splits}):"):
                part = f"{w.array(partial)}[n * {count * M * N} + p]"
                w.line(f"{total} = {scalar.arithmetic('add', c.acc, [total, part])}")
            point = Scope(w, self._ones(), {})
            w.line(f"r = p // {N} % {M}")
            w.line(f"s = p % {N}")
            number = w.let(f"p // {M * N}", "j")
            w.unflatten(number, self._space(c.batch), point)
            epilogue.emit(w, point, "r", "s", total)
        return Part(w, count * M * N, w.threads)


class _Epilogue:
    """The stores of a contraction, at one (row, column) of its result."""

    def __init__(self, tiles: _Tiles, flat: Flat) -> None:
        self.tiles, kernel = tiles, tiles.kernel
        self.result = Array("result", (), kernel.array.dtype)

        def own(e: Expr) -> Expr:
            return rewrite(
                e,
                lambda x: (
                    load(self.result, ()) if x.op == "load" and x.attr is kernel.array else None
                ),
            )

        # A scalar of the kernel's own: no operand.
        local = {self.result: self.result}
        self.stores = []
        for s in kernel.stores:
            value = flat.local(own(s.value), local)
            self.stores.append((*flat.place(s.array, s.index), value))

    def emit(self, w: KernelWriter, point: Scope, row: str, col: str, value: str) -> None:
        tiles = self.tiles
        scope = point.child()
        w.unflatten(row, tiles._space(tiles.c.m), scope)
        w.unflatten(col, tiles._space(tiles.c.n), scope)
        text = scalar.cast(value, tiles.c.acc, self.result.dtype)
        scope.locals[self.result] = w.let(text)
        values = [w.let(v) for v in scope.values([v for _, _, v in self.stores])]
        for (array, offset, _), v in zip(self.stores, values, strict=True):
            scope.store(array, offset, v)


def product(x: str, y: str, total: str, dtype: DType) -> str:
    """x * y + total."""
    if dtype.is_floating_point:
        return scalar.arithmetic("fma", dtype, [x, y, total])
    return scalar.arithmetic("add", dtype, [scalar.arithmetic("mul", dtype, [x, y]), total])
