"""Chains: contractions and what lies between them, done for one batch index after the other.

Before: kernels, in an order that respects dependencies. After: kernels of which some became one
ChainKernel: for each point of their common batch dims, which is done by one thread, all of them in
order. Arrays that only they read then need memory for one batch index and thread. So the scores of
attention, and all that is made of them, forward and backward, never exist as a whole, whatever the
user wrote between the two products: a scale, masks, a softmax by hand, dropout. Nothing is computed
in another order than before, so the numbers do not change.

Kernels qualify by structure: contractions whose leading axes are batch axes, loops whose leading
outer axes have as many points, and every access of what is private at the kernel's own index
there.
A cluster of them from which a path leads out and back in (the loss lies between forward and
backward) falls into several; what a later one reads of an earlier one's private arrays, it
computes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
    Stage,
    Store,
    kernel_exprs,
    kernel_reads,
    kernel_writes,
)
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    axis,
    const,
    dim,
    load,
    loads,
    postorder,
    rewrite,
)
from jitgrad.compiler.passes.chain_rows import Rows, by_rows
from jitgrad.compiler.symbolic import Dim, hint, is_static, prod

MIN_TILES = 8  # batch indices that keep several threads busy
MIN_BYTES = 1 << 19  # private memory that is worth a chain
MAX_TILE_BYTES = 1 << 28  # private memory of one batch index
MAX_AGAIN = 4  # kernels that are done again rather than their results kept
_FEW = 64  # outer points of a loop that code generation might split into two launches


def chain(kernels: list[Kernel], roots: Iterable[Array]) -> list[Kernel]:
    """Puts kernels together where it pays."""
    found = _Finder(kernels, set(roots))
    out: list[Kernel] = []
    for k in kernels:
        made = found.made.get(k)
        if made is None:
            out.append(k)
        elif k is found.last[made]:
            out.append(made)
    return out


def _batch_rank(k: Kernel) -> int:
    """How many leading axes of a kernel's parallel space a chain may run through."""
    if isinstance(k, ContractionKernel):
        shape, batch = k.array.shape, k.contraction.batch
        if not is_static([*shape, *k.contraction.k]):
            return 0
        rank = 0
        while rank < len(shape) and (rank in batch or shape[rank] == 1):
            rank += 1
        return rank if all(n < rank for n in batch) and list(batch) == sorted(batch) else 0
    if not isinstance(k, LoopKernel):
        return 0
    if not is_static([*k.outer, *(d for s in k.stages for d in s.inner)]):
        return 0
    reduces = [r for s in k.stages for r in s.reduces]
    if any(t.combine for s in k.stages for t in s.stores):
        return 0
    if any(r.order.startswith("columns") for r in reduces):
        return 0
    if reduces and hint(prod(k.outer)) <= _FEW:
        return 0
    return len(k.outer)


def _dims(k: LoopKernel | ContractionKernel) -> tuple[Dim, ...]:
    return k.array.shape if isinstance(k, ContractionKernel) else k.outer


def _places(k: Kernel, array: Array) -> list[tuple[Expr, ...]]:
    """Every index at which a kernel loads or stores an array."""
    found = [e.args for e in loads(kernel_exprs(k)) if e.attr is array]
    for t in _stores(k):
        if t.array is array:
            found.append(t.index)
    return found


def _stores(k: Kernel) -> list[Store]:
    if isinstance(k, LoopKernel):
        return [t for s in k.stages for t in s.stores]
    return list(k.stores) if isinstance(k, ContractionKernel) else []


def _prefix(dims: Sequence[Dim], count: int) -> int | None:
    """How many leading dims have so many points."""
    total = 1
    for n, d in enumerate(dims):
        if total >= count:
            return n if total == count else None
        total *= hint(d)
    return len(dims) if total == count else None


def _flat(index: Sequence[Expr], dims: Sequence[Dim]) -> Expr:
    total = const(0, INDEX)
    for i, d in zip(index, dims, strict=True):
        total = total * dim(d) + i
    return total


def _at_own_tile(k: Kernel, rank: int, a: Array, count: int) -> bool:
    """Whether every access that a kernel makes of an array is at the kernel's own tile."""
    if not isinstance(k, (LoopKernel, ContractionKernel)):
        return False  # a sort, say, has no tiles
    dims = _dims(k)
    mine, theirs = _prefix(dims[:rank], count), _prefix(a.shape[:-1], count)
    if mine is None or theirs is None:
        return False
    own = _flat([axis(n) for n in range(mine)], dims[:mine])
    lead = range(theirs)
    if mine == theirs and all(i[n] is axis(n) for i in _places(k, a) for n in lead):
        return dims[:mine] == a.shape[:mine]
    s = Simplifier(dict(enumerate(dims[:mine])))
    for index in _places(k, a):
        inside = {e.attr for e in postorder(index[:theirs]) if e.op == "axis"}
        if any(n >= mine for n in inside):
            return False
        if s.simplify(_flat(index[:theirs], a.shape[:theirs])) is not s.simplify(own):
            return False
    return True


