"""The form of a LoopKernel that code is emitted from: canonical operands, few axes, flat offsets.

Owns `Program` and how it is made of a kernel: math expanded, indices simplified, adjacent axes
joined where every index allows it. It chooses no loop (`nest.py`) and knows no LLVM.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from jitgrad.compiler import kernels, loops
from jitgrad.compiler.codegen.memory import masks_pay
from jitgrad.compiler.codegen.schedule import (
    Operands,
    Space,
    collapse,
    flatten_loads,
    offset_of,
    step_of,
)
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.kernels import LoopKernel, Reduce
from jitgrad.compiler.loops import (
    INDEX,
    LEAVES,
    Array,
    Expr,
    postorder,
    rewrite,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint, settled
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import CompileError

_MOST_COPIES = 8  # of an element, side by side
_FREE = {"const", "axis", "size", "load", "bitcast"}


@dataclass(frozen=True)
class FlatStore:
    """array[offset] = value, array being an operand's stand-in or a row buffer; `combine` as in
    kernels.Store (columns.py turns such stores into others)."""

    array: Array
    offset: Expr
    value: Expr
    combine: str = ""


@dataclass
class Step:
    """A stage: its inner space, its stores and reduces."""

    space: Space
    stores: list[FlatStore]
    reduces: list[Reduce]

    def roots(self) -> list[Expr]:
        stored = [e for s in self.stores for e in (s.offset, s.value)]
        return stored + [r.value for r in self.reduces]

    def cost(self) -> int:
        """Scalar operations of the body."""
        return _operations(self.roots())


@dataclass
class RowPart:
    """The points [start, stop) of the last outer axis, and what they compute: the steps' axis is
    counted from `start`."""

    start: int
    stop: int
    steps: list[Step]


@dataclass
class Program:
    """A kernel ready to be emitted.

    buffers: {row buffer: elements}. column_limit: levels of blocks that a sum in the columns order
    has. flat_lanes: the lanes order without blocks. block_axis: for the first of two
    launches, the outer axis that numbers the blocks of the (only) reduction. scalar: no lanes.
    unit: where not 0, one outer point after the other with lanes along each stage's last axis, and
    blocks of work are multiples of so many points. aligned: where not 1, so many neighbours along
    the last outer axis have values in common, and rows and blocks are multiples of it. row_parts:
    where there are some, what the points of each part of a row compute, as `steps` says of all.
    """

    outer: Space
    steps: list[Step]
    buffers: dict[Array, int]
    operands: Operands
    dims: dict[str, Dim]
    column_limit: int = 3
    flat_lanes: bool = False
    block_axis: int | None = None
    scalar: bool = False
    unit: int = 0
    aligned: int = 1
    row_parts: list[RowPart] = field(default_factory=list)

    def exprs(self) -> list[Expr]:
        return [e for s in self.steps for e in s.roots()]

    def emitted(self) -> list[Expr]:
        """The expressions that code is made for."""
        parts = [e for p in self.row_parts for s in p.steps for e in s.roots()]
        return parts or self.exprs()

    def cost(self) -> int:
        return _operations(self.exprs())

    def lanes(self, target: Target) -> int:
        """Lanes of one vector register, for the widest of what the kernel mostly computes with."""
        if self.scalar:
            return 1
        sizes = [4]
        for e in postorder(self.exprs()):
            if e.dtype is not INDEX and e.op not in ("const", "bitcast"):
                sizes.append(e.dtype.itemsize)
        wide = sum(s == 8 for s in sizes) * 2 > len(sizes)
        return max(1, min(16, target.vector_bytes // (8 if wide else 4)))

    def masks_pay(self, target: Target) -> bool:
        """Masked memory accesses are single instructions for every element size of the kernel."""
        arrays = [a for a in self.operands.list if isinstance(a, Array)]
        return masks_pay(target, [a.dtype.itemsize for a in [*arrays, *self.buffers]])


def _operations(roots: Iterable[Expr]) -> int:
    return sum(1 for e in postorder(roots) if e.op not in _FREE and e.dtype is not INDEX)


def named_dims(kernel: LoopKernel | Iterable[Dim]) -> dict[str, Dim]:
    """{name: Sym} of every named dim of the given dims."""
    out: dict[str, Dim] = {}
    todo: list[Dim] = list(kernel) if not isinstance(kernel, LoopKernel) else kernel_dims(kernel)
    while todo:
        d = todo.pop()
        if isinstance(d, Sym):
            for monomial, _ in d.key:
                for atom in monomial:
                    if isinstance(atom, str):
                        out[atom] = Sym({(atom,): 1}, d.env)
                    else:
                        todo += [atom.a, atom.b]
    return out


def kernel_dims(kernel: LoopKernel) -> list[Dim]:
    """Every dim that the kernel's code may ask for."""
    dims: list[Dim] = list(kernel.outer)
    for s in kernel.stages:
        dims += s.inner
    for a in (*kernels.kernel_reads(kernel), *kernels.kernel_writes(kernel), *kernel.locals):
        dims += [*a.shape, *(a.strides or ())]
    return dims


