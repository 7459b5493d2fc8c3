"""Staging: a group of arrays becomes a kernel of the loop language.

Before: Groups from fuse.py. After: Kernels whose stores are only the arrays that something outside
the kernel reads. In a row group, members are placed in the earliest stage where what they read is
there: a value that depends on a reduction comes one stage after it. A full value that a later
stage reads again is loaded from where it was stored, computed again when cheap, or kept in a row
buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jitgrad.compiler.cost import weight
from jitgrad.compiler.kernels import (
    ContractionKernel,
    Kernel,
    LoopKernel,
    Reduce,
    SpecialKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Call,
    Contraction,
    Expr,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    axis,
    const,
    load,
    loads,
    rewrite,
)
from jitgrad.compiler.passes.fuse import Group, Member, own_axes
from jitgrad.compiler.passes.inline import CHEAP, Bodies
from jitgrad.compiler.passes.share import ROW_BUFFER_BYTES, share
from jitgrad.compiler.symbolic import is_static, prod


def stage(groups: list[Group], bodies: Bodies, roots: list[Array]) -> list[Kernel]:
    """One kernel for each group, in the same order."""
    home = {m.array: g for g in groups for m in g.members}
    needed = set(roots)
    for array in bodies.arrays:
        for e in loads(bodies.exprs[array]):
            if e.attr in home and home[e.attr] is not home[array]:
                needed.add(e.attr)
    kernels: list[Kernel] = []
    for k, group in enumerate(groups):
        lines = tuple(dict.fromkeys(m.array.line for m in group.members if m.array.line))
        if group.kind == "special":
            arrays = [m.array for m in group.members]
            for a in arrays:
                _set_exprs(a, bodies.exprs[a])
            kernels.append(SpecialKernel(arrays, lines, f"k{k}"))
        elif group.kind == "contraction":
            kernels.append(_contraction(group, bodies, needed, lines, f"k{k}"))
        else:
            kernels.append(share(_Loop(group, bodies, needed).kernel(lines, f"k{k}")))
    return kernels


def _set_exprs(array: Array, exprs: tuple[Expr, ...]) -> None:
    """Puts inlined expressions back into the definition."""
    d = array.define
    if isinstance(d, Contraction):
        array.define = replace(d, a=exprs[0], b=exprs[1])
    elif isinstance(d, Scatter):
        array.define = replace(d, base=exprs[0], index=exprs[1:-1], value=exprs[-1])
    elif isinstance(d, Call):
        array.define = replace(d, operands=exprs)
    elif isinstance(d, Scan):
        array.define = replace(d, body=exprs[0], factor=exprs[1] if len(exprs) > 1 else None)
    elif isinstance(d, (Sort, Pointwise, Reduction)):
        array.define = replace(d, body=exprs[0])


def _contraction(
    group: Group, bodies: Bodies, needed: set[Array], lines: tuple[str, ...], name: str
) -> ContractionKernel:
    first = group.members[0].array
    _set_exprs(first, bodies.exprs[first])
    out, _ = own_axes(first)
    values: dict[Array, Expr] = {first: load(first, tuple(axis(k) for k in range(first.ndim)))}
    stores = []
    for m in group.members:
        place = {k: axis(out[g]) for k, g in m.axes.items()}
        if m.array is not first:
            values[m.array] = _translate(bodies.exprs[m.array][0], place, values.get)
        if m.array in needed:
            stores.append(Store(m.array, _index(m.array, place), values[m.array]))
    return ContractionKernel(first, stores, lines, name)


def _translate(root: Expr, place: dict[int, Expr], value: Callable[[Array], Expr | None]) -> Expr:
    """root over a group's axes, with loads of members replaced by value(array)."""
    zero = const(0, INDEX)

    def leaf(e: Expr) -> Expr | None:
        if e.op == "axis":
            return place.get(e.attr, zero)
        if e.op == "load":
            return value(e.attr)
        return None

    return rewrite(root, leaf)


def _index(array: Array, place: dict[int, Expr]) -> tuple[Expr, ...]:
    zero = const(0, INDEX)
    return tuple(place.get(k, zero) for k in range(array.ndim))


