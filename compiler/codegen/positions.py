"""Offsets of an access along its axes: linear in the flattened index, or read from a table.

Owns `Positions` and the routine that fills a table. That an access has a table is a matter of its
form: a window of a convolution, say.

    void fill(ptr table, i64 start, i64 count, i64 base, i64 strides..., i64 extents...)

writes the offsets of the flattened indices start .. start + count - 1: base, and of each axis, the
innermost first, its value by its stride. The outermost axis needs no extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import llvmlite.ir as ir

from jitgrad.compiler.codegen.access import Part
from jitgrad.compiler.codegen.code import I64, PTR, VOID, Code, Int
from jitgrad.compiler.codegen.frame import Frame
from jitgrad.compiler.codegen.outline import NAME, Routine, finished
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import Expr, postorder
from jitgrad.compiler.symbolic import Dim


class Positions:
    """Offsets of an access part at flattened indices `start` + i: linear, or read from a table."""

    def __init__(
        self,
        frame: Frame,
        part: Part,
        group: Sequence[int],
        extents: Mapping[int, Dim],
        capacity: int,
    ) -> None:
        """`capacity`: the largest number of entries that `fill` is asked for."""
        self.frame, self.part, self.group, self.extents = frame, part, group, extents
        self.start: Int = 0
        self.stride: Int = 0
        self.table: ir.Value | None = None
        if part.stride is not None:
            self.stride = frame.index(part.stride, {})
            self.base = frame.index(part.expr, dict.fromkeys(group, 0))
        else:
            self.table = frame.scratch(I64, capacity)

    def fill(self, start: Int, count: Int) -> None:
        """Makes ready the offsets of `start` .. `start` + `count` - 1."""
        self.start = start
        if self.table is None:
            return
        frame, code = self.frame, self.frame.code
        strides = _strides(frame, self.part.expr)
        if strides is None:
            with frame.often(), code.loop(0, count) as i:
                axes = frame.unflatten(code.add(start, i), self.group, self.extents)
                code.store(code.value(frame.index(self.part.expr, axes)), self.table, i, I64)
            return
        base = strides.pop(None, 0)
        inner = [a for a in reversed(self.group) if self.extents[a] != 1]
        words = [start, count, base, *(strides.get(a, 0) for a in inner)]
        words += [frame.dim(self.extents[a]) for a in inner[:-1]]
        routine = frame.uses(_fill_routine(len(inner), frame.uses.target))
        code.b.call(routine, [self.table, *map(code.value, words)])

    def at(self, i: Int) -> Int:
        """The offset at flattened index start + i."""
        code = self.frame.code
        if self.table is not None:
            return code.load(self.table, i, I64)
        return code.add(self.base, code.mul(code.add(self.start, i), self.stride))


def _strides(frame: Frame, root: Expr) -> dict[int | None, Int] | None:
    """The coefficients of an index that is linear in its axes, that of None the constant; None for
    one that is not."""
    code = frame.code
    memo: dict[Expr, dict[int | None, Int]] = {}
    for e in postorder([root]):
        if e.op == "axis":
            memo[e] = {e.attr: 1}
        elif e.op == "const":
            memo[e] = {None: e.attr}
        elif e.op == "size":
            memo[e] = {None: frame.size(e.attr)}
        elif e.op in ("add", "sub"):
            x, y = (memo[a] for a in e.args)
            combine = code.add if e.op == "add" else code.sub
            memo[e] = {a: combine(x.get(a, 0), y.get(a, 0)) for a in {**x, **y}}
        elif e.op == "mul" and any(memo[a].keys() <= {None} for a in e.args):
            x, y = sorted((memo[a] for a in e.args), key=lambda m: m.keys() <= {None})
            memo[e] = {a: code.mul(v, y.get(None, 0)) for a, v in x.items()}
        else:
            return None
    return memo[root]


@lru_cache(maxsize=16)
def _fill_routine(axes: int, target: Target) -> Routine:
    """The routine for so many axes: row after row of the innermost, so that few divisions run."""
    count = 4 + axes + max(0, axes - 1)
    function = ir.Function(
        ir.Module(NAME), ir.FunctionType(VOID, [PTR] + [I64] * (count - 1)), NAME
    )
    function.attributes.add("nounwind")
    table, start, number, base, *rest = function.args
    strides, extents = rest[:axes], rest[axes:]
    code = Code(ir.IRBuilder(function.append_basic_block("entry")))
    stop = code.add(start, number)
    if axes == 0:
        with code.loop(0, number) as i:
            code.store(base, table, i, I64)
    elif axes == 1:
        with code.loop(start, stop) as i:
            at = code.add(base, code.mul(i, strides[0]))
            code.store(code.value(at), table, code.sub(i, start), I64)
    else:
        size = extents[0]
        last = code.div(code.add(stop, code.sub(size, 1)), size)
        with code.loop(code.div(start, size), last) as row:
            offset: Int = base
            flat: Int = row
            for k in range(1, axes):
                value = code.rem(flat, extents[k]) if k < axes - 1 else flat
                offset = code.add(offset, code.mul(value, strides[k]))
                if k < axes - 1:
                    flat = code.div(flat, extents[k])
            first = code.mul(row, size)
            low, high = code.max(start, first), code.min(stop, code.add(first, size))
            with code.loop(low, high) as i:
                at = code.add(offset, code.mul(code.sub(i, first), strides[0]))
                code.store(code.value(at), table, code.sub(i, start), I64)
    code.b.ret_void()
    return finished(function, target)