def prepare(kernel: LoopKernel, math: bool = False) -> Program:
    """The program of a kernel; with `math`, math functions stay as they are. Raises CompileError
    for complex dtypes."""
    operands = Operands()
    p, space = len(kernel.outer), Space(list(range(len(kernel.outer))), _settled(kernel.outer))
    outer = dict(enumerate(space.extents))
    local: dict[Array, Array] = {}
    buffers: dict[Array, int] = {}
    for a in kernel.locals:
        local[a] = a
        if a.shape:
            numel = a.numel
            if isinstance(numel, Sym):
                raise CompileError(f"row buffer {a} must have a static shape")
            flat = Array(f"local{len(buffers)}", (numel,), a.dtype)
            local[a], buffers[flat] = flat, numel
    steps = []
    for stage in kernel.stages:
        inner = Space([p + j for j in range(len(stage.inner))], _settled(stage.inner))
        extents = {**outer, **dict(zip(inner.axes, inner.extents, strict=True))}
        s = Simplifier(extents)

        def flatten(e: Expr, s: Simplifier = s) -> Expr:
            return flatten_loads(e, operands, local, s, math)

        stores = []
        for store in stage.stores:
            value = flatten(store.value)
            target = local[store.array] if store.array in local else operands.array(store.array)
            offset = flatten(offset_of(store.array, store.index))
            stores.append(FlatStore(target, offset, value, store.combine))
        reduces = [replace(r, value=flatten(r.value)) for r in stage.reduces]
        steps.append(Step(inner, stores, reduces))
    _refuse(e for s in steps for e in s.roots())
    program = Program(space, steps, buffers, operands, named_dims(kernel))
    _collapse(program)
    _join_copies(program)
    program.aligned = _neighbours(program)
    return program


def _settled(extents: Iterable[Dim]) -> list[Dim]:
    """Extents as loops have them: an axis of one point is none to the indices (index.py)."""
    return [settled(d) for d in extents]


def _refuse(roots: Iterable[Expr]) -> None:
    for e in postorder(roots):
        moved = e.op in LEAVES or e.op == "select"
        if e.dtype.category is dtypes.Category.COMPLEX and not moved:
            raise CompileError(f"complex numbers ({e.op} of {e.dtype.name}) are not compiled")


def _collapse(program: Program) -> None:
    """Joins axes: the outer ones, and those of each stage."""
    exprs = program.exprs()
    extents = dict(zip(program.outer.axes, program.outer.extents, strict=True))
    program.outer, replaced = collapse(program.outer, exprs, extents)
    extents = dict(zip(program.outer.axes, program.outer.extents, strict=True))
    for step in program.steps:
        lanes = any(not r.order.startswith("columns") for r in step.reduces)
        inner = dict(zip(step.space.axes, step.space.extents, strict=True))
        fixed = 1 if lanes and step.space.axes else 0
        space, mine = collapse(step.space, step.roots(), {**extents, **inner}, fixed)
        inner = dict(zip(space.axes, space.extents, strict=True))
        s = Simplifier({**extents, **inner})
        mapping = {**replaced, **mine}

        def renew(e: Expr, mapping: dict[Expr, Expr] = mapping, s: Simplifier = s) -> Expr:
            return s.simplify(rewrite(e, lambda x: mapping.get(x)))

        step.space = space
        step.stores = [
            replace(t, offset=renew(t.offset), value=renew(t.value)) for t in step.stores
        ]
        step.reduces = [replace(r, value=renew(r.value)) for r in step.reduces]


