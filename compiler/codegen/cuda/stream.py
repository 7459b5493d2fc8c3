"""Streams on the GPU: contractions of which a block makes a tile, uses it and forgets it.

A chain whose first kernels are contractions (`passes/stream.py`): a block has some rows, and goes
along their columns by tiles. The products of a tile are in registers (`micro.py`); what is made of
them, element by element, is either reduced over the columns, each thread its own and then the
block, or is the left operand of a second contraction, which goes through shared memory and is
multiplied while it is there. So no score of attention is in memory, forward or backward.

A softmax's maximum and sum are one pass: the sum is scaled when the maximum grows (Milakov and
Gimelshein 2018, "Online normalizer calculation for softmax").
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.combine import Combine
from jitgrad.compiler.codegen.cuda.contraction import Epilogue, Side, Slices
from jitgrad.compiler.codegen.cuda.micro import Micro, Registers, choose
from jitgrad.compiler.codegen.cuda.special import Flat
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Part, Scope
from jitgrad.compiler.kernels import ChainKernel, ContractionKernel, LoopKernel, Reduce
from jitgrad.compiler.loops import Array, Contraction, Expr, axis, load, loads, make, rewrite
from jitgrad.compiler.symbolic import Dim, hint, prod
from jitgrad.runtime import dtypes

_UNROLLED = 16


def stream(kernel: ChainKernel, symbol: str, target: CudaTarget) -> Part:
    """The kernel of a chain: contractions, then a contraction or a loop that reads them."""
    *products, end = kernel.kernels
    if isinstance(end, ContractionKernel):
        return _Products(products, end, symbol, target).part()
    assert isinstance(end, LoopKernel)
    return _Reductions(products, end, symbol, target).part()


class _Stream:
    """A block's tiles of some contractions of one shape (..., rows, columns), or with `flipped` of
    (..., columns, rows): `values` are what is made of an element of each."""

    def __init__(
        self, products: Sequence[ContractionKernel], extents: dict[int, Dim],
        values: Sequence[Expr], flipped: bool, symbol: str, target: CudaTarget,
        end: ContractionKernel | None = None,
    ) -> None:  # fmt: skip
        self.symbol, self.target, self.flipped = symbol, target, flipped
        self.arrays = [k.array for k in products]
        self.contractions: list[Contraction] = [k.contraction for k in products]
        shape = self.arrays[0].shape
        self.rank = len(shape)
        self.batch = shape[:-2]
        self.count = hint(prod(self.batch))
        self.M, self.N = (hint(d) for d in (shape[:-3:-1] if flipped else shape[-2:]))
        self.micros = self._micros(end)
        self.micro = self.micros[0]
        self.flat = Flat(extents, [])
        self.results = {a: Array(a.name, (), a.dtype) for a in self.arrays}
        self.own: dict[Array, Array] = {r: r for r in self.results.values()}
        self.values = [self.local(v) for v in values]
        self.slices, self.operands = [], []
        for c, micro in zip(self.contractions, self.micros, strict=True):
            inside = dict(enumerate([*shape, *c.k]))
            depth = range(self.rank, self.rank + len(c.k))
            flat = Flat(inside, [])
            flat.operands = self.flat.operands
            self.slices.append(Slices(inside, depth, c.acc, micro))
            self.operands.append((flat.expr(c.a), flat.expr(c.b)))

    def _micros(self, end: ContractionKernel | None) -> list[Micro]:
        """The same way for all, so that a thread has the same elements of each, and that of the
        second contraction."""
        found: list[Micro] = []
        for c in self.contractions:
            found.append(self._choice(c, self.N, hint(prod(c.k))))
        kinds = {(type(m), getattr(m, "dtype", None)) for m in found}
        if end is not None:
            m = self._choice(end.contraction, hint(end.array.shape[-1]), self.N)
            kinds.add((type(m), getattr(m, "dtype", None)))
        if len(kinds) > 1:
            return [Registers(self.target.tile, c.acc) for c in self.contractions]
        return found

    def _choice(self, c: Contraction, columns: int, depth: int) -> Micro:
        return choose(c, (self.count, self.M, columns, depth), self.target, False)

    def local(self, e: Expr) -> Expr:
        """An expression that reads tiles' elements, and other arrays by offset."""

        def own(x: Expr) -> Expr | None:
            if x.op == "load" and x.attr in self.results:
                return load(self.results[x.attr], ())
            return None

        return self.flat.local(rewrite(e, own), self.own)

    # -- the parts of the code ---------------------------------------------------------------------
    def begin(self, w: KernelWriter) -> None:
        """Shared memory for slices, which all contractions use in turn, and sums for each."""
        w.threads = self.micro.threads
        self.micro.begin(w)
        for m in self.micros[1:]:
            again = copy.copy(m)
            vars(m).update(vars(self.micro))
            m.sums = w.local(again.size, m.acc)
        self.ahead = [self.slices[0].ahead(w, n) for n in (self.micro.rows, self.micro.cols)]

    def tiles(self, w: KernelWriter, point: Scope) -> None:
        """The products of the tile at `row` and `start`."""
        micro = self.micro
        for c, slices, (a, b) in zip(self.contractions, self.slices, self.operands, strict=True):
            groups = (c.n, c.m) if self.flipped else (c.m, c.n)
            left, right = (b, a) if self.flipped else (a, b)
            sides = [
                Side("row", str(self.M), micro.rows, groups[0], left, micro.a, self.ahead[0]),
                Side("start", str(self.N), micro.cols, groups[1], right, micro.b, self.ahead[1]),
            ]
            inner = Scope(w, {**slices.ones(), **self.batch_axes(point)}, {})
            slices.clear(w)
            depth = prod(c.k)
            slices.products(w, inner, sides, "0", str(depth))

    def batch_axes(self, point: Scope) -> dict[int, str]:
        return {k: point.axes[k] for k in range(self.rank - 2)}

    def point(self, w: KernelWriter, number: str) -> Scope:
        """The scope of a batch index."""
        scope = Scope(w, {k: "0" for k, d in enumerate(self.batch) if d == 1}, {})
        w.unflatten(number, self.slices[0].space(range(self.rank - 2)), scope)
        return scope

    def element(self, w: KernelWriter, point: Scope, row: int, column: int) -> Scope:
        """The scope of the thread's element n of the tile, whose place is in r and c."""
        scope = point.child()
        scope.axes[row] = w.let("row + r", "j")
        scope.axes[column] = w.let("start + c", "j")
        for a, c, micro in zip(self.arrays, self.contractions, self.micros, strict=True):
            held = scalar.cast(f"{micro.sums}[n]", c.acc, a.dtype)
            scope.locals[self.results[a]] = w.let(held)
        return scope

    def elements(self, w: KernelWriter) -> list[str]:
        """Headers of loops over the thread's elements, short enough to be unrolled."""
        size = self.micro.size
        return [
            f"for n in range({k}, {min(k + _UNROLLED, size)}):" for k in range(0, size, _UNROLLED)
        ]

    def inside(self) -> str:
        return f"if row + r < {self.M} and start + c < {self.N}:"


