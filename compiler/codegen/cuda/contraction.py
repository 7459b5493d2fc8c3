"""Tiled contractions on the GPU: matmul, einsum, convolution and its gradients.

A block computes a tile of (rows, columns) of one batch: slices of both operands go through shared
memory, read by whatever their index expressions say (so transposes and the windows of convolutions
need no copies), two at a time, so that one is read while the next comes. `micro.py` multiplies
them, by fma or on tensor cores, in the order of k; the epilogue is applied before the store. Where
tiles are few and k is long, k is split: parts are summed in order by a second kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.blas import Product, product_of
from jitgrad.compiler.codegen.cuda.micro import Micro, Registers, choose
from jitgrad.compiler.codegen.cuda.special import Flat
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, LibraryCall, Part, Scope
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
from jitgrad.compiler.symbolic import Dim, Sym, hint, is_static, prod
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_DEPTH = 256  # the least k of a part
_UNROLLED = 16


def contraction(kernel: ContractionKernel, symbol: str, target: CudaTarget) -> list[Part]:
    """One kernel, or two where k is split; where cuBLAS does the products, its call and at most a
    kernel for the epilogue."""
    tiles = _Tiles(kernel, symbol, target)
    if target.blas:
        product = product_of(kernel, target.blas_least, None)
        if product is not None:
            return [_call(product)]
        sums = tiles.whole()
        product = product_of(kernel, target.blas_least, sums)
        if product is not None:
            return [_call(product), tiles.epilogue_of(sums)]
    return tiles.kernels()


def _call(product: Product) -> Part:
    return Part(LibraryCall("gemm", product.gemm, product.pairs()), 1, 1, tuple(product.operands()))


@dataclass(frozen=True)
class Side:
    """One operand of a tile: where its rows (or columns) start, how many there are in all and in
    the tile, and its axes; its slices in shared memory, and a thread's elements of the next."""

    start: str
    extent: str
    size: int
    group: Sequence[int]
    operand: Expr
    shared: str
    ahead: str


