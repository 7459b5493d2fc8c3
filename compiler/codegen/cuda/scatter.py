"""Scatters on the GPU. The base has been copied; results repeat, whatever meets where.

Three ways, by what is combined and how often points may meet:

- integers of 32 and 64 bits that are added or of which the largest or smallest is wanted: atomics,
  a thread for each point, since the order does not matter.
- many points that may meet: their destinations are sorted (`radix.py`, which is stable), and a
  thread for each run of equal ones combines its values in the order of the points.
- else the points that may meet are one thread's, in order.

Floats are never added by atomics: the bits would depend on which thread came first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.combine import Combine
from jitgrad.compiler.codegen.cuda.radix import Radix
from jitgrad.compiler.codegen.cuda.special import Flat, ones_of, space_of
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Part, Scope
from jitgrad.compiler.codegen.schedule import Space
from jitgrad.compiler.loops import Array, Expr, Scatter, axis, make, postorder
from jitgrad.compiler.loops import dim as dim_expr
from jitgrad.compiler.symbolic import is_static

_ATOMIC = ("int32", "int64", "uint32", "uint64")
_MOST = 1 << 31  # keys and places are of 32 bits


def scatter(array: Array, define: Scatter, symbol: str, target: CudaTarget) -> list[Part]:
    """The launches of a scatter's points."""
    points = _Points(array, define, symbol, target)
    if array.dtype.name in _ATOMIC and define.combine in ("sum", "max", "min"):
        return [points.atomic()]
    if points.many():
        return points.by_segments()
    return [points.in_order()]


