"""Streams: what contractions of contractions hand on never is in memory as a whole.

Before: kernels in dependency order, for a GPU. After: arrays of shape (..., rows, columns) that
contractions make and that only row-wise loops and further contractions read (the scores of
attention and all that is made of them, forward and backward) are gone. What read them is a chain:
the contractions that it needs, of which a block makes one tile after the other, and then a loop
that reduces over the columns, or a contraction that sums over them (over the rows, for the
gradients of keys and values). What is in memory is what reductions give for each row.

Contractions are computed again by each of their readers, so only those of short sums (a head's
width) are streamed. An element is computed as before; sums over columns are in another order, and
the sum of a softmax is scaled as its maximum grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
    Reduce,
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
    make,
    rewrite,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint, is_static, prod
from jitgrad.runtime import dtypes

MAX_DEPTH = 256  # products of a sum that may be computed again
_COMBINES = ("sum", "max", "min")


def stream(kernels: list[Kernel], roots: Iterable[Array], least: int, side: int) -> list[Kernel]:
    """least: elements of an array that is worth it. side: its least rows and columns."""
    found = _Finder(kernels, set(roots), least, side)
    return _Writer(found).kernels() if found.gone else kernels


def _identity(rank: int) -> tuple[Expr, ...]:
    return tuple(axis(n) for n in range(rank))


def _wide(a: Array) -> tuple[Dim, ...]:
    """An array's shape with its batch dims as one, and without those of one."""
    shape = tuple(d for d in a.shape if isinstance(d, Sym) or d != 1)
    return shape if len(shape) < 3 else (prod(shape[:-2]), *shape[-2:])


def _place(e: Expr, shape: Sequence[Dim]) -> tuple[Expr, ...]:
    """Where an expression of a kernel's axes, which are so many, loads: as `_wide`."""
    return _index(e.attr, e.args, shape)


def _index(a: Array, index: Sequence[Expr], shape: Sequence[Dim]) -> tuple[Expr, ...]:
    wide = [n for n, d in enumerate(a.shape) if isinstance(d, Sym) or d != 1]
    if len(wide) < 3:
        return tuple(index[n] for n in wide)
    flat = index[wide[0]]
    for n in wide[1:-2]:
        flat = flat * dim(a.shape[n]) + index[n]
    flat = Simplifier(dict(enumerate(shape))).simplify(flat)
    return flat, *(index[n] for n in wide[-2:])


def _digits(dims: Sequence[Dim]) -> list[Expr]:
    """The batch axes of so many points as expressions of one, axis 0."""
    found = []
    for n, d in enumerate(dims):
        e, inner = axis(0), prod(dims[n + 1 :])
        if inner != 1:
            e = e // hint(inner)
        found.append(e if n == 0 else e % hint(d))
    return found


def _squeezed(k: ContractionKernel) -> ContractionKernel:
    """A contraction with one axis for the batch, and without axes of one."""
    old, c = k.array, k.contraction
    rank = old.ndim
    wide = [n for n, d in enumerate(old.shape) if d != 1]
    batch = wide[:-2]
    if not is_static([*old.shape, *c.k]) or set(batch) - set(c.batch):
        return k
    if len(wide) == rank and len(batch) < 2:
        return k
    made = Array(old.name, _wide(old), old.dtype, None, old.line)
    new = dict(zip(batch, _digits([old.shape[n] for n in batch]), strict=True))
    last = range(made.ndim - len(wide[-2:]), made.ndim)
    new |= {n: axis(at) for n, at in zip(wide[-2:], last, strict=True)}
    new |= {rank + j: axis(made.ndim + j) for j in range(len(c.k))}
    at = {n: axis_.attr for n, axis_ in new.items() if n in wide[-2:]}

    def kept(group: Sequence[int]) -> tuple[int, ...]:
        return tuple(at[n] for n in group if n in at)

    def moved(e: Expr) -> Expr:
        return _renumbered(e, new, old, made)

    define = replace(c, m=kept(c.m), n=kept(c.n), a=moved(c.a), b=moved(c.b))
    made.define = replace(define, batch=(0,) if batch else kept(c.batch))
    stores = [Store(t.array, tuple(map(moved, t.index)), moved(t.value)) for t in k.stores]
    return ContractionKernel(made, stores, k.lines, k.name)