@dataclass
class _Loop:
    """Builds the LoopKernel of one group."""

    group: Group
    bodies: Bodies
    needed: set[Array]
    at: dict[Array, int] = field(default_factory=dict)  # the stage where a member is made
    ready: dict[Array, int] = field(default_factory=dict)  # the first stage that can read it
    values: dict[Array, Expr] = field(default_factory=dict)
    scalars: dict[Array, Array] = field(default_factory=dict)  # reduce member -> its row local
    buffers: dict[Array, Array] = field(default_factory=dict)  # full member -> its row buffer

    def kernel(self, lines: tuple[str, ...], name: str) -> LoopKernel:
        self._place()
        count = max(self.ready.values()) + 1
        main: list[list[Store]] = [[] for _ in range(count)]
        rows: list[list[Store]] = [[] for _ in range(count)]
        reduces: list[list[Reduce]] = [[] for _ in range(count)]
        for m in self.group.members:
            s = self.at[m.array]
            place = {k: axis(g) for k, g in m.axes.items()}
            body = _translate(self.bodies.exprs[m.array][0], place, self._reader(s))
            if m.kind == "reduce":
                d = m.array.define
                assert isinstance(d, Reduction)
                local = Array(f"{m.array.name}_row", (), m.array.dtype, None, m.array.line)
                self.scalars[m.array] = local
                reduces[s].append(Reduce(local, body, d.combine, d.order))
                self.values[m.array] = load(local, ())
            else:
                self.values[m.array] = body
            if m.kind == "column":
                d = m.array.define
                assert isinstance(d, Reduction)
                index = _index(m.array, place)
                main[s].append(Store(m.array, index, body, d.combine))
            elif m.array in self.needed:
                store = Store(m.array, _index(m.array, place), self.values[m.array])
                (main if m.kind == "full" else rows)[self.ready[m.array]].append(store)
        for full, buffer in self.buffers.items():
            store = Store(buffer, self._inner_index(), self.values[full])
            main[self.at[full]].append(store)
        inner = tuple(self.group.inner)
        stages: list[Stage] = []
        for s in range(count):
            if rows[s]:
                stages.append(Stage((), tuple(rows[s])))
            if main[s] or reduces[s]:
                stages.append(Stage(inner, tuple(main[s]), tuple(reduces[s])))
        locals_ = [*self.scalars.values(), *self.buffers.values()]
        return LoopKernel(tuple(self.group.outer), stages, locals_, lines, name)

    def _reduces_columns(self) -> bool:
        defines = [m.array.define for m in self.group.members if m.kind == "reduce"]
        return any(isinstance(d, Reduction) and d.order.startswith("columns") for d in defines)

    def _place(self) -> None:
        """Stage numbers: as early as what a member reads allows."""
        for m in self.group.members:
            s = 0
            for e in loads(self.bodies.exprs[m.array]):
                s = max(s, self.ready.get(e.attr, 0))
            self.at[m.array] = s
            self.ready[m.array] = s + 1 if m.kind == "reduce" else s

    def _inner_index(self) -> tuple[Expr, ...]:
        p = len(self.group.outer)
        return tuple(axis(p + k) for k in range(len(self.group.inner)))

    def _reader(self, s: int) -> Callable[[Array], Expr | None]:
        return lambda array: self._value(array, s)

    def _value(self, array: Array, s: int) -> Expr | None:
        """What a load of `array` at its own point is in stage s; None for outside arrays."""
        m = self.group.member(array)
        if m is None:
            return None
        value = self.values[array]
        if m.kind != "full" or self.at[array] == s or value.op in ("load", "const"):
            return value
        if array in self.needed:
            place = {k: axis(g) for k, g in m.axes.items()}
            return load(array, _index(array, place))
        if weight([value]) <= CHEAP or not self._buffer_fits(m):
            return value
        if array not in self.buffers:
            shape = tuple(self.group.inner)
            self.buffers[array] = Array(f"{array.name}_buf", shape, array.dtype, None, array.line)
        return load(self.buffers[array], self._inner_index())

    def _buffer_fits(self, m: Member) -> bool:
        """Whether a row is small. Where columns are reduced, rows pass by side by side
        (codegen/columns.py): a whole column is never at hand."""
        inner = self.group.inner
        if not inner or not is_static(inner) or self._reduces_columns():
            return False
        size = prod(inner) * m.array.dtype.itemsize
        return isinstance(size, int) and size <= ROW_BUFFER_BYTES
