"""A kernel's LLVM function: its arguments, operands, stack and scratch, and out-of-line cold code.

Owns the kernel ABI's receiving side (`Function`) and what expressions depend on; where values are
placed is the business of `scope.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I8, I64, PTR, VOID
from jitgrad.compiler.codegen.emit import Ops, constant, from_memory, memory_type, to_memory
from jitgrad.compiler.codegen.offsets import MARK
from jitgrad.compiler.codegen.schedule import Operands, step_of
from jitgrad.compiler.codegen.scope import Key, Scope
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import (
    Array,
    Expr,
    postorder,
)
from jitgrad.compiler.symbolic import Dim
from jitgrad.runtime import abi, dtypes


@dataclass
class Cold:
    """Code that rarely runs: void f(i8* flags, i64 n, inputs..., outputs...), arrays of n lanes."""

    function: ir.Function
    inputs: list[Expr]


_INPUTS = {"load", "axis", "size", "check"}  # never computed in cold code


class Function:
    """One kernel function of a module: `void k(ctx, bufs, args, begin, end, worker)`.

    operands: what args means; grows while the body is emitted. dims: named symbolic dims.
    """

    def __init__(
        self, module: ir.Module, name: str, target: Target, operands: Operands, dims: dict[str, Dim]
    ) -> None:
        kind = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])
        self.function = ir.Function(module, kind, name)
        self.function.attributes.add("nounwind")
        self.ctx, self.bufs, self.args, self.begin, self.end, self.worker = self.function.args
        self.target, self.operands, self.dims = target, operands, dims
        self.ops = Ops(target)
        self.simplifier = Simplifier({})
        self.stored: set[Array] = set()  # stand-ins of arrays that the kernel writes
        self.rare: dict[Expr, list[Expr]] = {}  # condition -> the rare selects on it
        self._place: dict[Expr, int] = {}  # arguments come before what is made of them
        self.unclamped: dict[Expr, Expr | None] = {}  # offsets by select, see guarded.py
        self._cold: dict[tuple[Expr, ...], Cold] = {}
        self.scratch_bytes = 0
        self._scratch_uses: list[ir.Instruction] = []
        self._scratch_totals: list[ir.Instruction] = []
        self._deps: dict[Expr, frozenset[Key]] = {}
        self._likeness: dict[int, dict[Expr, int]] = {}
        self._slots = self.function.append_basic_block("entry")
        start = self.function.append_basic_block("start")
        work = self.function.append_basic_block("work")
        self._exit = self.function.append_basic_block("exit")
        b = ir.IRBuilder(start)
        b.cbranch(b.icmp_signed("<", self.begin, self.end), work, self._exit)
        b.position_at_end(self._exit)
        b.ret_void()
        self.start = start
        self.top = Scope(self, None, work)
        self._pointers: dict[int, ir.Value] = {}

    def finish(self) -> None:
        """Closes the function; call once, when the body is complete."""
        b = self.ops.builder
        b.position_at_end(self._slots)
        b.branch(self.start)
        b.position_at_end(self.top.block)
        b.branch(self._exit)
        where = ir.Constant(I64, len(self.operands.list))
        for use in self._scratch_uses:
            use.indices = [where]
        for total in self._scratch_totals:
            total.operands = (ir.Constant(I64, 0), ir.Constant(I64, self.scratch_bytes))

    def slot(self, kind: ir.Type, count: int = 1) -> ir.Value:
        """Memory on the stack for the whole call."""
        b = ir.IRBuilder(self._slots)
        s = b.alloca(kind, size=ir.Constant(I64, count))
        s.align = 64 if isinstance(kind, ir.VectorType) or count > 1 else 8
        s.type = PTR  # opaque, so that lanes may be reached one by one or together
        return s

    # -- operands ------------------------------------------------------------------------------
    def _argument(self, number: int) -> ir.Value:
        b = self.top.at_end()
        return b.load(b.gep(self.args, [ir.Constant(I64, number)], source_etype=I64), typ=I64)

    def pointer(self, array: Array) -> ir.Value:
        """The address of an operand's first element."""
        number = self.operands.number[array]
        if number not in self._pointers:
            slot = self._argument(number)
            b = self.top.at_end()
            self._pointers[number] = b.load(b.gep(self.bufs, [slot], source_etype=I64), typ=PTR)
        return self._pointers[number]

    def site(self, tag: object) -> ir.Value:
        number = self.operands.site(tag)
        if number not in self._pointers:
            self._pointers[number] = self._argument(number)
        return self._pointers[number]

    def size(self, name: str) -> ir.Value:
        """The value of a symbolic dim, or of a number that comes with the launch."""
        number = self.operands.size(name, self.dims)
        if number not in self._pointers:
            word = self._argument(number)
            if name.startswith(MARK):
                self._pointers[number] = word
                return word
            b = self.top.at_end()
            sizes = self._context(abi.CTX_SIZES)
            self._pointers[number] = b.load(b.gep(sizes, [word], source_etype=I64), typ=I64)
        return self._pointers[number]

    def _context(self, word: int) -> ir.Value:
        b = self.top.at_end()
        at = b.gep(self.ctx, [ir.Constant(I64, word)], source_etype=I64)
        return b.load(at, typ=PTR)

    def error_cell(self) -> ir.Value:
        if -1 not in self._pointers:
            self._pointers[-1] = self._context(abi.CTX_ERROR)
        return self._pointers[-1]

    def scratch(self, nbytes: int) -> ir.Value:
        """The address of `nbytes` more bytes of this worker's scratch; aligned to 64."""
        offset = self.scratch_bytes
        self.scratch_bytes += -(-nbytes // 64) * 64
        b = self.top.at_end()
        # The operand's number, and the bytes of all, are known when the body is complete: finish.
        at = b.gep(self.args, [ir.Constant(I64, 0)], source_etype=I64)
        self._scratch_uses.append(at)
        slot = b.load(at, typ=I64)
        base = b.load(b.gep(self.bufs, [slot], source_etype=I64), typ=PTR)
        bytes_each = b.add(ir.Constant(I64, 0), ir.Constant(I64, 0))
        self._scratch_totals.append(bytes_each)
        at_worker = b.add(b.mul(self.worker, bytes_each), ir.Constant(I64, offset))
        return b.gep(base, [at_worker], source_etype=I8)

    def find_rare(self, roots: Iterable[Expr]) -> None:
        """Notes the rare selects of the kernel, so that those with one condition go together."""
        for place, e in enumerate(postorder(roots)):
            self._place[e] = place
            if e.op == "select" and e.attr == "rare":
                self.rare.setdefault(e.args[0], []).append(e)

    def _split(self, arms: list[Expr], near: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        """What only the arms compute, and what they read of that which is computed anyway (what
        `near` is made of). Bools are computed again where they can be: in memory they are bytes.

        Goes from results to arguments, the last first, and no further than the arms do: a long
        chain of such selects is looked at once, not once for each.
        """
        ours, theirs = set(arms), set(near)
        heap = [(-self._place[x], k, x) for k, x in enumerate({*arms, *near})]
        heapq.heapify(heap)
        left, count = len(ours), len(heap)
        body: list[Expr] = []
        needed: list[Expr] = []
        while left:
            _, _, x = heapq.heappop(heap)
            mine = x in ours
            left -= mine
            if mine and x.op != "const":
                if (x in theirs and x.dtype is not dtypes.bool_) or x.op in _INPUTS:
                    needed.append(x)
                    mine = False
                else:
                    body.append(x)
            elif mine:
                mine = False
            for a in x.args:
                known = a in ours or a in theirs
                if mine and a not in ours:
                    ours.add(a)
                    left += 1
                if x in theirs:
                    theirs.add(a)
                if not known and (mine or x in theirs):
                    count += 1
                    heapq.heappush(heap, (-self._place[a], count, a))
        return body[::-1], needed[::-1]

    def cold_part(self, group: list[Expr]) -> Cold:
        """The function that computes the rare values of a group, for the lanes that are flagged."""
        key = tuple(group)
        if key in self._cold:
            return self._cold[key]
        arms = [e.args[1] for e in group]
        body, needed = self._split(arms, [x for e in group for x in (e.args[0], e.args[2])])
        module = self.function.module
        params = [PTR, I64] + [PTR] * (len(needed) + len(group))
        f = ir.Function(module, ir.FunctionType(VOID, params), f"cold_{len(self._cold)}")
        f.linkage = "internal"
        f.attributes.add("noinline")
        f.attributes.add("cold")
        f.attributes.add("nounwind")
        flags, count, *rest = f.args
        ops = Ops(self.target)
        entry, test, look, work, step, done = (
            f.append_basic_block(n) for n in ("entry", "test", "look", "work", "step", "done")
        )
        b = ops.builder = ir.IRBuilder(entry)
        counter = b.alloca(I64)
        b.store(ir.Constant(I64, 0), counter)
        b.branch(test)
        b.position_at_end(test)
        k = b.load(counter, typ=I64)
        b.cbranch(b.icmp_signed("<", k, count), look, done)
        b.position_at_end(look)
        flag = b.load(b.gep(flags, [k], source_etype=I8), typ=I8)
        b.cbranch(b.icmp_unsigned("!=", flag, ir.Constant(I8, 0)), work, step)
        b.position_at_end(work)
        values: dict[Expr, ir.Value] = {}
        for x, base in zip(needed, rest, strict=False):
            kind = memory_type(x.dtype)
            found = b.load(b.gep(base, [k], source_etype=kind), typ=kind)
            values[x] = from_memory(b, found, x.dtype)

        def value(x: Expr) -> ir.Value:
            return constant(x.attr, x.dtype) if x.op == "const" else values[x]

        for x in body:
            values[x] = ops.apply(x, [value(a) for a in x.args])
        for arm, base in zip(arms, rest[len(needed) :], strict=True):
            result = to_memory(b, value(arm), arm.dtype)
            b.store(result, b.gep(base, [k], source_etype=result.type))
        b.branch(step)
        b.position_at_end(step)
        b.store(b.add(k, ir.Constant(I64, 1)), counter)
        b.branch(test)
        b.position_at_end(done)
        b.ret_void()
        self._cold[key] = Cold(f, needed)
        return self._cold[key]

    def likeness(self, root: Expr, k: int) -> int:
        """d where root reads axis k only as axis // d, 2 d, ...; 0 where it does not read it."""
        known = self._likeness.setdefault(k, {})
        if root not in known:
            for e in postorder([root]):
                if e in known:
                    continue
                if e.op == "load" and (e.attr not in self.operands.number or e.attr in self.stored):
                    known[e] = 1
                else:
                    known[e] = step_of(e, k, known)
        return known[root]

    # -- what expressions depend on --------------------------------------------------------------
    def deps(self, root: Expr) -> frozenset[Key]:
        """The axes, and the arrays defined in this kernel, that an expression reads."""
        found = self._deps.get(root)
        if found is not None:
            return found
        for e in postorder([root]):
            if e in self._deps:
                continue
            own: frozenset[Key] = frozenset()
            if (
                e.op == "axis"
                or e.op == "load"
                and (e.attr not in self.operands.number or e.attr in self.stored)
            ):
                own = frozenset((e.attr,))
            self._deps[e] = own.union(*(self._deps[a] for a in e.args))
        return self._deps[root]
