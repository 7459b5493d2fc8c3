"""The register-tiled inner kernel of a contraction, from one template.

Owns the table of tile sizes (from the number of vector registers) and `emit_micro`, which emits

    void micro(i64 kb, ptr a, ptr b, i64 b_step, ptr c, i1 first, ptr ahead, i64 pace)

c[mr][nr] (dense, accumulator dtype) = or += the product of a packed panel of A ([kb][mr]) with kb
rows of nr columns of B, b_step elements apart (nr for a packed panel). Every element of the
product is summed in the order of k, from zero, by fused multiply-adds where the target has them;
so its bits do not depend on the tile. Meanwhile it asks for memory that is needed next, `pace`
bytes from `ahead` on with each step of k: a line now and then, since a burst of requests would wait
for those before it. Where there is one row, there are LANES such sums of each element, and
`emit_columns` is the form for a matrix in place, and `emit_rows` that for few rows by one.

Design: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS
Functionality", ACM TOMS 41(3), 2015. The tile fills the registers but for those that hold a row
of B and one broadcast element of A; it must be large enough to hide the latency of the
multiply-add (tile vectors >= latency * multiply-adds a cycle, 8 on most CPUs).
"""

from __future__ import annotations

import math
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
    integers,
    is_float,
    prefetch,
    size_of,
    storage_type,
)
from jitgrad.compiler.codegen.dot import DotStep
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.target import Target
from jitgrad.runtime.dtypes import DType

UNROLL = 2  # more is no faster, and takes longer to compile
LANES = 4  # sums of each result of a product with one row; `joined` adds them up
LINE = 64  # bytes that memory is asked for
_WORD = 4  # bytes
_ROWS = 8  # rows that emit_rows reads side by side


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
    32: (
        *((14, 2), (13, 2), (8, 3), (12, 2), (9, 3), (11, 2), (10, 2), (7, 3), (8, 2), (9, 2)),
        *((6, 4), (5, 5), (5, 4), (4, 6), (3, 8), (2, 8), (1, 12)),
    ),
}
# With AVX-512 an element of A is an operand in memory, so one vector of B is enough, where there is
# one multiply-add a cycle; where there are two, loads are what it waits for: 17 of 16 products.
NARROW = (16, 1)
MICRO = (I64, PTR, PTR, I64, PTR, I1, PTR, I64)  # the parameters of a micro-kernel
_ONE_FMA = "znver4"
# Part of the peak that a tile reaches, roughly: loads and latency cost the small ones.
_WORTH = {
    **{(4, 3): 0.97, (5, 2): 0.93, (3, 4): 0.95, (2, 5): 0.85, (1, 8): 0.5},
    **{(8, 2): 0.97, (9, 2): 0.98},
}
_STAYS = 0.75  # of the first cache: the largest panel of B that is there for the next panel of A
REREAD = 5  # panels of A for which B is read where it lies, in rows of more than a vector: so many
# reads of distant rows cost less than a copy
_COPY = (
    8  # rows whose multiply-adds take as long as the copy, or as waiting for what is far and not
)
# asked for: lines are, where a step of k takes one
_READ = 2.5  # rows whose multiply-adds take as long as reading a row of B from the second cache
_TORN = 0.5  # of the work of a panel of rows, what it costs beside that if it is not whole: a copy
# of its operand, and results by masks