class _Products(_Stream):
    """The sums over columns of what is made of the tiles, times another operand."""

    def __init__(
        self, products: Sequence[ContractionKernel], end: ContractionKernel, symbol: str,
        target: CudaTarget,
    ) -> None:  # fmt: skip
        c, rank = end.contraction, end.array.ndim
        extents = dict(enumerate([*end.array.shape, *c.k]))
        arrays = {k.array for k in products}
        index = next(e.args for e in loads([c.a]) if e.attr in arrays)
        flipped = index[-1] is not axis(rank)
        super().__init__(products, extents, [c.a], flipped, symbol, target, end)
        self.end, self.c = end, c
        self.width = hint(end.array.shape[-1])
        self.second = self.micro.wider(1 if self.width <= self.micro.cols else 2)
        self.last = Slices(extents, (rank,), c.acc, self.second)

    def part(self) -> Part:
        flat, c, micro, second = self.flat, self.c, self.micro, self.second
        right = flat.expr(c.b)
        epilogue = Epilogue(self.end, flat, self.last)
        w = flat.writer(self.symbol, self.target)
        self.begin(w)
        second.begin(w, micro.cols // second.step)
        ahead = self.last.ahead(w, second.cols)
        col_tiles, row_tiles = -(-self.width // second.cols), -(-self.M // micro.rows)
        total = row_tiles * col_tiles * self.count
        with w.block(f"for tile in range(cuda.blockIdx.x, {total}, cuda.gridDim.x):"):
            w.line(f"col = tile % {col_tiles} * {second.cols}")
            w.line(f"row = tile // {col_tiles} % {row_tiles} * {micro.rows}")
            point = self.point(w, w.let(f"tile // {row_tiles * col_tiles}", "number"))
            outer = Scope(w, {**self.last.ones(), **self.batch_axes(point)}, {})
            self.last.clear(w)
            side = Side("col", str(self.width), second.cols, c.n, right, second.b, ahead)
            with w.block(f"for start in range(0, {self.N}, {micro.cols}):"):
                self.tiles(w, point)
                self._hand_on(w, point)
                end = w.let(f"min(start + {micro.cols}, {self.N})", "end")
                left = f"((first - start) // {second.step})"
                self.last.products(w, outer, [side], "start", end, left)
            r, s = second.place()
            for k in range(0, second.size, _UNROLLED):
                with w.block(f"for n in range({k}, {min(k + _UNROLLED, second.size)}):"):
                    w.line(f"r = row + {r}")
                    w.line(f"s = col + {s}")
                    with w.block(f"if r < {self.M} and s < {self.width}:"):
                        epilogue.emit(w, outer, "r", "s", f"{second.sums}[n]")
        return Part(w, total, 1)

    def _hand_on(self, w: KernelWriter, point: Scope) -> None:
        """What is made of the tile goes to shared memory, zeros outside."""
        (value,), second, rank = self.values, self.second, self.rank
        r, c = self.micro.place()
        for header in self.elements(w):
            with w.block(header):
                w.line(f"r = {r}")
                w.line(f"c = {c}")
                got = w.let(scalar.constant(0, self.c.acc), "got")
                with w.block(self.inside()):
                    scope = self.element(w, point, rank - 2, rank)
                    w.line(f"{got} = {scalar.cast(scope.value(value), value.dtype, self.c.acc)}")
                w.line(f"k = c % {second.step}")
                second.put(w, second.a, second.rows, f"(c // {second.step})", got)
        w.line("cuda.syncthreads()")


class _Reductions(_Stream):
    """Reductions over columns of what is made of the tiles, stored for each row."""

    def __init__(
        self, products: Sequence[ContractionKernel], end: LoopKernel, symbol: str,
        target: CudaTarget,
    ) -> None:  # fmt: skip
        reduces = [r for s in end.stages for r in s.reduces]
        self.online = is_online(reduces)
        used = reduces[:1] if self.online else reduces
        shape = products[0].array.shape
        extents = dict(enumerate(shape))
        super().__init__(products, extents, [r.value for r in used], False, symbol, target)
        self.reduces = reduces
        self.own.update({r.array: r.array for r in reduces})
        self.stores = [
            (*self.flat.place(t.array, t.index), self.local(t.value))
            for s in end.stages for t in s.stores
        ]  # fmt: skip

    def part(self) -> Part:
        micro = self.micro
        w = self.flat.writer(self.symbol, self.target)
        self.begin(w)
        accs = [Combine(r.combine, r.value.dtype) for r in self.reduces]
        own = [w.local(micro.own_rows, r.value.dtype) for r in self.reduces]
        shared = [w.shared(micro.rows * micro.sharing, r.value.dtype) for r in self.reduces]
        row_tiles = -(-self.M // micro.rows)
        total = row_tiles * self.count
        with w.block(f"for tile in range(cuda.blockIdx.x, {total}, cuda.gridDim.x):"):
            w.line(f"row = tile % {row_tiles} * {micro.rows}")
            point = self.point(w, w.let(f"tile // {row_tiles}", "number"))
            with w.block(f"for i in range({micro.own_rows}):"):
                for a, place in zip(accs, own, strict=True):
                    a.reset(w, [f"{place}[i]"])
            with w.block(f"for start in range(0, {self.N}, {micro.cols}):"):
                self.tiles(w, point)
                self._take(w, point, accs, own)
            with w.block(f"for i in range({micro.own_rows}):"):
                at = w.let(f"({micro.row('i')}) * {micro.sharing} + {micro.place_in_row()}", "at")
                for place, array in zip(own, shared, strict=True):
                    w.line(f"{array}[{at}] = {place}[i]")
            w.line("cuda.syncthreads()")
            with w.block(f"for r in range(t, {micro.rows}, {micro.threads}):"):
                self._store(w, point, accs, shared)
            w.line("cuda.syncthreads()")
        return Part(w, total, 1)

    def _take(
        self, w: KernelWriter, point: Scope, accs: Sequence[Combine], own: Sequence[str]
    ) -> None:
        """Each thread's accumulators take the elements of a tile."""
        r, c = self.micro.place()
        for header in self.elements(w):
            with w.block(header):
                w.line(f"r = {r}")
                w.line(f"c = {c}")
                with w.block(self.inside()):
                    scope = self.element(w, point, self.rank - 2, self.rank - 1)
                    values = scope.values(self.values)
                    i = w.let(self.micro.own_row("n"), "mine")
                    if self.online:
                        w.line(
                            f"{own[0]}[{i}], {own[1]}[{i}] = online({own[0]}[{i}], {own[1]}[{i}], "
                            f"{values[0]}, f32(1.0))"
                        )
                        continue
                    for a, place, value in zip(accs, own, values, strict=True):
                        a.add(w, [f"{place}[{i}]"], [value])

    def _store(
        self, w: KernelWriter, point: Scope, accs: Sequence[Combine], shared: Sequence[str]
    ) -> None:
        """Combines the threads' parts of a row, in order, and stores what is made of them."""
        names = [a.start(w)[0] for a in accs]
        with w.block(f"for k in range({self.micro.sharing}):"):
            parts = [f"{array}[r * {self.micro.sharing} + k]" for array in shared]
            if self.online:
                state = ", ".join(names)
                w.line(f"{state} = online({', '.join([*names, *parts])})")
            else:
                for a, name, part in zip(accs, names, parts, strict=True):
                    a.add(w, [name], [part])
        if self.online:  # as exp(x - maximum) would be
            with w.block(f"if not ({names[0]} > f32(-inf) and {names[0]} < f32(inf)):"):
                w.line(f"{names[1]} = f32(nan)")
        with w.block(f"if row + r < {self.M}:"):
            scope = point.child()
            scope.axes[self.rank - 2] = w.let("row + r", "j")
            for reduce, name in zip(self.reduces, names, strict=True):
                scope.locals[reduce.array] = name
            for array, offset, value in self.stores:
                scope.store(array, offset, scope.value(value))


def is_online(reduces: Sequence[Reduce]) -> bool:
    """Whether the second of two reductions is the sum of exp(x - the first, the maximum of x)."""
    if [r.combine for r in reduces] != ["max", "sum"]:
        return False
    first, second = reduces
    if first.value.dtype is not dtypes.float32:
        return False
    return second.value is make("exp", first.value - load(first.array, ()))
