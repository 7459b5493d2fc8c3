"""Loop kernels on the GPU: who does which point.

Two shapes of code. *Threads*: a thread for each outer point, which does all stages alone
(elementwise kernels; reductions over leading axes, where neighbours of the outer space lie side by
side in memory). *Blocks*: a block for each outer point; its threads share the points of each stage
and combine what they reduced by warp shuffles and then shared memory (row reductions, softmax).
A grid takes its points in turn where there are more of them than blocks.

What is summed in which order is a function of the shape and the target, so results repeat; they are
not the bits of the CPU (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.accumulate import COLUMN_BLOCK
from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.combine import Combine
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Scope
from jitgrad.compiler.codegen.program import Program, Step
from jitgrad.compiler.codegen.schedule import coefficient, constant_of, walk
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import Array, axis
from jitgrad.compiler.symbolic import Dim, hint
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_LEAST_ROW = 32  # a shorter row is one thread's


def emit(program: Program, symbol: str, target: CudaTarget) -> tuple[KernelWriter, Dim, int]:
    """The kernel, the number of its outer points, and how many of them a block does at once."""
    nest = _Nest(program, symbol, target)
    if nest.blocks:
        nest.emit_blocks()
        return nest.writer, program.outer.total, 1
    nest.emit_threads()
    return nest.writer, program.outer.total, nest.writer.threads


class _Nest:
    def __init__(self, program: Program, symbol: str, target: CudaTarget) -> None:
        self.program, self.target = program, target
        self.writer = KernelWriter(symbol, program.operands, program.dims, target)
        self.blocks = self.by_blocks()

    # -- choice ----------------------------------------------------------------------------------
    def by_blocks(self) -> bool:
        steps = [s for s in self.program.steps if s.space.axes]
        if self.program.buffers:
            return True
        if not steps:
            return False
        longest = max(hint(s.space.total) for s in steps)
        if longest < min(_LEAST_ROW, self.target.threads):
            return False
        outer = self.program.outer
        if not outer.axes:
            return True
        score = 0
        s = Simplifier({})
        for step in steps:
            inside, outside = axis(step.space.axes[-1]), axis(outer.axes[-1])
            for load in loops.loads(step.roots()):
                if load.attr in self.program.operands.number:
                    poly = s.poly(load.args[0])
                    score += walk(coefficient(poly, inside))
                    score -= walk(coefficient(poly, outside))
        if score:
            return score > 0
        return not any(r.order.startswith("columns") for s in steps for r in s.reduces)

    # -- a thread for each outer point -------------------------------------------------------------
    def emit_threads(self) -> None:
        w, program = self.writer, self.program
        total = w.extent(program.outer)
        with w.block(f"for p in range(cuda.grid(1), {total}, cuda.gridsize(1)):"):
            point = Scope(w, {}, {})
            w.unflatten("p", program.outer, point)
            for step in program.steps:
                self._alone(point, step)

    def _alone(self, point: Scope, step: Step) -> None:
        w = self.writer
        scope = point.child()
        if not step.space.axes and not step.reduces:
            self._stores(scope, step)
            return
        accs = [Combine(r.combine, r.value.dtype) for r in step.reduces]
        states = [a.start(w) for a in accs]
        first, last = self._range(step, point)
        with w.block(f"for m in range({first}, {last}):"):
            inner = scope.child()
            w.unflatten("m", step.space, inner)
            self._take(inner, step, accs, states)
        for r, a, state in zip(step.reduces, accs, states, strict=True):
            point.locals[r.array] = state[1] if a.is_arg else state[0]

    def _range(self, step: Step, point: Scope) -> tuple[str, str]:
        """The points of a stage that one outer point does: all, or a block of them (split.py)."""
        w, block = self.writer, self.program.block_axis
        total = w.extent(step.space)
        if block is None:
            return "0", total
        blocks = hint(self.program.outer.extents[self.program.outer.axes.index(block)])
        size = -(-hint(step.space.total) // blocks)
        columns = step.reduces[0].order.startswith("columns")
        size = COLUMN_BLOCK if columns else size
        first = w.let(f"{point.axes[block]} * {size}", "first")
        return first, w.let(f"min({first} + {size}, {total})", "last")

    def _take(
        self, scope: Scope, step: Step, accs: Sequence[Combine], states: Sequence[list[str]]
    ) -> None:
        """One point of a stage: every value, then reductions and stores."""
        w = self.writer
        self._note(step)
        roots = [r.value for r in step.reduces] + [s.value for s in step.stores]
        values = scope.values(roots)
        reduced = values[: len(accs)]
        stored = (
            [w.let(v) for v in values[len(accs) :]] if len(step.stores) > 1 else values[len(accs) :]
        )
        for a, state, value in zip(accs, states, reduced, strict=True):
            a.add(w, state, [value, "m"] if a.is_arg else [value])
        for s, value in zip(step.stores, stored, strict=True):
            scope.store(s.array, s.offset, value)

    def _note(self, step: Step) -> None:
        """Notes how far apart neighbouring threads' elements are."""
        space = step.space if self.blocks and step.space.axes else self.program.outer
        if not space.axes:
            return
        thread, s, own = axis(space.axes[-1]), Simplifier({}), self.program.operands.number
        places = [x.args[0] for x in loops.loads(step.roots()) if x.attr in own]
        places += [x.offset for x in step.stores if x.array in own]
        self.writer.strides += [constant_of(coefficient(s.poly(e), thread)) for e in places]

    def _stores(self, scope: Scope, step: Step) -> None:
        self._take(scope, step, [], [])

    # -- a block for each outer point --------------------------------------------------------------
    def emit_blocks(self) -> None:
        w, program = self.writer, self.program
        rows = [hint(s.space.total) for s in program.steps if s.space.axes]
        w.threads = self._threads(max(rows, default=1))
        buffers = self._buffers()
        total = w.extent(program.outer)
        w.line("t = cuda.threadIdx.x")
        with w.block(f"for p in range(cuda.blockIdx.x, {total}, cuda.gridDim.x):"):
            point = Scope(w, {}, {}, buffers)
            w.unflatten("p", program.outer, point)
            for n, step in enumerate(program.steps):
                if n:
                    w.line("cuda.syncthreads()")
                self._together(point, step)
            if buffers or len(program.steps) > 1:
                w.line("cuda.syncthreads()")

    def _threads(self, row: int) -> int:
        """A power of two of threads, up to the target's, of which none idles in a row."""
        threads = min(self.target.threads, 32)
        while threads * 2 <= self.target.threads and threads * 4 <= row:
            threads *= 2
        return threads

    def _buffers(self) -> dict[Array, str]:
        """Row buffers: in shared memory as long as it lasts, else in a workspace of each block."""
        w = self.writer
        found = {}
        room = self.target.shared_bytes * 3 // 4
        for array, numel in sorted(self.program.buffers.items(), key=lambda x: x[1]):
            nbytes = numel * max(array.dtype.itemsize, 4 if array.dtype in scalar.HALVES else 1)
            if nbytes <= room:
                room -= nbytes
                name, kept = w.shared(max(numel, 1), array.dtype), array.dtype
                at = "{}"
            else:
                w.max_blocks = min(w.max_blocks, 1024)
                kept = array.dtype
                work = Array("rows", (w.max_blocks * numel,), register_dtype(kept))
                w.workspace.append(work)
                name, at = w.memory(work), f"cuda.blockIdx.x * {numel} + {{}}"
            found[array] = f"{name}[{at}]"
        return found

    def _together(self, point: Scope, step: Step) -> None:
        w = self.writer
        scope = point.child()
        if not step.space.axes and not step.reduces:
            values = scope.values([s.value for s in step.stores])  # flags faults in every thread
            with w.block("if t == 0:"):
                inner = scope.child(keep=True)
                named = [w.let(v) for v in values]
                for s, value in zip(step.stores, named, strict=True):
                    inner.store(s.array, s.offset, value)
            return
        accs = [Combine(r.combine, r.value.dtype) for r in step.reduces]
        states = [a.start(w) for a in accs]
        first, last = self._range(step, point)
        start = "t" if first == "0" else f"{first} + t"
        with w.block(f"for m in range({start}, {last}, {w.threads}):"):
            inner = scope.child()
            w.unflatten("m", step.space, inner)
            self._take(inner, step, accs, states)
        for r, a, state in zip(step.reduces, accs, states, strict=True):
            point.locals[r.array] = a.block(w, state)


def register_dtype(dtype: DType) -> DType:
    """The dtype of memory that holds values as they are in registers."""
    return dtypes.float32 if dtype in scalar.HALVES else dtype
