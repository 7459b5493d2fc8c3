"""Loop kernels on the GPU: who does which point.

Two shapes of code. *Threads*: a thread for each outer point, which does all stages alone
(elementwise kernels; reductions over leading axes, where neighbours of the outer space lie side by
side in memory). *Blocks*: a block for each outer point; its threads share the points of each stage
and combine what they reduced by warp shuffles and then shared memory (row reductions, softmax).
A grid takes its points in turn where there are more of them than blocks. Where neighbouring points
lie side by side, a thread does some of them at once (`wide.py`).

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
from jitgrad.compiler.codegen.cuda.wide import Lanes, lanes_of
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Part, Scope
from jitgrad.compiler.codegen.program import Program, Step
from jitgrad.compiler.codegen.schedule import coefficient, constant_of, walk
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import Array, axis
from jitgrad.compiler.symbolic import Sym, hint
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_LEAST_ROW = 32  # a shorter row is one thread's


def emit(program: Program, symbol: str, target: CudaTarget) -> Part:
    """The kernel of a program."""
    nest = _Nest(program, symbol, target)
    if nest.blocks:
        nest.emit_blocks()
        return Part(nest.writer, program.outer.total, 1)
    nest.emit_threads()
    return Part(nest.writer, program.outer.total, nest.writer.threads * nest.lanes)


class _Nest:
    def __init__(self, program: Program, symbol: str, target: CudaTarget) -> None:
        self.program, self.target = program, target
        self.writer = KernelWriter(symbol, program.operands, program.dims, target)
        self.blocks = self.by_blocks()
        self.lanes = 1 if self.blocks else self._lanes()

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
    def _lanes(self) -> int:
        """How many points a thread of an elementwise kernel does at once."""
        outer, steps = self.program.outer, self.program.steps
        if any(s.space.axes or s.reduces for s in steps) or not outer.axes:
            return 1
        if hint(outer.total) < self.target.many:
            return 1
        own = self.program.operands.number
        count = min(lanes_of(s, own, outer.axes[-1]) for s in steps)
        last = outer.extents[-1]
        if len(outer.axes) > 1 and (isinstance(last, Sym) or last % count):
            return 1
        return count

    def emit_threads(self) -> None:
        w, program = self.writer, self.program
        total = w.extent(program.outer)
        start, count = "cuda.grid(1)", self.lanes
        if count > 1:
            whole = w.let(f"{total} // {count} * {count}", "whole")
            with w.block(
                f"for p in range(cuda.grid(1) * {count}, {whole}, cuda.gridsize(1) * {count}):"
            ):
                point = Scope(w, {}, {})
                w.unflatten("p", program.outer, point)
                for step in program.steps:
                    lanes = Lanes(point.child(), step, program.outer.axes[-1], count)
                    self._take(lanes.scopes, step, [], [], lanes)
            if not isinstance(program.outer.total, Sym) and program.outer.total % count == 0:
                return
            start = f"{whole} + cuda.grid(1)"
        with w.block(f"for p in range({start}, {total}, cuda.gridsize(1)):"):
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
            self._take([inner], step, accs, states)
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
        size = COLUMN_BLOCK if columns else -(-size // 8) * 8  # wide loads stay aligned
        first = w.let(f"{point.axes[block]} * {size}", "first")
        return first, w.let(f"min({first} + {size}, {total})", "last")

    def _take(
        self,
        scopes: Sequence[Scope],
        step: Step,
        accs: Sequence[Combine],
        states: Sequence[list[str]],
        lanes: Lanes | None = None,
    ) -> None:
        """Points of a stage, one for each scope: every value, then reductions and stores."""
        w = self.writer
        self._note(step)
        roots = [r.value for r in step.reduces] + [s.value for s in step.stores]
        stored = []
        for k, scope in enumerate(scopes):
            values = scope.values(roots)
            new = values[len(accs) :]
            several = len(new) > 1 or (new and lanes is not None)
            stored.append([w.let(v) for v in new] if several else new)
            place = "m" if k == 0 else f"(m + {k})"
            for a, state, value in zip(accs, states, values[: len(accs)], strict=True):
                a.add(w, state, [value, place] if a.is_arg else [value])
        for n, s in enumerate(step.stores):
            if lanes is None:
                scopes[0].store(s.array, s.offset, stored[0][n])
            else:
                lanes.store(s.array, s.offset, [row[n] for row in stored])

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
        self._take([scope], step, [], [])

    # -- a block for each outer point --------------------------------------------------------------
    def emit_blocks(self) -> None:
        w, program = self.writer, self.program
        rows = [hint(s.space.total) for s in program.steps if s.space.axes]
        each = max((self._row_lanes(s) for s in program.steps), default=1)
        w.threads = self._threads(max(rows, default=1), max(each, 2))
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

    def _threads(self, row: int, each: int) -> int:
        """A power of two of threads, up to the target's, that each have `each` points of a row."""
        threads = min(self.target.threads, 32)
        while threads * 2 <= self.target.threads and threads * 2 * each <= row:
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
            # The others do not even read: it may be what the first one writes.
            with w.block("if t == 0:"):
                named = [w.let(v) for v in scope.values([s.value for s in step.stores])]
                for s, value in zip(step.stores, named, strict=True):
                    scope.store(s.array, s.offset, value)
            return
        accs = [Combine(r.combine, r.value.dtype) for r in step.reduces]
        states = [a.start(w) for a in accs]
        first, last = self._range(step, point)
        count = self._row_lanes(step)
        mine = "t" if count == 1 else f"t * {count}"
        start = mine if first == "0" else f"{first} + {mine}"
        with w.block(f"for m in range({start}, {last}, {w.threads * count}):"):
            inner = scope.child()
            w.unflatten("m", step.space, inner)
            if count == 1:
                self._take([inner], step, accs, states)
            else:
                lanes = Lanes(inner, step, step.space.axes[-1], count)
                self._take(lanes.scopes, step, accs, states, lanes)
        for r, a, state in zip(step.reduces, accs, states, strict=True):
            point.locals[r.array] = a.block(w, state)

    def _row_lanes(self, step: Step) -> int:
        """How many points of a row a thread does at once."""
        if not step.space.axes or isinstance(step.space.total, Sym):
            return 1
        count = lanes_of(step, self.program.operands.number, step.space.axes[-1])
        last = step.space.extents[-1]
        fits = not isinstance(last, Sym) and last % count == 0
        enough = step.space.total >= count * min(self.target.threads, 32)
        return count if fits and enough and COLUMN_BLOCK % count == 0 else 1


def register_dtype(dtype: DType) -> DType:
    """The dtype of memory that holds values as they are in registers."""
    return dtypes.float32 if dtype in scalar.HALVES else dtype
