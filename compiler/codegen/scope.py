"""Where code goes: scopes that place each value as far out of the loops as it can be.

Owns `Scope`, a loop level. Asking a scope for the value of an expression emits each node once, in
the outermost scope that binds what the node depends on: so invariant code is hoisted, and index
arithmetic is done once a row.

Loop variables live in stack slots (LLVM makes registers of them), so there are no phi nodes and a
block can be split after a branch leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I8, I64, alignment, integers, storage_type, vector_of
from jitgrad.compiler.codegen.emit import (
    constant,
    from_memory,
    memory_type,
    to_memory,
    width_of,
)
from jitgrad.compiler.codegen.guarded import unclamped
from jitgrad.compiler.codegen.memory import Access, broadcast, every, iota, repeat
from jitgrad.compiler.codegen.schedule import coefficient, constant_of
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    axis,
    const,
    make,
)
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import InternalError

if TYPE_CHECKING:
    from jitgrad.compiler.codegen.function import Function

Key = int | Array  # what an expression may depend on: an axis, an array that the kernel defines


class Scope:
    """A loop level (or a straight part of one). Bindings are found in it and its parents.

    width: lanes of what is emitted here; lane k is point base + k * lane_step of axis vector_axis,
    whose base is a multiple of `aligned`. mask: which lanes count (None: all).

    What is the same in neighbouring lanes (it reads the axis only as axis // 4, say) is computed
    once for them, in a coarse scope of fewer lanes, and repeated.
    """

    def __init__(
        self,
        fn: Function,
        parent: Scope | None,
        block: ir.Block,
        place: list[ir.Block] | None = None,
    ) -> None:
        self.fn, self.parent = fn, parent
        self._place = [block] if place is None else place  # shared with straight children
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.width: int = 1 if parent is None else parent.width
        self.mask: ir.Value | None = None if parent is None else parent.mask
        self.vector_axis: int | None = None if parent is None else parent.vector_axis
        self.lane_step: int = 1 if parent is None else parent.lane_step
        self.aligned: int = 1 if parent is None else parent.aligned
        self._coarse: dict[int, Scope] = {}
        self.bound: dict[Key, Scope] = {} if parent is None else dict(parent.bound)
        self.axes: dict[int, ir.Value] = {} if parent is None else dict(parent.axes)
        self.locals: dict[Array, ir.Value] = {} if parent is None else dict(parent.locals)
        self.buffers: dict[Array, ir.Value] = {} if parent is None else dict(parent.buffers)
        self.varying: set[Key] = set() if parent is None else set(parent.varying)
        self.memo: dict[Expr, ir.Value] = {}
        self.splats: dict[Expr, ir.Value] = {}

    # -- building --------------------------------------------------------------------------------
    @property
    def block(self) -> ir.Block:
        """The block that this scope's code has reached."""
        return self._place[0]

    @block.setter
    def block(self, block: ir.Block) -> None:
        self._place[0] = block

    def at_end(self) -> ir.IRBuilder:
        """The function's builder, at the end of what this scope has emitted so far."""
        b = self.fn.ops.builder
        if self.block.is_terminated:
            b.position_before(self.block.terminator)
        else:
            b.position_at_end(self.block)
        return b

    def child(self) -> Scope:
        """A straight part of this scope: the same code, but values and bindings of its own."""
        return Scope(self.fn, self, self.block, self._place)

    def child_with(self, other: Scope) -> Scope:
        """A child that has the bindings of another scope as well, which replace its own."""
        child = self.child()
        child.bound |= other.bound
        child.axes |= other.axes
        child.locals |= other.locals
        child.buffers |= other.buffers
        child.varying = (child.varying - other.bound.keys()) | other.varying
        return child

    def bind(self, k: int, value: ir.Value) -> None:
        """Axis k is `value` in this scope."""
        self.axes[k] = value
        self.bound[k] = self

    def bind_lanes(self, k: int, base: ir.Value, width: int, aligned: int = 1) -> None:
        """Axis k is base + lane, for `width` lanes; base is a multiple of `aligned`."""
        self.bind(k, base)
        self.width, self.aligned, self.lane_step = width, aligned, 1
        self.vector_axis = k
        if width > 1:
            self.varying.add(k)

    def bind_local(self, array: Array, value: ir.Value) -> None:
        """A row-local scalar has this value (a vector where it varies by lane)."""
        self.locals[array] = value
        self.bound[array] = self
        if width_of(value) > 1:
            self.varying.add(array)
        else:
            self.varying.discard(array)

    def bind_buffer(self, array: Array, pointer: ir.Value) -> None:
        """A row buffer lies here, element i of lane k at i * width + k."""
        self.buffers[array] = pointer
        self.bound[array] = self
        if self.width > 1:
            self.varying.add(array)

    @contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: int) -> Iterator[tuple[Scope, ir.Value]]:
        """while (i < stop): i starts at `start`; the next one goes on at the last i + step.

        Yields (the scope of the body, i).
        """
        with self.loop_from(self.counter(start), stop, step) as inner:
            yield inner

    def counter(self, start: ir.Value) -> ir.Value:
        """A loop variable."""
        slot = self.fn.slot(I64)
        self.at_end().store(start, slot)
        return slot

    @contextmanager
    def loop_from(
        self, slot: ir.Value, stop: ir.Value, step: int | None, whole: bool = False
    ) -> Iterator[tuple[Scope, ir.Value]]:
        """A loop on a counter that keeps its value; `whole`: only while i + step <= stop.

        step None: the body itself stores the next value.
        """
        b = self.at_end()
        test, body, done = (b.append_basic_block(n) for n in ("test", "body", "done"))
        b.branch(test)
        b.position_at_end(test)
        i = b.load(slot, typ=I64)
        last = b.add(i, ir.Constant(I64, step)) if whole and step is not None else i
        b.cbranch(b.icmp_signed("<=" if whole else "<", last, stop), body, done)
        inner = Scope(self.fn, self, body)
        yield inner, i
        b = inner.at_end()
        if step is not None:
            b.store(b.add(i, ir.Constant(I64, step)), slot)
        b.branch(test)
        self.block = done

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[Scope]:
        """if (condition) { ... } in a scope of its own."""
        b = self.at_end()
        then, done = b.append_basic_block("then"), b.append_basic_block("done")
        b.cbranch(condition, then, done)
        inner = Scope(self.fn, self, then)
        yield inner
        inner.at_end().branch(done)
        self.block = done

    # -- lanes that are alike --------------------------------------------------------------------
    def _likeness(self, e: Expr) -> int:
        """How many neighbouring lanes are known to have the same value of e: a power of two."""
        if self.width == 1 or self.aligned == 1 or e.dtype is INDEX or not self.varies(e):
            return 1
        assert self.vector_axis is not None
        same = math.gcd(self.fn.likeness(e, self.vector_axis), self.aligned)
        count = same // self.lane_step
        return count if same % self.lane_step == 0 and self.width >= 2 * count else 1

    def _in_coarse(self, e: Expr, count: int) -> ir.Value:
        """e, computed once for every `count` neighbouring lanes."""
        coarse = self._coarse.get(count)
        if coarse is None:
            k = self.vector_axis
            assert k is not None
            coarse = self._coarse[count] = self.child()
            coarse.bind_lanes(k, self.axes[k], self.width // count, self.aligned)
            coarse.lane_step = self.lane_step * count
            if self.mask is not None:
                coarse.mask = every(self.at_end(), self.mask, count)
        return repeat(self.at_end(), coarse.vector(e), count)

    # -- values ----------------------------------------------------------------------------------
    def home(self, e: Expr) -> Scope:
        """The outermost scope in which e can be computed."""
        best = self.fn.top
        for key in self.fn.deps(e):
            scope = self.bound.get(key)
            if scope is None and isinstance(key, Array) and key in self.fn.stored:
                return self  # loaded from what this kernel stores: never moved
            if scope is None:
                raise InternalError(f"{key} is not bound here")
            if scope.depth > best.depth:
                best = scope
        return best

    def varies(self, e: Expr) -> bool:
        """True when e differs between lanes."""
        return self.width > 1 and not self.varying.isdisjoint(self.fn.deps(e))

    def value(self, root: Expr) -> ir.Value:
        """The value of an expression: a vector if it varies by lane, else a scalar."""
        todo: list[tuple[Expr, bool]] = [(root, False)]
        while todo:
            e, ready = todo.pop()
            if e.op == "const":
                continue
            home = self.home(e)
            if e in home.memo:
                continue
            if not ready:
                alike = home._likeness(e)
                if alike > 1:
                    home.memo[e] = home._in_coarse(e, alike)
                    continue
                todo.append((e, True))
                if e.op == "select" and e.attr == "rare":
                    group = [x for x in self.fn.rare.get(e.args[0], [e]) if self.home(x) is home]
                    needs = [y for x in group for y in (x.args[0], x.args[2])]
                    needs += self.fn.cold_part(group).inputs
                    todo.extend((a, False) for a in needs)
                elif e.op == "select" and self.unclamped(e) is not None:
                    todo.extend((a, False) for a in (e.args[0], e.args[2]))
                elif e.op != "load":
                    todo.extend((a, False) for a in e.args)
                continue
            home.memo[e] = self._emit(e, home)
        if root.op == "const":
            return constant(root.attr, root.dtype)
        return self.home(root).memo[root]

    def vector(self, e: Expr) -> ir.Value:
        """The value of an expression, in every lane."""
        if self.width == 1:
            return self.value(e)
        if e.op == "const":
            return constant(e.attr, e.dtype, self.width)
        value = self.value(e)
        if width_of(value) > 1:
            return value
        home = self.home(e)
        cached = home.splats.get(e)
        if cached is None or width_of(cached) != self.width:
            # Next to the scalar, so that it leaves loops too. Loops of other widths share the home.
            cached = home.splats[e] = broadcast(home.at_end(), value, self.width)
        return cached

    def _emit(self, e: Expr, home: Scope) -> ir.Value:
        if e.op == "axis":
            base = self.axes[e.attr]
            if not self.varies(e):
                return base
            b = home.at_end()
            return b.add(broadcast(b, base, self.width), iota(self.width, self.lane_step))
        if e.op == "mod" and self.varies(e):
            x, d = e.args
            if x.op == "axis" and d.op == "const" and self.aligned % d.attr == 0:
                return integers(I64, [k * self.lane_step % d.attr for k in range(self.width)])
        if e.op == "size":
            return self.fn.size(e.attr)
        if e.op == "load":
            return self.load(e, home)
        if e.op == "check":
            return self._check(e, home)
        if e.op == "select" and e.attr == "rare":
            return self._rare(e, home)
        if e.op == "select":
            offset = self.unclamped(e)
            if offset is not None:
                return self._guarded(e, offset, home)
        if self.varies(e):
            args = [self.vector(a) for a in e.args]
        else:
            args = [self.value(a) for a in e.args]
        home.at_end()
        return self.fn.ops.apply(e, args)

    def unclamped(self, e: Expr) -> Expr | None:
        """For a select between a load at a clamped index and something else: the plain offset.

        None unless one masked load of neighbours can do it.
        """
        load = e.args[1]
        if self.width == 1 or load.op != "load" or load.attr not in self.fn.operands.number:
            return None
        target = self.fn.target
        size = load.attr.dtype.itemsize
        if not target.has_masks or (size < 4 and not target.has_small_masks):
            return None
        if not self.varies(load) or not self.varies(e.args[0]):
            return None
        if e not in self.fn.unclamped:
            self.fn.unclamped[e] = unclamped(e, self.fn.simplifier)
        offset = self.fn.unclamped[e]
        if offset is None or self._steps(load.args[0]) is not None:
            return None
        found = self._steps(offset)
        return offset if found is not None and found[0] in (1, -1, 2) else None

    def _steps(self, offset: Expr) -> tuple[int, Expr] | None:
        """(c, rest) where offset is c * the lanes' axis + rest, the same in all lanes."""
        assert self.vector_axis is not None
        v = axis(self.vector_axis)
        if self.lane_step > 1:
            v = make("floordiv", v, const(self.lane_step, INDEX))
        poly = self.fn.simplifier.poly(offset)
        stride = constant_of(coefficient(poly, v))
        rest = self.fn.simplifier.expr({m: c for m, c in poly.items() if v not in m})
        return None if stride is None or self.varies(rest) else (stride, rest)

    def _guarded(self, e: Expr, offset: Expr, home: Scope) -> ir.Value:
        """select(c, x[clamped], other) by a load of x[offset] in the lanes where c is true."""
        condition, load, other = e.args
        mask, instead = self.vector(condition), self.vector(other)
        access = self.access(load.attr, offset, home)
        b = home.at_end()
        access.mask = mask if access.mask is None else b.and_(mask, access.mask)
        access.inside = False
        raw = access.load(b, access.kind)
        if load.dtype is dtypes.bool_:
            raw = b.icmp_unsigned("!=", raw, ir.Constant(raw.type, None))
        if other.op == "const" and repr(other.attr) in ("0.0", "0", "False"):
            return raw  # what a masked load gives in the other lanes
        return b.select(mask, raw, instead)

    def _rare(self, e: Expr, home: Scope) -> ir.Value:
        """select(c, a, b) where a is computed, lane by lane out of line, only if some c is true.

        All rare selects of the kernel with the same condition and home are done together.
        """
        group = [x for x in self.fn.rare.get(e.args[0], [e]) if self.home(x) is home]
        wide = self.varies(e)
        width = self.width if wide else 1
        cold = self.fn.cold_part(group)
        inputs = [self.vector(x) if wide else self.value(x) for x in cold.inputs]
        usual = [self.vector(x.args[2]) if wide else self.value(x.args[2]) for x in group]
        condition = self.vector(e.args[0]) if wide else self.value(e.args[0])
        into = [self.fn.slot(vector_of(memory_type(x.dtype), width)) for x in cold.inputs]
        out = [self.fn.slot(vector_of(memory_type(x.dtype), width_of(v)))
               for x, v in zip(group, usual, strict=True)]  # fmt: skip
        flags = self.fn.slot(vector_of(I8, width))
        b = home.at_end()
        for x, slot, v in zip(group, out, usual, strict=True):
            b.store(to_memory(b, v, x.dtype), slot)
        some = condition
        if wide:
            bits = b.bitcast(condition, ir.IntType(width))
            some = b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

        def far(b: ir.IRBuilder) -> None:
            b.store(b.zext(condition, vector_of(I8, width)), flags)
            for x, slot, v in zip(cold.inputs, into, inputs, strict=True):
                b.store(to_memory(b, v, x.dtype), slot)
            b.call(cold.function, [flags, ir.Constant(I64, width), *into, *out])

        home.branch_to(some, far)
        b = home.at_end()
        for x, slot, v in zip(group, out, usual, strict=True):
            kind = vector_of(memory_type(x.dtype), width_of(v))
            home.memo[x] = from_memory(b, b.load(slot, typ=kind), x.dtype)
        return home.memo[e]

    def _check(self, e: Expr, home: Scope) -> ir.Value:
        """(index, extent) -> the index clamped; flags the site where it was outside."""
        wide = self.varies(e)
        index, extent = (self.vector(a) if wide else self.value(a) for a in e.args)
        site, cell = self.fn.site(e.attr), self.fn.error_cell()
        b = home.at_end()
        bad = b.icmp_unsigned(">=", index, extent)
        flagged = bad
        if wide and self.mask is not None:
            flagged = b.and_(bad, self.mask)
        if wide:
            bits = b.bitcast(flagged, ir.IntType(self.width))
            flagged = b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))
        home.branch_to(flagged, lambda b: b.atomic_rmw("umin", cell, site, "monotonic"))
        b = home.at_end()
        zero = constant(0, INDEX, width_of(index))
        one = constant(1, INDEX, width_of(index))
        low = b.icmp_signed("<", index, zero)
        if e.args[1].op != "const":
            low = b.or_(low, b.icmp_signed("==", extent, zero))
        return b.select(bad, b.select(low, zero, b.sub(extent, one)), index)

    def branch_to(self, condition: ir.Value, body: Callable[[ir.IRBuilder], object]) -> None:
        """if (condition) body(builder), out of line. May split a block that is already left."""
        block = self.block
        last = block.terminator
        if last is not None:
            block.instructions.remove(last)
            block.terminator = None
        b = self.fn.ops.builder
        b.position_at_end(block)
        cold, go_on = b.append_basic_block("cold"), b.append_basic_block("go_on")
        branch = b.cbranch(condition, cold, go_on)
        branch.set_weights([1, 2000])
        b.position_at_end(cold)
        body(b)
        b.branch(go_on)
        if last is not None:
            go_on.instructions.append(last)
            go_on.terminator = last
            last.parent = go_on
        self.block = go_on

    # -- memory ----------------------------------------------------------------------------------
    def load(self, e: Expr, home: Scope) -> ir.Value:
        array: Array = e.attr
        if array in self.locals:
            return self.locals[array]
        kind = storage_type(array.dtype)
        access = self.access(array, e.args[0], home)
        if access.width == 1:
            b = home.at_end()
            raw = b.load(access.pointer(b), align=alignment(kind), typ=kind)
        else:
            raw = access.load(home.at_end(), kind)
        if array.dtype is dtypes.bool_:
            raw = home.at_end().icmp_unsigned("!=", raw, ir.Constant(raw.type, None))
        return raw

    def store(self, array: Array, offset: Expr, value: ir.Value) -> None:
        """array[offset] = value, in the lanes that count."""
        kind = storage_type(array.dtype)
        access = self.access(array, offset, self)
        b = self.at_end()
        if array.dtype is dtypes.bool_:
            value = b.zext(value, vector_of(I8, width_of(value)))
        if access.width == 1:
            if width_of(value) > 1:  # the same place for every lane: the last one stays
                raise InternalError("a store that varies by lane to one place")
            b.store(value, access.pointer(b), align=alignment(kind))
            return
        if width_of(value) == 1:
            value = broadcast(b, value, access.width)
        access.store(b, value, kind)

    def access(self, array: Array, offset: Expr, home: Scope) -> Access:
        """How to reach array[offset] in all lanes, from code in `home`."""
        base = self.buffers[array] if array in self.buffers else self.fn.pointer(array)
        kind = storage_type(array.dtype)
        lanes = self.width if array in self.buffers and array in self.varying else 1
        if not self.varies(offset):
            at = self.value(offset)
            if lanes == 1:
                return Access(base, kind, at, 1, 0, None)
            b = home.at_end()
            return Access(base, kind, b.mul(at, ir.Constant(I64, lanes)), lanes, 1, self.mask)
        assert self.vector_axis is not None
        if lanes == 1:
            found = self._steps(offset)
            if found is not None:
                stride, rest = found
                at = self.value(rest)
                b = home.at_end()
                start = self.axes[self.vector_axis]
                if self.lane_step > 1:
                    start = b.udiv(start, ir.Constant(I64, self.lane_step))
                if stride != 1:
                    start = b.mul(start, ir.Constant(I64, stride))
                at = b.add(at, start)
                return Access(base, kind, at, self.width, stride, self.mask)
        vector = self.vector(offset)
        if lanes > 1:
            b = home.at_end()
            vector = b.mul(vector, constant(lanes, INDEX, lanes))
            vector = b.add(vector, iota(lanes))
        return Access(base, kind, vector, self.width, None, self.mask)