def _renumbered(e: Expr, new: Mapping[int, Expr], old: Array, made: Array) -> Expr:
    """An expression with axes replaced (by 0 where there is none any more), and an accumulator."""
    whole = load(made, _identity(made.ndim))

    def leaf(x: Expr) -> Expr | None:
        if x.op == "load" and x.attr is old:
            return whole
        return new.get(x.attr, const(0, INDEX)) if x.op == "axis" else None

    return rewrite(e, leaf)


def _mirrored(k: ContractionKernel) -> ContractionKernel:
    """A contraction with its operands, and so rows and columns, exchanged."""
    old, c = k.array, k.contraction
    rank = old.ndim
    made = Array(old.name, (*old.shape[:-2], old.shape[-1], old.shape[-2]), old.dtype)
    new = {n: axis(n) for n in range(rank + len(c.k))}
    new[rank - 2], new[rank - 1] = new[rank - 1], new[rank - 2]

    def moved(e: Expr) -> Expr:
        return _renumbered(e, new, old, made)

    made.define = replace(c, a=moved(c.b), b=moved(c.a))
    stores = [Store(t.array, tuple(map(moved, t.index)), moved(t.value)) for t in k.stores]
    return ContractionKernel(made, stores, k.lines, k.name)


def _flattened(k: LoopKernel) -> LoopKernel:
    """A loop over rows, or over all elements, with one axis for the batch."""
    columns = any(s.inner for s in k.stages)
    batch = len(k.outer) - (1 if columns else 2)
    if batch < 2 or not is_static(k.outer):
        return k
    new = dict(enumerate(_digits(k.outer[:batch])))
    new |= {n: axis(n - batch + 1) for n in range(batch, len(k.outer) + 1)}

    def moved(e: Expr) -> Expr:
        return rewrite(e, lambda x: new[x.attr] if x.op == "axis" else None)

    stages = [
        replace(
            s,
            stores=tuple(
                replace(t, index=tuple(map(moved, t.index)), value=moved(t.value)) for t in s.stores
            ),
            reduces=tuple(replace(r, value=moved(r.value)) for r in s.reduces),
        )
        for s in k.stages
    ]
    return replace(k, outer=(prod(k.outer[:batch]), *k.outer[batch:]), stages=stages)