class _Points:
    def __init__(self, array: Array, define: Scatter, symbol: str, target: CudaTarget) -> None:
        self.array, self.define, self.symbol, self.target = array, define, symbol, target
        rank = array.ndim
        self.axes = [rank + j for j in range(len(define.extents))]
        self.extent = dict(zip(self.axes, define.extents, strict=True))
        # Axes that the index passes through: points that differ along them do not meet.
        self.through = [k for k in self.axes if any(i is axis(k) for i in define.index)]
        self.rest = [k for k in self.axes if k not in self.through]
        self.acc = None if define.combine == "set" else Combine(define.combine, define.value.dtype)

    def _flat(self) -> tuple[Flat, Expr, Array, Expr]:
        flat = Flat(self.extent, [self.array])
        value = flat.expr(self.define.value)
        return flat, value, *flat.place(self.array, self.define.index)

    def _space(self, axes: Sequence[int]) -> Space:
        return space_of(axes, [self.extent[k] for k in axes])

    def _scope(self, w: KernelWriter) -> Scope:
        return Scope(w, ones_of(self.axes, list(self.extent.values())), {})

    def _combine(self, w: KernelWriter, x: Array, place: str, new: str) -> None:
        """x[place] takes a value."""
        element = f"{w.array(x)}[{place}]"
        if self.acc is not None:
            old = w.let(scalar.loaded(element, self.array.dtype))
            new = self.acc.joined(old, new)
        w.line(f"{element} = {scalar.stored(new, self.array.dtype)}")

    # -- in order ----------------------------------------------------------------------------------
    def in_order(self) -> Part:
        flat, value, x, offset = self._flat()
        w = flat.writer(self.symbol, self.target)
        outer, inner = self._space(self.through), self._space(self.rest)
        with w.block(f"for p in range(cuda.grid(1), {w.extent(outer)}, cuda.gridsize(1)):"):
            point = self._scope(w)
            w.unflatten("p", outer, point)
            with w.block(f"for m in range({w.extent(inner)}):"):
                scope = point.child()
                w.unflatten("m", inner, scope)
                new, at = scope.values([value, offset])
                place = at if self.acc is None else w.let(at, "j")
                self._combine(w, x, place, new)
        return Part(w, outer.total, w.threads)

    # -- atomics -----------------------------------------------------------------------------------
    def atomic(self) -> Part:
        flat, value, x, offset = self._flat()
        w = flat.writer(self.symbol, self.target)
        space = self._space([*self.rest, *self.through])
        with w.block(f"for p in range(cuda.grid(1), {w.extent(space)}, cuda.gridsize(1)):"):
            scope = self._scope(w)
            w.unflatten("p", space, scope)
            new, at = scope.values([value, offset])
            w.line(f"atomic_{self.define.combine}({w.array(x)}, {at}, {new})")
        return Part(w, space.total, w.threads)

    # -- segments ----------------------------------------------------------------------------------
    def many(self) -> bool:
        """Whether so many points may meet that sorting them pays."""
        if not is_static([*self.define.extents, *self.array.shape]):
            return False
        count = prod(int(self.extent[k]) for k in self.rest)
        lines = prod(int(self.extent[k]) for k in self._lines())
        apart = self._apart()
        size = prod(int(self.array.shape[d]) for d, _ in apart)
        fits = count * lines < _MOST and size <= 2 * _MOST
        return self.target.many_points <= count and fits and bool(apart)

    def _apart(self) -> list[tuple[int, Expr]]:
        """The dims of the result, with their index, that are not passed through."""
        passed = {axis(k) for k in self.through}
        return [(d, i) for d, i in enumerate(self.define.index) if i not in passed]

    def _lines(self) -> list[int]:
        """Axes passed through that the other indices look at: each has a sort of its own."""
        seen = {e.attr for e in postorder([i for _, i in self._apart()]) if e.op == "axis"}
        return [k for k in self.through if k in seen]

    def by_segments(self) -> list[Part]:
        lines, apart = self._lines(), self._apart()
        free = [k for k in self.through if k not in lines]
        size = prod(int(self.array.shape[d]) for d, _ in apart)
        count = prod(int(self.extent[k]) for k in self.rest)
        sort = Radix(
            prod(int(self.extent[k]) for k in lines), count, max(1, (size - 1).bit_length()),
            self.target,
        )  # fmt: skip
        return [self._keys(sort, lines), *sort.parts(), self._runs(sort, lines, free)]

    def _keys(self, sort: Radix, lines: list[int]) -> Part:
        """The destination of each point among those where it may meet others."""
        flat = Flat(self.extent, [])
        total: Expr | None = None
        for d, i in self._apart():
            if total is not None:
                total = make("mul", total, dim_expr(self.array.shape[d]))
            total = i if total is None else make("add", total, i)
        assert total is not None
        key = flat.expr(total)
        keys, places = flat.operands.array(sort.keys[0]), flat.operands.array(sort.places[0])
        w = flat.writer("keys", self.target)
        w.workspace += sort.workspace
        space = self._space([*lines, *self.rest])
        with w.block(f"for p in range(cuda.grid(1), {w.extent(space)}, cuda.gridsize(1)):"):
            scope = self._scope(w)
            w.unflatten("p", space, scope)
            w.line(f"{w.array(keys)}[p] = u32({scope.value(key)})")
            w.line(f"{w.array(places)}[p] = i32(p % {sort.count})")
        return Part(w, space.total, w.threads)

    def _runs(self, sort: Radix, lines: list[int], free: list[int]) -> Part:
        flat, value, x, offset = self._flat()
        keys = flat.operands.array(sort.sorted_keys)
        places = flat.operands.array(sort.sorted_places)
        w = flat.writer(self.symbol, self.target)
        beside, line = self._space(free), self._space(lines)
        width, n = w.extent(beside), sort.count
        total = sort.lines * n * prod(int(self.extent[k]) for k in free)
        with w.block(f"for p in range(cuda.grid(1), {total}, cuda.gridsize(1)):"):
            w.line(f"q = p // {width}")
            w.line(f"key = {w.array(keys)}[q]")
            with w.block(f"if q % {n} == 0 or {w.array(keys)}[q - 1] != key:"):
                point = self._scope(w)
                w.unflatten(w.let(f"p % {width}", "j"), beside, point)
                w.unflatten(w.let(f"q // {n}", "j"), line, point)
                w.line(f"end = q // {n} * {n} + {n}")
                with w.block(f"while q < end and {w.array(keys)}[q] == key:"):
                    scope = point.child()
                    w.unflatten(w.let(f"i64({w.array(places)}[q])", "j"), self._space(self.rest),
                                scope)  # fmt: skip
                    new, at = scope.values([value, offset])
                    self._combine(w, x, w.let(at, "j"), new)
                    w.line("q += 1")
        return Part(w, total, w.threads)