class _Finder:
    """made: kernel -> the chain it went into; last: a chain -> the last of its kernels here."""

    def __init__(self, kernels: list[Kernel], roots: set[Array]) -> None:
        self.roots = roots
        self.made: dict[Kernel, ChainKernel] = {}
        self.last: dict[ChainKernel, Kernel] = {}
        self._tiles: dict[Array, int] = {}
        if not any(isinstance(k, ContractionKernel) and _batch_rank(k) for k in kernels):
            return
        self.kernels = kernels
        self.maker = {a: k for k in kernels for a in kernel_writes(k)}
        self.readers: dict[Array, list[Kernel]] = {}
        for k in kernels:
            for a in kernel_reads(k):
                self.readers.setdefault(a, []).append(k)
        self.rank = {k: _batch_rank(k) for k in kernels}
        for tiles, found in self.clusters():
            self.build(tiles, found)

    def tiles(self, a: Array) -> int:
        """Into how many tiles an array falls that are private to the kernels that touch it; 0 for
        arrays that are not private."""
        if a not in self._tiles:
            self._tiles[a] = self._find_tiles(a)
        return self._tiles[a]

    def _find_tiles(self, a: Array) -> int:
        if a in self.roots or a not in self.maker or not is_static(a.shape):
            return 0
        kernels = [self.maker[a], *(k for k in self.readers.get(a, []) if k is not self.maker[a])]
        if len(kernels) < 2 or not any(isinstance(k, ContractionKernel) for k in kernels):
            return 0
        for n in range(a.ndim - 1, 0, -1):
            count = hint(prod(a.shape[:n]))
            if count < MIN_TILES:
                return 0
            if all(_at_own_tile(k, self.rank[k], a, count) for k in kernels):
                return count
        return 0

    def clusters(self) -> list[tuple[int, list[Kernel]]]:
        """Kernels that share private arrays of as many tiles: first what contractions touch, then
        what loops next to those hand on to each other."""
        group: dict[Kernel, int] = {}
        members: dict[int, list[Kernel]] = {}
        counts: dict[int, int] = {}

        def put_together(n: int, a: Array, tiles: int) -> None:
            touched = [self.maker[a], *self.readers[a]]
            ids = sorted({group[k] for k in touched if k in group})
            if any(counts[i] != tiles for i in ids):
                return
            merged = dict.fromkeys(touched)
            for i in ids:
                merged |= dict.fromkeys(members.pop(i))
            members[n], counts[n] = list(merged), tiles
            for k in merged:
                group[k] = n

        for n, a in enumerate(self.maker):
            if tiles := self.tiles(a):
                put_together(n, a, tiles)
        for n, a in enumerate(self.maker, len(self.maker)):
            touched = [self.maker[a], *self.readers.get(a, [])]
            near = next((group[k] for k in touched if k in group), None)
            if self.tiles(a) or near is None or a in self.roots or not is_static(a.shape):
                continue
            if all(_at_own_tile(k, self.rank[k], a, counts[near]) for k in touched):
                self._tiles[a] = counts[near]
                if len(touched) > 1:
                    put_together(n, a, counts[near])
        return [(counts[i], found) for i, found in members.items()]

    def build(self, tiles: int, found: list[Kernel]) -> None:
        known = set(found)
        phase: dict[Kernel, int] = {}
        for k in self.kernels:  # a path that leaves the cluster leads into a later phase
            before = {self.maker[a] for a in kernel_reads(k) if a in self.maker} - {k}
            phase[k] = max((phase[p] + (p in known and k not in known) for p in before), default=0)
        parts: dict[int, list[Kernel]] = {}
        for k in self.kernels:
            if k in known:
                parts.setdefault(phase[k], []).append(k)
        private = {
            a for a, k in self.maker.items()
            if k in known and all(r in known for r in self.readers.get(a, []))
            and self.tiles(a) == tiles
        }  # fmt: skip
        bodies: dict[int, list[Kernel]] = {}
        fresh: dict[int, set[Array]] = {}
        for n, mine in parts.items():
            copies, new = self.again(mine, private)
            bodies[n] = [*copies, *(_renamed(k, new) for k in mine)]
            fresh[n] = set(new.values())
        while bodies:  # a part that stays as it is reads what would have been private
            read = [(n, k) for n, mine in parts.items() for k in bodies.get(n, mine)]
            outside = {
                a for n, k in read for a in kernel_reads(k)
                if a in private and self.maker[a] not in parts[n]
            }  # fmt: skip
            local = {
                n: [
                    a for a in dict.fromkeys(a for k in body for a in kernel_writes(k))
                    if a in fresh[n] or (a in private and a not in outside)
                ]
                for n, body in bodies.items()
            }  # fmt: skip
            sizes = {n: sum(map(nbytes, mine)) for n, mine in local.items()}
            cuts = {n: self.cut(body, local[n], tiles) for n, body in bodies.items()}
            poor = [
                n for n, body in bodies.items()
                if len(body) < 2 or sizes[n] < MIN_BYTES
                or (sizes[n] // tiles > MAX_TILE_BYTES and cuts[n] is None)
            ]  # fmt: skip
            if not poor:
                break
            for n in poor:
                del bodies[n]
        for n, body in bodies.items():
            lines = tuple(dict.fromkeys(line for k in body for line in k.lines))
            name = f"{body[-1].name}_chain"
            made, apart = ChainKernel((tiles,), body, local[n], lines, name), []
            cut = cuts[n]
            if cut is not None:
                made = ChainKernel((cut.tiles,), cut.kernels, cut.local, lines, name)
                apart = cut.before
            for k in parts[n]:
                if k not in apart:
                    self.made[k] = made
                    self.last[made] = k

    def cut(self, body: list[Kernel], local: list[Array], tiles: int) -> Rows | None:
        """The chain by blocks of rows, if what must run before is among the kernels as they are."""
        found = by_rows(body, local, tiles) if len(body) > 1 else None
        return found if found is not None and self.rank.keys() >= set(found.before) else None

    def again(
        self, mine: list[Kernel], private: set[Array]
    ) -> tuple[list[Kernel], dict[Array, Array]]:
        """Copies of the kernels that make what these read of an earlier phase's private arrays,
        and what the copies make instead of it; nothing where that is too much work."""
        own = {a for k in mine for a in kernel_writes(k)}
        read = [a for k in mine for a in kernel_reads(k) if a in private and a not in own]
        if sum(nbytes(a) for a in dict.fromkeys(read)) < MIN_BYTES:
            return [], {}
        needed: dict[Array, None] = {}
        while read:
            a = read.pop()
            if a not in needed:
                needed[a] = None
                read += [x for x in kernel_reads(self.maker[a]) if x in private]
        makers = {self.maker[a] for a in needed}
        if sum(isinstance(k, ContractionKernel) for k in makers) > 1 or len(makers) > MAX_AGAIN:
            return [], {}
        new = {a: Array(f"{a.name}_again", a.shape, a.dtype, a.define, a.line) for a in needed}
        return [_renamed(_only(k, needed), new) for k in self.kernels if k in makers], new


def _only(k: Kernel, wanted: Iterable[Array]) -> Kernel:
    """A kernel without the stores, and then the reductions, that nothing wants."""
    if isinstance(k, ContractionKernel):
        return replace(k, stores=[t for t in k.stores if t.array in wanted])
    assert isinstance(k, LoopKernel)
    local = set(k.locals)
    read: set[Array] = set()
    stages: list[Stage] = []
    for s in reversed(k.stages):
        stores = tuple(t for t in s.stores if t.array in wanted or t.array in local & read)
        reduces = tuple(r for r in s.reduces if r.array in read)
        roots = [e for t in stores for e in (*t.index, t.value)] + [r.value for r in reduces]
        read |= {e.attr for e in loads(roots)}
        if stores or reduces:
            stages.append(replace(s, stores=stores, reduces=reduces))
    return replace(k, stages=stages[::-1], locals=[a for a in k.locals if a in read])


def _renamed(k: Kernel, new: dict[Array, Array]) -> Kernel:
    """A kernel with arrays replaced by others of the same shape."""
    if not any(a in new for a in (*kernel_reads(k), *kernel_writes(k))):
        return k
    names = dict(new)
    memo: dict[Expr, Expr] = {}

    def leaf(x: Expr) -> Expr | None:
        return load(names[x.attr], x.args) if x.op == "load" and x.attr in names else None

    def moved(e: Expr) -> Expr:
        return rewrite(e, leaf, memo)

    def store(t: Store) -> Store:
        return replace(t, array=new.get(t.array, t.array), value=moved(t.value))

    if isinstance(k, ContractionKernel):
        old = k.array
        # The accumulator's name in the epilogue goes with the definition; what is stored stays.
        names.setdefault(old, Array(old.name, old.shape, old.dtype, None, old.line))
        c = k.contraction
        made = names[old]
        made.define = replace(c, a=moved(c.a), b=moved(c.b))
        return replace(k, array=made, stores=[store(t) for t in k.stores])
    assert isinstance(k, LoopKernel)
    stages = [
        replace(
            s,
            stores=tuple(map(store, s.stores)),
            reduces=tuple(replace(r, value=moved(r.value)) for r in s.reduces),
        )
        for s in k.stages
    ]
    return replace(k, stages=stages)