class _Finder:
    """kernels: contractions squeezed. gone: the arrays that are not made any more."""

    def __init__(self, kernels: list[Kernel], roots: set[Array], least: int, side: int) -> None:
        self.originals = kernels
        self.kernels: list[Kernel] = []
        self.least, self.side = least, side
        self.gone: set[Array] = set()
        self.read = {a for k in kernels for a in kernel_reads(k)}
        for k in kernels:  # what contractions make, and what is made of it
            if isinstance(k, ContractionKernel):
                k = _squeezed(k)
            elif isinstance(k, LoopKernel) and self.touched(k):
                k = _flattened(k)
            self.kernels.append(k)
            product = isinstance(k, ContractionKernel) and self.computable(k)
            if product or (isinstance(k, LoopKernel) and self.touched(k)):
                new = set(kernel_writes(k)) - roots
                self.gone |= {a for a in new if self.large(a)}
        self.settle()

    def touched(self, k: Kernel) -> set[Array]:
        return self.gone.intersection((*kernel_reads(k), *kernel_writes(k)))

    def large(self, a: Array) -> bool:
        shape = _wide(a)
        if len(shape) < 2 or not is_static(shape) or a not in self.read or a.strides is not None:
            return False
        return hint(prod(shape)) >= self.least and min(map(hint, shape[-2:])) >= self.side

    def settle(self) -> None:
        """Takes away what some kernel needs, until nothing changes; then what there is no gain
        in: a contraction whose results only meet another one may as well be stored."""
        while True:
            before = len(self.gone)
            for k in self.kernels:
                if self.touched(k):
                    self.gone -= self.needed(k)
            if len(self.gone) == before:
                self.gone &= self.reduced()
            if len(self.gone) == before:
                return

    def needed(self, k: Kernel) -> set[Array]:
        """Of the arrays that are gone those that a kernel cannot do without."""
        mine = self.touched(k)
        if isinstance(k, ContractionKernel):
            makes = self.gone.intersection(kernel_writes(k))
            c = k.contraction
            first, second = ({e.attr for e in loads([x])} & self.gone for x in (c.a, c.b))
            if first and second:
                return second
            if second:
                return self.needed(_mirrored(k)) if _split_last(k) else mine
            if first and makes:  # the smaller of them is stored
                return min(first, makes, key=lambda x: sum(map(nbytes, x)))
            return set() if (self.consumes(k) if first else self.produces(k)) else mine
        return set() if isinstance(k, LoopKernel) and self.row_wise(k) else mine

    def reduced(self) -> set[Array]:
        """Arrays that hang together with a reduction over columns."""
        left = [self.touched(k) for k in self.kernels]
        found: set[Array] = set()
        for k, mine in zip(self.kernels, left, strict=True):
            if isinstance(k, LoopKernel) and any(s.reduces for s in k.stages):
                found |= mine
        while True:
            more = [mine for mine in left if mine & found and not mine <= found]
            if not more:
                return found
            found.update(*more)

    def computable(self, k: ContractionKernel) -> bool:
        """Whether a contraction may be computed again, by tiles of its rows and columns."""
        c = k.contraction
        if c.acc is not dtypes.float32 or c.winograd or not is_static(c.k):
            return False
        return hint(prod(c.k)) <= MAX_DEPTH and _split_last(k)

    def produces(self, k: ContractionKernel) -> bool:
        whole, shape = _identity(k.array.ndim), k.array.shape
        stores = [(t.array, _index(t.array, t.index, shape)) for t in k.stores]
        read = [e for e in loads([t.value for t in k.stores]) if e.attr in self.gone]
        return self.computable(k) and all(
            a in self.gone and index == whole and _wide(a) == shape
            for a, index in [*stores, *((e.attr, _place(e, shape)) for e in read)]
        )

    def consumes(self, k: ContractionKernel) -> bool:
        """A contraction over columns, or rows, of what its first operand reads."""
        rank, c = k.array.ndim, k.contraction
        if len(c.k) != 1 or c.acc is not dtypes.float32 or c.winograd or not _split_last(k):
            return False
        others = [e for e in loads([c.b, *(t.value for t in k.stores)]) if e.attr in self.gone]
        inside = [e for e in loads([c.a]) if e.attr in self.gone]
        shape = (*k.array.shape, *c.k)
        places = {_place(e, shape) for e in inside}
        lead, shapes = _identity(rank - 2), {_wide(e.attr) for e in inside}
        known = {(*lead, axis(rank - 2), axis(rank)), (*lead, axis(rank), axis(rank - 2))}
        return not others and len(places) == len(shapes) == 1 and places <= known

    def row_wise(self, k: LoopKernel) -> bool:
        """A loop over rows whose stages go along the columns, or over all elements."""
        columns = {s.inner for s in k.stages if s.inner}
        if len(columns) > 1 or any(len(d) != 1 for d in columns):
            return False
        shape = (*k.outer, *(d for inner in columns for d in inner))
        if not is_static(shape) or 1 in shape:
            return False
        whole = _identity(len(shape))
        for s in k.stages:
            if any(r.combine not in _COMBINES or r.order.startswith("columns") for r in s.reduces):
                return False
            if s.reduces and not s.inner:
                return False
            for t in s.stores:
                place, rows = _index(t.array, t.index, shape), bool(columns) and not s.inner
                if t.combine:
                    return False
                if t.array in k.locals:
                    fits = t.array.shape == shape[-1:] and place == whole[-1:]
                elif rows:
                    fits = t.array not in self.gone
                else:
                    fits = t.array in self.gone and place == whole and _wide(t.array) == shape
                if not fits:
                    return False
        for e in loads(kernel_exprs(k)):
            if e.attr in self.gone and (_place(e, shape) != whole or _wide(e.attr) != shape):
                return False
            if e.attr in k.locals and e.args and e.args != whole[-1:]:
                return False
        return True


