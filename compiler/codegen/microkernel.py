"""The register-tiled inner kernel of a contraction, from one template.

Owns the table of tile sizes (from the number of vector registers) and `emit_micro`, which emits

    void micro(i64 kb, ptr a, ptr b, i64 b_step, ptr c, i1 first)

c[mr][nr] (dense, accumulator dtype) = or += the product of a packed panel of A ([kb][mr]) with kb
rows of nr columns of B, b_step elements apart (nr for a packed panel). Every element of the
product is summed in the order of k, from zero, by fused multiply-adds where the target has them;
so its bits do not depend on the tile. `emit_row` is the form for one row by a matrix in place.

Design: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS
Functionality", ACM TOMS 41(3), 2015. The tile fills the registers but for those that hold a row
of B and one broadcast element of A; it must be large enough to hide the latency of the
multiply-add (tile vectors >= latency * multiply-adds a cycle, 8 on most CPUs).
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import (
    I1,
    I32,
    I64,
    PTR,
    VOID,
    Code,
    Int,
    is_float,
    size_of,
    storage_type,
)
from jitgrad.compiler.codegen.dot import DotStep
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.target import Target
from jitgrad.runtime.dtypes import DType

_UNROLL = 2  # more is no faster, and takes longer to compile
_ROWS = 8  # rows that emit_row reads side by side


@dataclass(frozen=True)
class Tile:
    """mr rows by nv vectors of `width` elements."""

    mr: int
    nv: int
    width: int

    @property
    def nr(self) -> int:
        return self.nv * self.width


def vector_registers(target: Target) -> int:
    """How many vector registers the target has."""
    if target.arch in ("aarch64", "arm64") or target.vector_bytes == 64:
        return 32
    return 16


# Tiles as (mr, nv), the best first, by number of vector registers: mr*nv accumulators, nv vectors
# of B and one of A fit. The ones with few rows serve products with few rows.
_TILES = {
    16: ((6, 2), (4, 3), (5, 2), (3, 4), (2, 5), (1, 8)),
    32: ((14, 2), (8, 3), (12, 2), (6, 4), (5, 4), (4, 6), (3, 8), (2, 8), (1, 12)),
}
# With AVX-512 an element of A is an operand in memory, so one vector of B is enough.
NARROW = (16, 1)
# Part of the peak that a tile reaches, roughly: loads and latency cost the small ones.
_WORTH = {(4, 3): 0.97, (5, 2): 0.93, (3, 4): 0.95, (2, 5): 0.85, (1, 8): 0.5}


def candidates(target: Target, acc: DType) -> list[Tile]:
    """The tiles of the target for products of many sizes, the best first."""
    width = max(1, target.vector_bytes // acc.itemsize)
    if target.vector_bytes == 64:
        return [Tile(*NARROW, width)]
    return [Tile(mr, nv, width) for mr, nv in _TILES[vector_registers(target)] if mr > 3]


def choose_tile(
    target: Target, acc: DType, rows: int, cols: int, among: tuple[tuple[int, int], ...] = ()
) -> Tile:
    """The tile that wastes least of its work on a rows x cols result (free to differ); of some, as
    (rows, vectors), the best first, if they are given."""
    width = max(1, target.vector_bytes // acc.itemsize)
    best, best_cost = None, 0.0
    more = (NARROW,) if target.vector_bytes == 64 else ()
    for mr, nv in among or (*_TILES[vector_registers(target)], *more):
        tile = Tile(mr, nv, width)
        padded = -(-max(rows, 1) // mr) * mr * (-(-max(cols, 1) // tile.nr) * tile.nr)
        cost = padded / _WORTH.get((mr, nv), 1.0 if mr > 3 else 0.9)
        if best is None or cost < best_cost * 0.97:
            best, best_cost = tile, cost
    assert best is not None
    return best


def multiply_add(ops: Ops, acc: DType, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, fused where the target can."""
    if is_float(acc) and ops.target.has_fma:
        return ops.intrinsic("fma", [x, y, z])
    return ops.arithmetic("add", acc, [ops.arithmetic("mul", acc, [x, y]), z])


def prefetch(code: Code, address: ir.Value, write: bool, locality: int) -> None:
    """Asks for a line of memory that will be needed soon; locality 3 is L1, 2 is L2."""
    module = code.b.module
    kind = ir.FunctionType(VOID, [PTR, I32, I32, I32])
    name = "llvm.prefetch.p0"
    function = module.globals.get(name) or ir.Function(module, kind, name)
    flags = [ir.Constant(I32, k) for k in (int(write), locality, 1)]
    code.b.call(function, [address, *flags])


