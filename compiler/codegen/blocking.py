"""How a contraction is cut into blocks: `Plan`, from shapes and the target's caches.

Owns every size of the engine. Rows are the side that is broadcast (A), columns the side that
vectors run along (B): m and n, or n and m, whichever suits the output's memory. What is summed in
which order (`depth_block`, `splits`) is a function of the logical shape and the accumulator's
dtype alone, never of the target, hints, threads or the choice of sides; all other sizes are free.

    result = ((split 0 + split 1) + ...);  split = ((block 0 + block 1) + ...);
    block = its products in the order of k, from zero; if m or n is 1, the sum of four such sums,
            of products 0, 4, 8, ..; 1, 5, ..; 2, ..; and 3, ..: (0 + 1) + (2 + 3)

with ceil(K / DEPTH) blocks of equal size, rounded up to 16, but for the last. Products in tiles
(tile_unit.py, on targets that have them) have sums of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jitgrad.compiler.codegen.access import Access, operand_access, separate
from jitgrad.compiler.codegen.dot import MANY, Dot, dot_of
from jitgrad.compiler.codegen.microkernel import LANES, NARROW, REREAD, Tile, choose_tile
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.tile_micro import tile_for
from jitgrad.compiler.kernels import (
    ContractionKernel,
    kernel_reads,
    kernel_writes,
)
from jitgrad.compiler.loops import Expr, loads
from jitgrad.compiler.symbolic import Dim, Func, Sym, hint, prod, smax, smin
from jitgrad.runtime.dtypes import DType

DEPTH = 256  # the most k of a block
_ROUND = 16  # blocks of k are multiples of this at least: runs of neighbours are not torn
_SPLIT_DEPTH = 1024  # the least k of a split
_SPLIT_RESULTS = 1 << 16  # results times splits stay below this
_MAX_SPLITS = 16
_TASK_WORK = 1 << 19  # multiply-adds that are worth a task of their own
_TASKS = 8  # tasks that large products have at least
_PANELS = 4  # panels of A that a block of rows has at least
_COLS = 1024  # the most columns of a block of a shared B
_DIRECT = 128  # the most rows and columns of a product whose operands are read where they lie
_DIRECT_BYTES = 1 << 17  # and the most bytes of an operand
_KEPT = 512  # rows up to which packing B takes a share of a product worth keeping the panels, where
# it is constant; and columns of a block up to which packing A for it does (10 % at 64, 2 % here)
_REPEATED = 1 << 15  # elements of A, packed again, that are worth a launch that packs them once
_FEW = 12  # rows up to which a matrix that is not constant is read where it lies, along its rows
_LONG = 1 << 12  # bytes of a row of a matrix that are read together, at least: a page
_KEPT_ROW = 1 << 15  # elements of a constant B from which panels are read faster than its columns
_ROW_TILE = 4  # vectors of panels for one row

_LARGE = 1 << 18  # bytes of an array from which it is seldom in the second cache
_MANY = 3  # of them that make an epilogue wide

Group = tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Sizes and roles. `rows`, `cols`, `depth`, `batch`: axis groups; M, N, K, count: their sizes.

    block_rows, block_cols: multiples of the tile's. depth_cap: no block of k is larger.
    deepest: the most k of a block: DEPTH, or more where blocks make no difference to sums.
    unit: blocks of k are multiples of it.
    splits: how many partial results are summed at the end: the splits of the logical shape, or, of
        few rows by a matrix read along its rows, the blocks of k of the only split, so that tasks
        read long stretches of memory; the sum is the same.
    packed: the sides, "a" and "b", that are packed once, by a launch of their own; a side that is
        not is packed by each task.
    strip: columns whose results are made together, row after row; 0: tile after tile.
    kept: the sides, "a" and "b", whose panels stay between calls: they are made of constants.
    in_place: "rows" or "columns": there is one row, or a few for "rows", and B is read where it
        lies, along its rows (but for a torn last panel) or its columns; else "".
    dot: how products of narrow operands are formed in groups along k; else None.
    direct_a: the steps of A (as emit_micro's) where it is read where it lies, but for a torn last
        panel; else None. direct_b: the same of B, any steps.
    far: B is larger than what stays in the second cache.
    """

    batch: Group
    rows: Group
    cols: Group
    depth: Group
    extents: Mapping[int, Dim]
    a: Expr
    b: Expr
    count: Dim
    M: Dim
    N: Dim
    K: Dim
    tile: Tile
    block_rows: int
    block_cols: int
    depth_cap: int
    deepest: int
    unit: int
    splits: Dim
    packed: str
    in_place: str
    dot: Dot | None
    direct_a: tuple[int, int] | None
    direct_b: bool
    far: bool
    kept: str
    strip: int

    @property
    def grain(self) -> int:
        """Tasks that are worth a thread."""
        depth = max(1, hint(self.K) // hint(self.splits))
        return max(1, _TASK_WORK // (self.block_rows * self.block_cols * depth))

    @property
    def lanes(self) -> int:
        """Sums that each result has."""
        return LANES if _is_one(self.M) else 1

    @property
    def row_blocks(self) -> Dim:
        return ceildiv(self.M, self.block_rows)

    @property
    def col_blocks(self) -> Dim:
        return ceildiv(self.N, self.block_cols)

    @property
    def tasks(self) -> Dim:
        return self.count * self.splits * self.row_blocks * self.col_blocks


def ceildiv(a: Dim, b: int) -> Dim:
    return (a + (b - 1)) // b


def splits_of(count: Dim, m: Dim, n: Dim, k: Dim) -> Dim:
    """How many parts K is cut into, each with an accumulator of its own."""
    room = _SPLIT_RESULTS // smax(1, count * m * n)
    return smax(1, smin(_MAX_SPLITS, smin(k // _SPLIT_DEPTH, room)))


def plan_blocks(kernel: ContractionKernel, target: Target, keeps: bool = True) -> Plan:
    """Decides sides, tile and blocks. keeps: whether panels may stay between calls."""
    c, array = kernel.contraction, kernel.array
    extents: dict[int, Dim] = dict(enumerate((*array.shape, *c.k)))
    depth = tuple(range(array.ndim, array.ndim + len(c.k)))
    m, n = tuple(c.m), tuple(c.n)
    swap = _swap(kernel, m, n, extents)
    rows, cols = (n, m) if swap else (m, n)
    a, b = (c.b, c.a) if swap else (c.a, c.b)
    M, N = prod(extents[x] for x in rows), prod(extents[x] for x in cols)
    K = prod(extents[x] for x in depth)
    count = prod(extents[x] for x in c.batch)
    hm, hn, hk, hc = hint(M), hint(N), hint(K), hint(count)
    batch = tuple(c.batch)
    dot = dot_of(c, a, b, target, min([d for d in (M, N) if isinstance(d, int)], default=MANY))
    access = _plain_access(b, c.acc, (batch, cols, depth), extents)
    simple = dot is None or not (dot.tiles or dot.parts)
    readable = simple and _is_readable(access)
    constant = keeps and is_constant(b, (count, N, K))
    nbytes = c.acc.itemsize if dot is None else dot.a.itemsize * dot.copies
    small = max(hm, hn) <= _DIRECT and max(hm, hn) * hk * nbytes <= _DIRECT_BYTES
    far = hn * hk * nbytes > target.l2 // 2
    if dot is not None and dot.tiles:
        tile = tile_for(hm, hn)
    else:
        among = _dot_tiles(dot, a, batch, rows, depth, extents)
        either = readable and not small and not constant
        lies = ("far" if far else "near") if either else ""
        deep = min(hk, _deepest(dot, c.acc))
        tile = choose_tile(target, c.acc, hm, hn, deep, among, lies)
    in_place = kept = ""
    if constant:
        if not _is_one(M):
            kept = "b" if hm <= _KEPT else ""
        elif hn * hk >= _KEPT_ROW and not _is_readable(access):
            kept = "b"
    if _is_one(M) and kept:
        tile = Tile(1, _ROW_TILE, tile.width)
    elif _is_one(M):
        if _is_readable(access):
            in_place, tile = "rows", Tile(1, 1, tile.width)
        elif (
            access is not None and access.parts[2].is_unit and access.parts[1].stride is not None
            and tile.width >= LANES and c.acc.is_floating_point
        ):  # fmt: skip
            in_place, tile = "columns", Tile(1, 1, tile.width)
        else:
            tile = Tile(1, 2, tile.width)
    elif isinstance(M, int) and 1 < M <= _FEW and not kept and _is_readable(access) and not small:
        in_place, tile = "rows", Tile(M, 1, tile.width)
    deepest = _deepest(dot, c.acc)
    unit = _ROUND if dot is None else max(_ROUND, dot.depth)
    depth_cap = min(deepest, -(-K // unit) * unit) if isinstance(K, int) else deepest
    depth_cap = max(depth_cap, 1)
    splits = splits_of(count, M, N, K)
    wanted = min(_TASKS, max(1, hm * hn * hk * hc // _TASK_WORK))
    known = all(isinstance(d, int) for d in (count, M, N, K, splits))
    if in_place == "rows" and wanted > 1 and known and splits == 1:
        blocks = -(-hk // deepest)
        if blocks <= _MAX_SPLITS and blocks * hc * hm * hn <= _SPLIT_RESULTS:
            splits = blocks

    # A's block fills a third of L2; B's block (when packed by the task) another.
    most_rows = max(tile.mr, target.l2 // 3 // (depth_cap * nbytes))
    row_blocks = -(-hm // most_rows)
    if row_blocks > 1:
        row_blocks = -(-row_blocks // 2) * 2  # so that two or four threads get equal shares
    others = max(1, hc * hint(splits))
    wide = _is_wide(kernel)
    even = dot is not None and dot.tiles and not wide
    if even:
        share = -(-wanted // others)
        row_blocks, col_blocks = _even_blocks(hm, hn, share, tile, most_rows, target)
    elif hm >= hn or wide:
        # rather short blocks of rows than to pack A for each of several blocks of columns
        row_blocks = max(row_blocks, min(-(-wanted // others), hm // (_PANELS * tile.mr)))
    block_rows = _balanced(hm, row_blocks, tile.mr, others * (col_blocks if even else 1))
    one_row_block = isinstance(M, int) and block_rows >= M
    most_cols = _COLS
    if in_place:
        sums = LANES if _is_one(M) else hm
        most_cols = target.l1 * 2 // 3 // (sums * nbytes)  # whose sums stay in the first cache
    elif _is_one(M):
        most_cols = 2 * tile.nr
    elif one_row_block:
        most_cols = max(tile.nr, target.l2 // 3 // (depth_cap * nbytes))
    if not even:
        col_blocks = -(-hn // most_cols)
    have = others * max(1, -(-hm // block_rows))
    if have * col_blocks < wanted:
        col_blocks = -(-wanted // have)
    if in_place == "rows":
        col_blocks = max(1, -(-hn // most_cols), min(col_blocks, hn * nbytes // _LONG))
        block_cols = max(1, -(-hn // (col_blocks * tile.nr))) * tile.nr
    else:
        block_cols = _balanced(hn, col_blocks, tile.nr, have)
    direct_a, direct_b = None, False
    plain = simple and not _is_one(M) and not in_place
    if plain and (small or hn <= tile.nr):  # or one panel of B, for which A is read once
        found = _plain_access(a, c.acc, (batch, rows, depth), extents)
        direct_a = _steps(found, nbytes) if found is not None else None
    few = one_row_block and hm <= REREAD * tile.mr and tile.nv > 1 and not kept
    if plain and (small or few):
        direct_b = readable
    if direct_b:
        kept = ""
    packed = "b" if "b" in kept or (not one_row_block and not direct_b) else ""
    if not _is_one(M) and direct_a is None and block_cols <= _KEPT:
        if keeps and is_constant(a, (count, M, K)):
            kept, packed = f"{kept}a", f"{packed}a"
        elif even or (
            one_row_block and isinstance(K, int) and hc * hm * hk * nbytes <= target.l2 // 2
        ):
            again = (-(-hn // block_cols) - 1) * hc * hm * hk
            packed += "a" if again >= _REPEATED else ""
    strip = 0
    if wide:
        strip = max(tile.nr, target.l2 // 4 // (block_rows * c.acc.itemsize) // tile.nr * tile.nr)
    return Plan(
        batch, rows, cols, depth, extents, a, b, count, M, N, K, tile,
        block_rows, block_cols, depth_cap, deepest, unit, splits,
        packed, in_place, dot, direct_a, direct_b, far, kept, strip,
    )  # fmt: skip


def _even_blocks(
    rows: int, cols: int, wanted: int, tile: Tile, most_rows: int, target: Target
) -> tuple[int, int]:
    """How many blocks of rows and of columns, `wanted` together at least, move least of the
    operands, for products that are made faster than memory gives operands: in tiles. What several
    blocks share is written once more, and read by each. The results of a block take up half of the
    second cache at most."""
    most = target.l2 // 2 // 4

    def moved(size: int, readers: int) -> int:
        return size * (2 + readers if readers > 1 else 1)

    best, least = (1, 1), 0
    for high in range(-(-max(rows, 1) // most_rows), max(1, rows // tile.mr) + 1):
        wide = max(-(-wanted // high), -(-cols * -(-rows // high) // most))
        wide = max(1, min(wide, cols // tile.nr))
        cost = moved(rows, wide) + moved(cols, high)
        if not least or cost < least and high * wide >= min(wanted, best[0] * best[1]):
            best, least = (high, wide), cost
    return best


def _deepest(dot: Dot | None, acc: DType) -> int:
    """The most k of a block."""
    if dot is not None and dot.tiles:
        # So that a panel of A and one of B stay in the first cache; of operands in parts, one of B.
        return DEPTH * dot.group // max(2, dot.copies)
    return DEPTH if dot is None or acc.is_floating_point else DEPTH * dot.group


def _is_wide(kernel: ContractionKernel) -> bool:
    """Whether results go through so many large arrays that tile after tile, a few elements of each
    of many rows, would be slow."""
    arrays = {s.array for s in kernel.stores}
    arrays |= {e.attr for e in loads([s.value for s in kernel.stores])} - {kernel.array}
    large = [a for a in arrays if hint(a.numel) * a.dtype.itemsize >= _LARGE]
    return len(large) >= _MANY


def is_constant(e: Expr, sizes: tuple[Dim, ...]) -> bool:
    """Whether an operand of known size is made of inputs that seldom change."""
    read = loads([e])
    known = not any(isinstance(d, Sym) for d in sizes)
    return known and not e.has_check and bool(read) and all(x.attr.constant for x in read)


def _dot_tiles(
    dot: Dot | None, a: Expr, batch: Group, rows: Group, depth: Group, extents: Mapping[int, Dim]
) -> tuple[tuple[int, int], ...]:
    """Tiles for products in groups; () for others."""
    if dot is None:
        return ()
    access = operand_access(a, (batch, rows, depth), extents)
    if access is not None and access.parts[1].is_unit:  # so that its rows are packed as vectors
        return (NARROW,)
    return ((14, 2), (8, 3), NARROW)


def _plain_access(
    e: Expr, acc: DType, groups: tuple[Group, Group, Group], extents: Mapping[int, Dim]
) -> Access | None:
    """The access of an operand that can be read as it is: a load of the accumulator's dtype."""
    if e.op != "load" or e.dtype is not acc:
        return None
    return operand_access(e, groups, extents)


def _is_readable(access: Access | None) -> bool:
    """Whether vectors along the columns of B, for any k, can be read where they lie."""
    if access is None:
        return False
    return access.parts[1].is_unit and access.parts[2].stride is not None


def _steps(access: Access, nbytes: int) -> tuple[int, int] | None:
    """How far apart the rows, and the elements along k, of A lie, where both are known and the rows
    of a tile do not all meet in one set of the first cache."""
    row, k = access.parts[1].stride, access.parts[2].stride
    if row is None or k is None or row.op != "const" or k.op != "const":
        return None
    if row.attr * nbytes % 2048 == 0 or k.attr * nbytes % 2048 == 0:
        return None
    return row.attr, k.attr


def _balanced(size: int, blocks: int, unit: int, others: int) -> int:
    """A block size, a multiple of unit, that cuts `size` into about so many blocks, or some more
    where two and four threads then get more equal shares. others: as many tasks there are of each
    block."""
    units = -(-size // unit)
    most = -(-units // max(1, blocks))
    if blocks <= 1 or others * blocks > 4 * _TASKS:
        return max(1, most) * unit

    def longest(each: int) -> float:
        """What the last of the threads have to do, of what would be their equal shares."""
        whole, rest = divmod(units, each)
        found = 0.0
        for threads in (2, 4):
            rounds, left = divmod(whole * others, threads)
            work = (rounds + 1) * each if left else rounds * each + -(-others // threads) * rest
            found += work * threads / (units * others)
        return found

    return min(range(most, most // 2, -1), key=longest) * unit


def _is_one(d: Dim) -> bool:
    return not isinstance(d, Sym) and d == 1


def _swap(kernel: ContractionKernel, m: Group, n: Group, extents: Mapping[int, Dim]) -> bool:
    """Whether vectors should run along m: the output is contiguous along it, or n is tiny."""
    m_size, n_size = prod(extents[a] for a in m), prod(extents[a] for a in n)
    if _is_one(m_size) or _is_one(n_size):
        return not _is_one(m_size)
    batch = tuple(kernel.contraction.batch)
    score = 0
    for store in kernel.stores:
        access = separate(store.array, store.index, [batch, m, n], extents)
        if access is not None:
            score += access.parts[1].run > 1 or access.parts[1].is_unit
            score -= access.parts[2].run > 1 or access.parts[2].is_unit
    if hint(n_size) < 4 <= hint(m_size):
        return True
    if hint(m_size) < 4 <= hint(n_size):
        return False
    return score > 0


def named_dims(kernel: ContractionKernel) -> dict[str, Sym]:
    """The Sym of each named dim that the kernel's arrays mention."""
    c = kernel.contraction
    dims: list[Dim] = [*kernel.array.shape, *c.k]
    for array in [*kernel_reads(kernel), *kernel_writes(kernel)]:
        dims += [*array.shape, *(array.strides or ())]
    found: dict[str, Sym] = {}
    stack: list[Dim] = dims
    while stack:
        d = stack.pop()
        if not isinstance(d, Sym):
            continue
        for monomial in d.terms:
            for atom in monomial:
                if isinstance(atom, Func):
                    stack += [atom.a, atom.b]
                elif atom not in found:
                    found[atom] = Sym({(atom,): 1}, d.env)
    return dict(sorted(found.items()))