def _split_last(k: ContractionKernel) -> bool:
    """Whether the last two axes are the rows and the columns, and those before the batch."""
    rank, c = k.array.ndim, k.contraction
    if rank < 2 or c.m != (rank - 2,) or c.n != (rank - 1,):
        return False
    return c.batch == tuple(range(rank - 2)) and is_static(k.array.shape)


class _Writer:
    """Writes the kernels that are left. value: what an element of an array that is gone is, by its
    own axes, from elements of contractions."""

    def __init__(self, found: _Finder) -> None:
        self.found = found
        self.value: dict[Array, Expr] = {}
        self.products: dict[Array, ContractionKernel] = {}
        self.out: list[Kernel] = []

    def kernels(self) -> list[Kernel]:
        gone, found = self.found.gone, self.found
        for k, original in zip(found.kernels, found.originals, strict=True):
            if not found.touched(k):
                self.out.append(original)
            elif isinstance(k, LoopKernel):
                self.loop(k)
            else:
                assert isinstance(k, ContractionKernel)
                if any(t.array in gone for t in k.stores):
                    self.product(k)
                else:
                    self.consumer(k)
        return self.out

    def filled(
        self, e: Expr, shape: Sequence[Dim], more: Callable[[Expr], Expr | None] = lambda x: None
    ) -> Expr:
        """An expression of so many axes with what is gone written out."""

        def leaf(x: Expr) -> Expr | None:
            if x.op == "load" and x.attr in self.value:
                return _at(self.value[x.attr], _place(x, shape))
            return more(x)

        return rewrite(e, leaf)

    def product(self, k: ContractionKernel) -> None:
        for t in k.stores:
            self.value[t.array] = self.filled(t.value, k.array.shape)
        self.products[k.array] = k

    def consumer(self, k: ContractionKernel) -> None:
        if not any(e.attr in self.value for e in loads([k.contraction.a])):
            k = _mirrored(k)
        c = k.contraction

        def end(exprs: Sequence[Expr]) -> Kernel:
            # The accumulator's name goes with the definition; what is stored stays.
            made = Array(k.array.name, k.array.shape, k.array.dtype, None, k.array.line)
            made.define = replace(c, a=exprs[0])
            whole = load(made, _identity(made.ndim))

            def own(x: Expr) -> Expr | None:
                return whole if x.op == "load" and x.attr is k.array else None

            stores = [replace(t, value=rewrite(t.value, own)) for t in k.stores]
            return ContractionKernel(made, stores, k.lines, k.name)

        self.chain(k, [self.filled(c.a, (*k.array.shape, *c.k))], end)

    def loop(self, k: LoopKernel) -> None:
        outer = _identity(len(k.outer))
        shape = (*k.outer, *next((s.inner for s in k.stages if s.inner), ()))
        local: dict[Array, Expr] = {}
        groups: list[list[tuple[Reduce, Expr, Array]]] = []
        rows: list[Store] = []

        def more(x: Expr) -> Expr | None:
            return local.get(x.attr) if x.op == "load" else None

        for s in k.stages:
            made = []
            for r in s.reduces:
                kept = Array(r.array.name, k.outer, r.value.dtype, None, r.array.line)
                made.append((r, self.filled(r.value, shape, more), kept))
            for t in s.stores:
                value = self.filled(t.value, shape, more)
                if t.array in k.locals:
                    local[t.array] = value
                elif t.array in self.found.gone:
                    self.value[t.array] = value
                else:
                    rows.append(replace(t, value=value))
            local |= {r.array: load(kept, outer) for r, _, kept in made}
            if made:
                groups.append(made)
        while groups:
            group = groups.pop(0)
            if groups and _softmax(group, groups[0]):
                group += groups.pop(0)
            self.reductions(k, group)
        if rows:
            self.out.append(LoopKernel(k.outer, [Stage((), tuple(rows))], [], k.lines, k.name))

    def reductions(self, k: LoopKernel, group: list[tuple[Reduce, Expr, Array]]) -> None:
        """A chain that stores what is reduced for each row; of a softmax, in two stages."""
        outer = _identity(len(k.outer))
        inner = next(s.inner for s in k.stages if s.inner)
        two = len(group) == 2 and _softmax(group[:1], group[1:])

        def end(exprs: Sequence[Expr]) -> Kernel:
            own = [Array(kept.name, (), kept.dtype) for *_, kept in group]
            reduces = [
                Reduce(a, e, r.combine, r.order)
                for a, e, (r, _, _) in zip(own, exprs, group, strict=True)
            ]
            if two:
                value = make("exp", exprs[0] - load(own[0], ()))
                reduces[1] = replace(reduces[1], value=value)
            parts = [(r,) for r in reduces] if two else [tuple(reduces)]
            stores = tuple(
                Store(kept, outer, load(a, ())) for a, (*_, kept) in zip(own, group, strict=True)
            )
            stages = [*(Stage(inner, (), part) for part in parts), Stage((), stores)]
            return LoopKernel(k.outer, stages, own, k.lines, k.name)

        self.chain(k, [group[0][1]] * 2 if two else [e for _, e, _ in group], end)

    def chain(self, k: Kernel, exprs: list[Expr], end: Callable[[Sequence[Expr]], Kernel]) -> None:
        """The contractions that expressions read, and a kernel of the expressions behind them."""
        read = dict.fromkeys(e.attr for e in loads(exprs) if e.attr in self.products)
        new = {a: Array(a.name, a.shape, a.dtype, a.define, a.line) for a in read}

        def own(x: Expr) -> Expr | None:
            return load(new[x.attr], x.args) if x.op == "load" and x.attr in new else None

        last = end([rewrite(e, own) for e in exprs])
        if not new:
            self.out.append(last)
            return
        parts = [
            ContractionKernel(
                n, [Store(n, _identity(n.ndim), load(n, _identity(n.ndim)))],
                self.products[a].lines, self.products[a].name,
            )
            for a, n in new.items()
        ]  # fmt: skip
        lines = tuple(dict.fromkeys(line for p in (*parts, k) for line in p.lines))
        tiles = (prod(next(iter(new)).shape[:-2]),)
        self.out.append(
            ChainKernel(tiles, [*parts, last], list(new.values()), lines, f"{k.name}_stream")
        )


def _softmax(
    first: list[tuple[Reduce, Expr, Array]], second: list[tuple[Reduce, Expr, Array]]
) -> bool:
    """Whether these are the maximum of x, and the sum of exp(x - it)."""
    if len(first) != 1 or len(second) != 1 or first[0][1].dtype is not dtypes.float32:
        return False
    (top, x, kept), (total, value, _) = first[0], second[0]
    if (top.combine, total.combine) != ("max", "sum"):
        return False
    return value is make("exp", x - load(kept, _identity(kept.ndim)))


def _at(e: Expr, index: Sequence[Expr]) -> Expr:
    """An expression of axes at an index."""
    return rewrite(e, lambda x: index[x.attr] if x.op == "axis" else None)