def _join_copies(program: Program) -> None:
    """Joins a short last outer axis with the one before it, so that rows are long: where stores
    write both on end, and nothing else reads it (copies of each element, as in nearest
    interpolation) or elements are only moved (interleaved, as in pixel_shuffle)."""
    if len(program.outer.axes) < 2:
        return
    (k, j), (length, count) = program.outer.axes[-2:], program.outer.extents[-2:]
    if count not in range(2, _MOST_COPIES + 1) or not isinstance(length, int):
        return
    by = loops.const(count, INDEX)
    mapping = {
        loops.axis(k): loops.make("floordiv", loops.axis(k), by),
        loops.axis(j): loops.make("mod", loops.axis(k), by),
    }
    outer = Space(program.outer.axes[:-1], [*program.outer.extents[:-2], length * count])
    steps = []
    for step in program.steps:
        inner = dict(zip(step.space.axes, step.space.extents, strict=True))
        s = Simplifier({**dict(zip(outer.axes, outer.extents, strict=True)), **inner})

        def renew(e: Expr, s: Simplifier = s) -> Expr:
            return s.simplify(rewrite(e, lambda x: mapping.get(x)))

        stores = [replace(t, offset=renew(t.offset), value=renew(t.value)) for t in step.stores]
        reduces = [replace(r, value=renew(r.value)) for r in step.reduces]
        steps.append(Step(step.space, stores, reduces))
    moves = not any(t.reduces or t.space.axes for t in steps)
    roots = (
        [t.offset for s in steps for t in s.stores]
        if moves
        else [e for t in steps for e in t.roots()]
    )
    if not any(e is mapping[loops.axis(j)] for e in postorder(roots)):
        program.outer, program.steps = outer, steps


def _neighbours(program: Program) -> int:
    """How many neighbours along the last outer axis have values in common: 1, 2, 3, 4, 5 or 7."""
    if not program.outer.axes:
        return 1
    k, row = program.outer.axes[-1], program.outer.extents[-1]
    known: dict[Expr, int] = {}
    found = 1
    for e in postorder(program.exprs()):
        known[e] = step_of(e, k, known)
        if e.dtype is not INDEX and e.op not in LEAVES or e.op == "load":
            odd = known[e] % 2 and known[e] <= _MOST_COPIES
            found = max(found, known[e] if odd else math.gcd(known[e], 4) if known[e] else 1)
    if len(program.outer.axes) > 1 and (isinstance(row, Sym) or row % found):
        return 1
    return found


def points_cost(program: Program) -> float:
    """Nanoseconds that one outer point may take, roughly; for choosing grains."""
    total = 0.0
    for step in program.steps:
        touched = sum(
            e.dtype.itemsize for e in loops.loads(step.roots()) if e.attr in program.operands.number
        ) + sum(t.array.dtype.itemsize for t in step.stores)
        each = 0.1 * touched + 0.12 * step.cost() + 0.2
        total += each * max(1, hint(step.space.total))
    return max(total, 0.05)


def bare_program(
    outer: Space,
    extents: dict[int, Dim],
    stores: list[tuple[Array, Expr, Expr]],
    kernel_dims: list[Dim],
) -> Program:
    """A program of one step whose body is emitted by hand."""
    operands = Operands()
    s = Simplifier(extents)
    pairs = zip(outer.axes, outer.extents, strict=True)
    wide = [(k, d) for k, d in pairs if not isinstance(d, int) or d != 1]
    outer = Space([k for k, _ in wide], [d for _, d in wide])
    flat = []
    for array, offset, value in stores:
        value = flatten_loads(value, operands, {}, s)
        stand_in = operands.array(array)
        flat.append(FlatStore(stand_in, flatten_loads(offset, operands, {}, s), value))
    reads = [a for a in operands.list if isinstance(a, Array)]
    dims = kernel_dims + [d for a in reads for d in (*a.shape, *(a.strides or ()))]
    return Program(outer, [Step(Space([], []), flat, [])], {}, operands, named_dims(dims))