def emit_micro(
    module: ir.Module,
    name: str,
    tile: Tile,
    acc: DType,
    ops: Ops,
    steps: tuple[int, int] | None = None,
    dot: DotStep | None = None,
) -> ir.Function:
    """The micro-kernel as an internal function of `module`.

    steps: how far apart the rows of A, and its elements along k, lie; None: a packed panel.
    dot: how words, groups along k, are multiplied; kb, b_step and the panels then count in words.
    """
    row_step, k_step = steps or (1, tile.mr)
    element = storage_type(acc)
    vector = ir.VectorType(element, tile.width) if tile.width > 1 else element
    params = [I64, PTR, PTR, I64, PTR, I1]
    function = ir.Function(module, ir.FunctionType(VOID, params), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    kb, a, b_ptr, b_step, c, first = function.args[:6]
    for k in (1, 2, 4):
        function.args[k].add_attribute("noalias")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    code = Code(b)
    ops.builder = b
    nbytes = size_of(element)
    zero = ir.Constant(vector, None)
    count = tile.mr * tile.nv

    def step(k_a: ir.Value, k_b: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """One step of k: k_a is the offset in A's panel, k_b in B."""
        read = element if dot is None else I32
        loaded = vector if dot is None else dot.words
        row_of_b = [
            code.b.load(
                code.at(b_ptr, code.add(k_b, v * tile.width), read), align=nbytes, typ=loaded
            )
            for v in range(tile.nv)
        ]
        out = list(sums)
        for i in range(tile.mr):
            x = code.load(a, code.add(k_a, i * row_step), read)
            x = code.splat(x, tile.width)
            for v in range(tile.nv):
                j = i * tile.nv + v
                if dot is None:
                    out[j] = multiply_add(ops, acc, x, row_of_b[v], sums[j])
                else:
                    out[j] = dot.add(b, sums[j], x, row_of_b[v])
        for v, total in enumerate(sums[count:]):  # of B alone
            assert dot is not None
            out[count + v] = dot.add(b, total, dot.signs(), row_of_b[v])
        return out

    def k_loop(begin: ir.Value, end: ir.Value, unroll: int, sums: list[ir.Value]) -> list[ir.Value]:
        """Steps begin..end, by `unroll`; `begin` and `end` multiples of it apart."""
        before = b.block
        body, done = b.append_basic_block("k"), b.append_basic_block("k.done")
        b.cbranch(code.less(begin, end), body, done)
        b.position_at_end(body)
        k = b.phi(I64)
        k.add_incoming(begin, before)
        phis = [b.phi(vector) for _ in sums]
        for phi, s in zip(phis, sums, strict=True):
            phi.add_incoming(s, before)
        current: list[ir.Value] = list(phis)
        for u in range(unroll):
            ku = code.add(k, u)
            k_a = code.mul(ku, k_step)
            current = step(code.value(k_a), code.value(code.mul(ku, b_step)), current)
        after = code.value(code.add(k, unroll))
        k.add_incoming(after, b.block)
        for phi, s in zip(phis, current, strict=True):
            phi.add_incoming(s, b.block)
        last = b.block
        b.cbranch(code.less(after, end), body, done)
        b.position_at_end(done)
        merged = []
        for s0, s1 in zip(sums, current, strict=True):
            m = b.phi(vector)
            m.add_incoming(s0, before)
            m.add_incoming(s1, last)
            merged.append(m)
        return merged

    for line in range(0, count * tile.width * nbytes, 64):
        prefetch(code, code.at(c, line), write=True, locality=3)
    whole = code.value(code.sub(kb, code.rem(kb, _UNROLL)))
    more = tile.nv if dot is not None and dot.dot.flips else 0
    sums = k_loop(code.value(0), whole, _UNROLL, [zero] * (count + more))
    sums = k_loop(whole, kb, 1, sums)
    if more:  # what was added to A
        sums = [b.sub(s, sums[count + j % tile.nv]) for j, s in enumerate(sums[:count])]

    store, add = b.append_basic_block("store"), b.append_basic_block("add")
    b.cbranch(first, store, add)
    for block, accumulate in ((store, False), (add, True)):
        b.position_at_end(block)
        for j, s in enumerate(sums):
            address = code.at(c, j * tile.width, element)
            if accumulate:
                old = b.load(address, align=nbytes, typ=vector)
                s = ops.arithmetic("add", acc, [old, s])
            b.store(s, address, align=nbytes)
        b.ret_void()
    return function


def emit_row(module: ir.Module, name: str, width: int, acc: DType, ops: Ops) -> ir.Function:
    """The product of one row by a matrix that is read where it lies, as an internal function.

        void row(i64 kb, ptr a, ptr b, i64 b_step, ptr c, i1 first, ptr sums, i64 count)

    c[count] = or += a[kb] @ b, in the same order of operations as the micro-kernel. `count` is a
    multiple of `width`; sums[count] is scratch. A few rows of b at a time are read along their
    whole length, which the memory system likes better than tall narrow panels.
    """
    element = storage_type(acc)
    kind = ir.FunctionType(VOID, [I64, PTR, PTR, I64, PTR, I1, PTR, I64])
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    kb, a, b_ptr, b_step, c, first, sums, count = function.args
    for k in (1, 2, 4, 6):
        function.args[k].add_attribute("noalias")
    code = Code(ir.IRBuilder(function.append_basic_block("entry")))
    ops.builder = code.b
    zero = ir.Constant(ir.VectorType(element, width) if width > 1 else element, None)
    with code.loop(0, count, width) as x:
        code.store(zero, sums, x, element)

    def rows(k: Int, many: int) -> None:
        """sums += rows k .. k + many - 1, in order."""
        scalars = [code.splat(code.load(a, code.add(k, r), element), width) for r in range(many)]
        starts = [code.at(b_ptr, code.mul(code.add(k, r), b_step), element) for r in range(many)]
        with code.loop(0, count, width) as x:
            total = code.load(sums, x, element, width)
            for scalar, start in zip(scalars, starts, strict=True):
                total = multiply_add(ops, acc, scalar, code.load(start, x, element, width), total)
            code.store(total, sums, x, element)

    whole = code.mul(code.div(kb, _ROWS), _ROWS)
    with code.loop(0, whole, _ROWS) as k:
        rows(k, _ROWS)
    with code.loop(whole, kb) as k:
        rows(k, 1)
    with code.loop(0, count, width) as x:
        total = code.load(sums, x, element, width)
        added = ops.arithmetic("add", acc, [code.load(c, x, element, width), total])
        code.store(code.b.select(first, total, added), c, x, element)
    code.b.ret_void()
    return function


def emit_columns(module: ir.Module, name: str, width: int, acc: DType, ops: Ops) -> ir.Function:
    """The product of one row by a matrix whose columns lie together, as an internal function.

        void columns(i64 kb, ptr a, ptr b, i64 b_step, ptr c, i1 first, i64 count)

    As emit_row, but column x of b begins at b + x * b_step. Of `width` columns at a time, a vector
    each is turned in registers, so that every sum is made in the order of k. A vector is a line of
    memory or less: whole lines are read, as columns may all meet in one set of the cache.
    """
    element = storage_type(acc)
    kind = ir.FunctionType(VOID, [I64, PTR, PTR, I64, PTR, I1, I64])
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    kb, a, b_ptr, b_step, c, first, count = function.args
    for k in (1, 2, 4):
        function.args[k].add_attribute("noalias")
    code = Code(ir.IRBuilder(function.append_basic_block("entry")))
    b = code.b
    ops.builder = b
    vector = ir.VectorType(element, width)
    whole = code.mul(code.div(kb, width), width)
    sums = code.local(vector)
    nbytes = size_of(element)

    def step(k: Int, vectors: list[ir.Value]) -> None:
        total = b.load(sums, align=nbytes, typ=vector)
        for j, v in enumerate(vectors):
            x = code.splat(code.load(a, code.add(k, j), element), width)
            total = multiply_add(ops, acc, x, v, total)
        b.store(total, sums, align=nbytes)

    with code.loop(0, count, width) as x:
        b.store(ir.Constant(vector, None), sums, align=nbytes)
        columns = [code.at(b_ptr, code.mul(code.add(x, r), b_step), element) for r in range(width)]
        with code.loop(0, whole, width) as k:
            step(k, code.transpose([code.load(p, k, element, width) for p in columns]))
        with code.loop(whole, kb) as k:
            step(k, [code.join([code.load(p, k, element) for p in columns])])
        total = b.load(sums, align=nbytes, typ=vector)
        added = ops.arithmetic("add", acc, [code.load(c, x, element, width), total])
        code.store(b.select(first, total, added), c, x, element)
    b.ret_void()
    return function