def candidates(target: Target, acc: DType) -> list[Tile]:
    """The tiles of the target for products of many sizes, the best first."""
    width = max(1, target.vector_bytes // acc.itemsize)
    if target.vector_bytes == 64:
        return [Tile(*NARROW, width)]
    return [Tile(mr, nv, width) for mr, nv in _TILES[vector_registers(target)] if mr > 3]


def choose_tile(
    target: Target,
    acc: DType,
    rows: int,
    cols: int,
    depth: int,
    among: tuple[tuple[int, int], ...] = (),
    lies: str = "",
) -> Tile:
    """The tile of least cost for a rows x cols result (free to differ), whose panels have a depth;
    of some, as (rows, vectors), the best first, if they are given. lies: "near", in the second
    cache, or "far": B is read where it lies if it suits the tile; "": that does not depend on it.

    The cost is that of all multiply-adds, those of what a torn panel lacks too. Where a panel of B
    does not stay in the first cache, it is read from the second for each panel of A; the processor
    does part of that meanwhile.
    """
    width = max(1, target.vector_bytes // acc.itemsize)
    best, best_cost = None, 0.0
    tiles = list(_TILES[vector_registers(target)])
    if target.vector_bytes == 64:
        tiles.insert(0 if target.cpu == _ONE_FMA else len(tiles), NARROW)
    for mr, nv in among or tiles:
        tile = Tile(mr, nv, width)
        panels = -(-max(rows, 1) // mr)
        stays = tile.nr * depth * acc.itemsize <= _STAYS * target.l1
        cost = panels * (mr if stays or panels == 1 else math.hypot(mr, _READ))
        if rows > mr and rows % mr:
            cost += _TORN * mr
        if lies and (panels > REREAD or nv == 1 or lies == "far" and nv != UNROLL):
            cost += _COPY
        cost *= -(-max(cols, 1) // tile.nr) * tile.nr / _WORTH.get((mr, nv), 1.0)
        if (mr, nv) == NARROW and target.cpu != _ONE_FMA:
            cost *= 17 / 16
        if best is None or cost < best_cost * 0.97:
            best, best_cost = tile, cost
    assert best is not None
    return best


def multiply_add(ops: Ops, acc: DType, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, fused where the target can."""
    if is_float(acc) and ops.target.has_fma:
        return ops.intrinsic("fma", [x, y, z])
    return ops.arithmetic("add", acc, [ops.arithmetic("mul", acc, [x, y]), z])


def ask_ahead(code: Code, place: ir.Value, apart: ir.Value, count: int) -> ir.Value:
    """Asks for `count` lines of memory so far apart, into L2; the address after them."""
    for _ in range(count):
        prefetch(code.b, place, write=False, locality=2)
        place = code.beyond(place, apart)
    return place


def joined(ops: Ops, acc: DType, lanes: list[ir.Value]) -> ir.Value:
    """The sum of LANES sums."""
    add = [ops.arithmetic("add", acc, lanes[i : i + 2]) for i in (0, 2)]
    return ops.arithmetic("add", acc, add)


def emit_micro(
    module: ir.Module,
    name: str,
    tile: Tile,
    acc: DType,
    ops: Ops,
    steps: tuple[int, int] | None = None,
    dot: DotStep | None = None,
    lanes: int = 1,
) -> ir.Function:
    """The micro-kernel as an internal function of `module`.

    steps: how far apart the rows of A, and its elements along k, lie; None: a packed panel.
    dot: how words, groups along k, are multiplied; kb, b_step and the panels then count in words.
        Where A is stored with 128 added, sums begin with what `emit_signs` made of B, which comes
        as a last argument.
    lanes: LANES for products that have one row: the sum is that of `lanes` sums, each of every
        lanes-th product, added up as `joined` does.
    """
    row_step, k_step = steps or (1, tile.mr)
    element = storage_type(acc)
    vector = ir.VectorType(element, tile.width) if tile.width > 1 else element
    flips = dot is not None and dot.dot.flips
    params = [*MICRO, *([PTR] if flips else [])]
    function = ir.Function(module, ir.FunctionType(VOID, params), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    kb, a, b_ptr, b_step, c, first, ahead, pace = function.args[: len(MICRO)]
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
        if unroll == UNROLL:
            place = b.phi(PTR)
            place.add_incoming(ahead, before)
            place.add_incoming(ask_ahead(code, place, apart, tile.nv), b.block)
        current: list[ir.Value] = list(phis)
        for u in range(unroll):
            ku = code.add(k, u)
            k_a, k_b = code.value(code.mul(ku, k_step)), code.value(code.mul(ku, b_step))
            if len(current) == every:
                current = step(k_a, k_b, current)
            else:  # a lane for each step
                mine = slice(u * every, (u + 1) * every)
                current[mine] = step(k_a, k_b, current[mine])
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

    for line in range(0, count * tile.width * nbytes, LINE):
        prefetch(code.b, code.at(c, line), write=True, locality=3)
    every = count  # the sums of a lane
    start = [zero] * every
    if flips:
        signs = [code.load(function.args[len(MICRO)], v * tile.width, element, tile.width)
                 for v in range(tile.nv)]  # fmt: skip
        start = [signs[j % tile.nv] for j in range(every)]
    unroll = UNROLL if lanes == 1 else lanes
    apart = code.value(code.div(code.mul(pace, UNROLL), tile.nv))
    whole = code.value(code.sub(kb, code.rem(kb, unroll)))
    sums = k_loop(code.value(0), whole, unroll, start + [zero] * (every * (lanes - 1)))
    if lanes == 1:
        sums = k_loop(whole, kb, 1, sums)
    else:
        for lane in range(lanes - 1):  # what is left, a step for each lane
            k = code.value(code.add(whole, lane))
            mine = slice(lane * every, (lane + 1) * every)
            sums[mine] = k_loop(k, code.value(code.min(kb, code.add(k, 1))), 1, sums[mine])
        sums = [
            joined(ops, acc, [sums[lane * every + j] for lane in range(lanes)])
            for j in range(every)
        ]

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


def emit_signs(module: ir.Module, name: str, tile: Tile, dot: DotStep, ops: Ops) -> ir.Function:
    """What the 128 that is added to each element of A adds to the products, negated.

        void signs(i64 kb, ptr b, ptr to)

    to[nr] = -128 times the sums of the columns of a packed panel of B of kb words.
    """
    function = ir.Function(module, ir.FunctionType(VOID, [I64, PTR, PTR]), name)
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    kb, panel, to = function.args
    code = Code(ir.IRBuilder(function.append_basic_block("entry")))
    b = code.b
    ops.builder = b
    zero = ir.Constant(dot.words, None)
    sums = [code.local(dot.words) for _ in range(tile.nv)]
    for s in sums:
        b.store(zero, s, align=_WORD)
    with code.loop(0, kb) as k:
        for v, s in enumerate(sums):
            words = code.load(
                panel, code.add(code.mul(k, tile.nr), v * tile.width), I32, tile.width
            )
            total = b.load(s, align=_WORD, typ=dot.words)
            b.store(dot.add(b, total, dot.signs(), words), s, align=_WORD)
    for v, s in enumerate(sums):
        code.store(b.sub(zero, b.load(s, align=_WORD, typ=dot.words)), to, v * tile.width, I32)
    b.ret_void()
    return function


def emit_rows(
    module: ir.Module, name: str, rows: int, width: int, acc: DType, ops: Ops
) -> ir.Function:
    """The product of few rows by a matrix that is read where it lies, as an internal function.

        void rows(i64 kb, ptr a, ptr b, i64 b_step, ptr c, i1 first, ptr sums, i64 count)

    c[count / width][rows][width] = or += a[kb][rows] by b[kb][count], in the same order of
    operations as the micro-kernel. `count` is a multiple of `width`; sums is scratch, of `count`
    elements for each row, or for each of the LANES sums of one row. A few rows of b at a time, all
    of one sum, are read along their whole length, which the memory system likes better than tall
    narrow panels.
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
    lanes = LANES if rows == 1 else 1
    with code.loop(0, code.mul(count, rows * lanes), width) as x:
        code.store(zero, sums, x, element)

    def place(row: int, x: Int) -> Int:
        return code.add(code.mul(x, rows), row * width)

    def add(start: Int, apart: int, many: int, lane: Int) -> None:
        """Adds the products of `many` rows of b, `apart` from each other, to a lane's sums."""
        ks = [code.add(start, r * apart) for r in range(many)]
        scalars = [
            [code.splat(code.load(a, code.add(code.mul(k, rows), i), element), width)
             for i in range(rows)]
            for k in ks
        ]  # fmt: skip
        mine = code.at(sums, code.mul(lane, count), element)
        with code.loop(0, count, width) as x:
            totals = [code.load(mine, place(i, x), element, width) for i in range(rows)]
            for k, of_row in zip(ks, scalars, strict=True):
                value = code.load(code.at(b_ptr, code.mul(k, b_step), element), x, element, width)
                totals = [
                    multiply_add(ops, acc, scalar, value, total)
                    for scalar, total in zip(of_row, totals, strict=True)
                ]
            for i, total in enumerate(totals):
                code.store(total, mine, place(i, x), element)

    together = _ROWS if rows <= _ROWS else _ROWS // 2  # more elements of a than registers hold
    many = lanes * together
    whole = code.mul(code.div(kb, many), many)
    with code.loop(0, whole, many) as start, code.loop(0, lanes) as lane:
        add(code.add(start, lane), lanes, together, lane)
    with code.loop(whole, kb) as k:
        add(k, 1, 1, code.rem(k, lanes))
    with code.loop(0, code.mul(count, rows), width) as x:
        parts = [
            code.load(sums, code.add(code.mul(count, lane), x), element, width)
            for lane in range(lanes)
        ]
        total = joined(ops, acc, parts) if lanes > 1 else parts[0]
        added = ops.arithmetic("add", acc, [code.load(c, x, element, width), total])
        code.store(code.b.select(first, total, added), c, x, element)
    code.b.ret_void()
    return function


def emit_columns(module: ir.Module, name: str, width: int, acc: DType, ops: Ops) -> ir.Function:
    """The product of one row by a matrix whose columns lie together, as an internal function.

        void columns(i64 kb, ptr a, ptr b, i64 b_step, ptr c, i1 first, i64 count)

    As emit_rows of one row, but column x of b begins at b + x * b_step, and `count` is any number
    of columns; c has room for whole vectors, in which the last column is repeated. A vector holds
    the LANES sums of width / LANES columns: neighbours along k, which lie together, are neighbours
    in it.
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
    fours = code.mul(code.div(kb, LANES), LANES)
    last = code.sub(count, 1)
    each = width // LANES  # columns of a vector
    sums = [code.local(vector) for _ in range(LANES)]
    nbytes = size_of(element)

    def step(k: Int, group: int, value: ir.Value) -> None:
        """Adds the products of LANES neighbours along k."""
        total = b.load(sums[group], align=nbytes, typ=vector)
        x = code.load(a, k, element, LANES)
        x = code.shuffle(x, x, [*range(LANES)] * each)
        new = multiply_add(ops, acc, x, value, total)
        b.store(new, sums[group], align=nbytes)

    with code.loop(0, count, width) as x:
        for total in sums:
            b.store(ir.Constant(vector, None), total, align=nbytes)
        numbers = [code.min(code.add(x, r), last) for r in range(width)]
        columns = [code.at(b_ptr, code.mul(r, b_step), element) for r in numbers]
        groups = [columns[g * each : (g + 1) * each] for g in range(LANES)]
        with code.loop(0, whole, width) as k:
            for g, group in enumerate(groups):
                loaded = [code.load(p, k, element, width) for p in group]
                for q, value in enumerate(_turned(code, loaded)):
                    step(code.add(k, q * LANES), g, value)
        with code.loop(whole, fours, LANES) as k:
            for g, group in enumerate(groups):
                step(k, g, code.side_by_side([code.load(p, k, element, LANES) for p in group]))
        for lane in range(LANES - 1):  # what is left, one lane after the other
            k = code.add(fours, lane)
            with b.if_then(code.less(k, kb)):
                scalar = code.splat(code.load(a, k, element), width)
                chosen = integers(I1, [int(n % LANES == lane) for n in range(width)])
                for g, group in enumerate(groups):
                    found = [code.load(p, k, element) for p in group]
                    value = code.join([v for v in found for _ in range(LANES)])
                    total = b.load(sums[g], align=nbytes, typ=vector)
                    new = multiply_add(ops, acc, scalar, value, total)
                    b.store(b.select(chosen, new, total), sums[g], align=nbytes)
        totals = [b.load(s, align=nbytes, typ=vector) for s in sums]
        parts = []
        for lane in range(LANES):
            mask = [v * width + r * LANES + lane for v in range(2) for r in range(each)]
            halves = [code.shuffle(totals[i], totals[i + 1], mask) for i in (0, 2)]
            parts.append(code.side_by_side(halves))
        total = joined(ops, acc, parts)
        added = ops.arithmetic("add", acc, [code.load(c, x, element, width), total])
        code.store(b.select(first, total, added), c, x, element)
    b.ret_void()
    return function


def _turned(code: Code, rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of a square of LANES elements: part j of row i is part i of result j."""
    many = len(rows)
    units = [[k for j in range(many // 2) for k in (start + j, many + start + j)]
             for start in (0, many // 2)]  # fmt: skip
    low, high = ([u * LANES + x for u in part for x in range(LANES)] for part in units)
    for _ in range(many.bit_length() - 1):
        rows = [
            code.shuffle(rows[k], rows[k + many // 2], mask)
            for k in range(many // 2)
            for mask in (low, high)
        ]
    return rows