class Slices:
    """How slices of operands go through shared memory, for one way to multiply them (`micro`).

    extents: of all axes; depth: those that are summed over.
    """

    def __init__(
        self, extents: dict[int, Dim], depth: Sequence[int], acc: DType, micro: Micro
    ) -> None:
        self.extents, self.depth, self.acc, self.micro = extents, depth, acc, micro

    def ahead(self, w: KernelWriter, size: int) -> str:
        """The thread's own elements of a slice of `size` rows."""
        return w.local(-(-size * self.micro.step // self.micro.threads), self.acc)

    def space(self, group: Sequence[int]) -> Space:
        wide = [a for a in group if isinstance(self.extents[a], Sym) or self.extents[a] != 1]
        return Space(wide, [self.extents[a] for a in wide])

    def ones(self) -> dict[int, str]:
        return {a: "0" for a, d in self.extents.items() if not isinstance(d, Sym) and d == 1}

    def clear(self, w: KernelWriter) -> None:
        with w.block(f"for n in range({self.micro.size}):"):
            w.line(f"{self.micro.sums}[n] = {scalar.constant(0, self.acc)}")

    def products(
        self, w: KernelWriter, point: Scope, sides: Sequence[Side], k0: str, k1: str,
        left: str = "held",
    ) -> None:  # fmt: skip
        """Sums of products over k0 to k1. left: the slice of the first operand that goes with
        slice `first`, where that operand is in shared memory as a whole."""
        micro = self.micro
        w.strides += [s for side in sides for s in self._strides(side)]
        if all(self._is_plain(w, side) for side in sides):
            self._products_async(w, point, sides, k0, k1, left)
            return
        self._read(w, point, sides, k0, k1)
        self._put(w, sides, "0")
        w.line("cuda.syncthreads()")
        w.line("held = 0")
        # The next slices are on their way from memory while those held are multiplied.
        with w.block(f"for first in range({k0}, {k1}, {micro.step}):"):
            more = w.let(f"first + {micro.step} < {k1}", "more")
            with w.block(f"if {more}:"):
                self._read(w, point, sides, f"first + {micro.step}", k1)
            micro.multiply(w, left)
            with w.block(f"if {more}:"):
                self._put(w, sides, "(1 - held)")
            w.line("cuda.syncthreads()")
            w.line("held = 1 - held")

    def _is_plain(self, w: KernelWriter, side: Side) -> bool:
        """Whether a slice goes to shared memory as it is, so that no register needs to hold it."""
        e, asynchronous = side.operand, w.target.asynchronous and isinstance(self.micro, Registers)
        return asynchronous and e.op == "load" and e.dtype is dtypes.float32 is self.acc

    def _products_async(
        self, w: KernelWriter, point: Scope, sides: Sequence[Side], k0: str, k1: str, left: str
    ) -> None:
        """The same by asynchronous copies from memory to shared memory (PTX's cp.async)."""
        micro = self.micro
        self._fetch(w, point, sides, k0, k1, "0")
        w.line("copies_done()")
        w.line("cuda.syncthreads()")
        w.line("held = 0")
        with w.block(f"for first in range({k0}, {k1}, {micro.step}):"):
            with w.block(f"if first + {micro.step} < {k1}:"):
                self._fetch(w, point, sides, f"first + {micro.step}", k1, "(1 - held)")
            micro.multiply(w, left)
            w.line("copies_done()")
            w.line("cuda.syncthreads()")
            w.line("held = 1 - held")

    def _fetch(
        self, w: KernelWriter, point: Scope, sides: Sequence[Side], start: str, end: str, which: str
    ) -> None:  # fmt: skip
        """Starts the copies of both slices from `start` on into a buffer, zeros outside."""
        for side in sides:
            with self._elements(w, side):
                place = w.let(self.micro.at(side.size, which), "at")
                at = w.let(f"{start} + k", "j")
                with w.block(f"if {side.start} + r < {side.extent} and {at} < {end}:"):
                    scope = point.child()
                    w.unflatten(w.let(f"{side.start} + r", "j"), self.space(side.group), scope)
                    w.unflatten(at, self.space(self.depth), scope)
                    index = scope.value(side.operand.args[0])
                    array = w.array(side.operand.attr)
                    w.line(f"copy_async({side.shared}, {place}, {array}, {index})")
                with w.block("else:"):
                    w.line(f"{side.shared}[{place}] = {scalar.constant(0, self.acc)}")

    def _read(
        self, w: KernelWriter, point: Scope, sides: Sequence[Side], start: str, end: str
    ) -> None:
        """Each thread's elements of both slices from `start` on, zeros outside."""
        for side in sides:
            with self._elements(w, side):
                value = w.let(scalar.constant(0, self.acc), "got")
                at = w.let(f"{start} + k", "j")
                with w.block(f"if {side.start} + r < {side.extent} and {at} < {end}:"):
                    scope = point.child()
                    w.unflatten(w.let(f"{side.start} + r", "j"), self.space(side.group), scope)
                    w.unflatten(at, self.space(self.depth), scope)
                    operand = side.operand
                    text = scalar.cast(scope.value(operand), operand.dtype, self.acc)
                    w.line(f"{value} = {text}")
                w.line(f"{side.ahead}[n] = {value}")

    def _put(self, w: KernelWriter, sides: Sequence[Side], which: str) -> None:
        """The elements that were read go to shared memory."""
        for side in sides:
            with self._elements(w, side):
                self.micro.put(w, side.shared, side.size, which, f"{side.ahead}[n]")

    @contextmanager
    def _elements(self, w: KernelWriter, side: Side) -> Iterator[None]:
        """Element n of a thread is (r, k) of the slice. Threads run along what lies side by side in
        memory."""
        micro = self.micro
        elements = side.size * micro.step
        with w.block(f"for n in range({-(-elements // micro.threads)}):"):
            w.line(f"e = t + n * {micro.threads}")
            if self._by_depth(side):
                w.line(f"r, k = e // {micro.step}, e % {micro.step}")
            else:
                w.line(f"r, k = e % {side.size}, e // {side.size}")
            if elements % micro.threads == 0:
                yield
            else:
                with w.block(f"if e < {elements}:"):
                    yield

    def _along(self, operand: Expr, group: Sequence[int]) -> int:
        """How many loads of an operand have neighbours along a group's last axis."""
        return self._steps(operand, group).count(1)

    def _steps(self, operand: Expr, group: Sequence[int]) -> list[int | None]:
        """How far apart neighbours along a group's last axis are, for each load."""
        space = self.space(group)
        if not space.axes:
            return []
        from_last = axis(space.axes[-1])
        s = Flat(self.extents, []).simplifier
        found = [coefficient(s.poly(x.args[0]), from_last) for x in loads([operand]) if x.args]
        return [constant_of(p) for p in found]

    def _strides(self, side: Side) -> list[int | None]:
        """How far apart neighbouring threads' elements are."""
        return self._steps(side.operand, self.depth if self._by_depth(side) else side.group)

    def _by_depth(self, side: Side) -> bool:
        """Whether neighbouring threads have neighbours along what is summed over."""
        return self._along(side.operand, self.depth) > self._along(side.operand, side.group)


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
        rows, cols, depth, count = (hint(d) for d in (self.M, self.N, self.K, self.count))
        self.micro = choose(c, (count, rows, cols, depth), target)
        self.slices = Slices(self.extents, self.depth, c.acc, self.micro)
        self.tiles = -(-self.M // self.micro.rows) * -(-self.N // self.micro.cols) * self.count
        self.splits = self._splits()
        self.partial: Array | None = None
        if self.splits > 1:
            self.partial = Array("partial", (self.splits * self.count * self.M * self.N,), c.acc)

    def _splits(self) -> int:
        if not is_static([self.tiles, self.K]):
            return 1
        tiles, depth = int(self.tiles), int(self.K)
        least = _DEPTH if not self.target.simulated else 16
        wanted = self.target.busy
        return max(1, min(wanted // max(tiles, 1), depth // least))

    def kernels(self) -> list[Part]:
        first = self._products()
        if self.partial is None:
            return [first]
        assert isinstance(first.writer, KernelWriter)
        first.writer.workspace.append(self.partial)
        return [first, self._sums()]

    def whole(self) -> Array:
        """An array for all sums as one part."""
        return Array("product", (self.count * self.M * self.N,), self.c.acc)

    def epilogue_of(self, sums: Array) -> Part:
        """The kernel that stores what was made of them."""
        self.splits, self.partial = 1, sums
        part = self._sums()
        assert isinstance(part.writer, KernelWriter)
        part.writer.workspace.append(sums)
        return part

    def _flat(self) -> Flat:
        arrays = [self.kernel.array, *(s.array for s in self.kernel.stores)]
        return Flat(self.extents, arrays)

    # -- products ----------------------------------------------------------------------------------
    def _products(self) -> Part:
        flat, c, micro = self._flat(), self.c, self.micro
        a, b = flat.expr(c.a), flat.expr(c.b)
        epilogue = Epilogue(self.kernel, flat, self.slices) if self.partial is None else None
        partial = None if self.partial is None else flat.operands.array(self.partial)
        w = flat.writer(self.symbol, self.target)
        w.threads = micro.threads
        M, N, K, count = (w.dim(d) for d in (self.M, self.N, self.K, self.count))
        micro.begin(w)
        ahead_a, ahead_b = (self.slices.ahead(w, n) for n in (micro.rows, micro.cols))
        col_tiles = w.let(f"({N} + {micro.cols - 1}) // {micro.cols}", "tiles")
        row_tiles = w.let(f"({M} + {micro.rows - 1}) // {micro.rows}", "tiles")
        total = w.let(f"{row_tiles} * {col_tiles} * {count} * {self.splits}", "total")
        with w.block(f"for tile in range(cuda.blockIdx.x, {total}, cuda.gridDim.x):"):
            w.line(f"col = tile % {col_tiles} * {micro.cols}")
            w.line(f"row = tile // {col_tiles} % {row_tiles} * {micro.rows}")
            w.line(f"number = tile // ({row_tiles} * {col_tiles})")
            k0, k1 = "0", K
            if self.splits > 1:
                part = -(-int(self.K) // self.splits)
                w.line(f"split = number // {count}")
                w.line(f"number = number % {count}")
                k0 = w.let(f"split * {part}", "k")
                k1 = w.let(f"min({k0} + {part}, {K})", "k")
            point = Scope(w, self.slices.ones(), {})
            w.unflatten("number", self.slices.space(c.batch), point)
            self.slices.clear(w)
            sides = [
                Side("row", M, micro.rows, c.m, a, micro.a, ahead_a),
                Side("col", N, micro.cols, c.n, b, micro.b, ahead_b),
            ]
            self.slices.products(w, point, sides, k0, k1)
            r, s = micro.place()
            # Loops that are short enough to be unrolled: the sums stay in registers.
            for start in range(0, micro.size, _UNROLLED):
                end = min(start + _UNROLLED, micro.size)
                with w.block(f"for n in range({start}, {end}):"):
                    w.line(f"r = row + {r}")
                    w.line(f"s = col + {s}")
                    with w.block(f"if r < {M} and s < {N}:"):
                        if epilogue is None:
                            assert partial is not None
                            at = f"((split * {count} + number) * {M} + r) * {N} + s"
                            w.line(f"{w.array(partial)}[{at}] = {micro.sums}[n]")
                        else:
                            epilogue.emit(w, point, "r", "s", f"{micro.sums}[n]")
        return Part(w, self.tiles * self.splits, 1)

    # -- the sum of the parts ----------------------------------------------------------------------
    def _sums(self) -> Part:
        flat, c = self._flat(), self.c
        assert self.partial is not None
        partial = flat.operands.array(self.partial)
        epilogue = Epilogue(self.kernel, flat, self.slices)
        w = flat.writer(self.symbol + "_sum", self.target)
        M, N, count = int(self.M), int(self.N), int(self.count)
        with w.block(f"for p in range(cuda.grid(1), {count * M * N}, cuda.gridsize(1)):"):
            total = w.let(scalar.constant(0, c.acc), "acc")
            with w.block(f"for n in range({self.splits}):"):
                part = f"{w.array(partial)}[n * {count * M * N} + p]"
                w.line(f"{total} = {scalar.arithmetic('add', c.acc, [total, part])}")
            point = Scope(w, self.slices.ones(), {})
            w.line(f"r = p // {N} % {M}")
            w.line(f"s = p % {N}")
            number = w.let(f"p // {M * N}", "j")
            w.unflatten(number, self.slices.space(c.batch), point)
            epilogue.emit(w, point, "r", "s", total)
        return Part(w, count * M * N, w.threads)


class Epilogue:
    """The stores of a contraction, at one (row, column) of its result."""

    def __init__(self, kernel: ContractionKernel, flat: Flat, slices: Slices) -> None:
        self.c, self.slices = kernel.contraction, slices
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
        scope = point.child()
        w.unflatten(row, self.slices.space(self.c.m), scope)
        w.unflatten(col, self.slices.space(self.c.n), scope)
        text = scalar.cast(value, self.c.acc, self.result.dtype)
        scope.locals[self.result] = w.let(text)
        values = [w.let(v) for v in scope.values([v for _, _, v in self.stores])]
        for (array, offset, _), v in zip(self.stores, values, strict=True):
            scope.store(array, offset, v)
