"""The transforms of Winograd's algorithm F(4x4, 3x3), as routines on vectors.

Owns the matrices, and `emit_transform`: a square of vectors, of filters, inputs or products,
becomes another. What lies in the vectors is winograd.py's.

The matrices are Toom and Cook's for the points 0, +-3/4, +-3/2 and infinity. The powers are exact
in binary, and the error is about twice that of summing the products directly, several times less
than with the usual points 0, +-1, +-2.

Source of the choice of points: Barabasz et al., "Error Analysis and Improving the Accuracy of
Winograd Convolution for Deep Neural Networks", ACM TOMS 46(4), 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I64, PTR, VOID, Code, storage_type
from jitgrad.compiler.codegen.emit import Ops, constant
from jitgrad.compiler.codegen.microkernel import multiply_add
from jitgrad.compiler.codegen.packing import in_powers
from jitgrad.compiler.codegen.target import Target
from jitgrad.runtime import dtypes

M = 4  # results along each side of a tile
TAPS = 3
SIDE = M + TAPS - 1  # inputs along each side of a tile
POINTS = SIDE * SIDE
_P, _Q = 0.75, 1.5  # the points are 0, +-_P, +-_Q, infinity
_P2, _Q2 = _P * _P, _Q * _Q

F32 = dtypes.float32
Vectors = Sequence[ir.Value]


class _Arithmetic:
    def __init__(self, ops: Ops, lanes: int) -> None:
        self.ops, self.lanes = ops, lanes

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.ops.arithmetic("add", F32, [x, y])

    def sub(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.ops.arithmetic("sub", F32, [x, y])

    def scaled(self, factor: float, x: ir.Value) -> ir.Value:
        return self.ops.arithmetic("mul", F32, [constant(factor, F32, self.lanes), x])

    def plus(self, z: ir.Value, factor: float, x: ir.Value) -> ir.Value:
        """z + factor * x"""
        return multiply_add(self.ops, F32, constant(factor, F32, self.lanes), x, z)


def _filter_1d(m: _Arithmetic, g: Vectors) -> list[ir.Value]:
    """G g: the values of g0 + g1 x + g2 x^2 at the points, over prod(point - other points)."""
    out = [m.scaled(1 / (_P2 * _Q2), g[0])]
    for p, p2, q2 in ((_P, _P2, _Q2), (_Q, _Q2, _P2)):
        norm = 2 * p2 * (p2 - q2)
        even = m.scaled(1 / norm, m.plus(g[0], p2, g[2]))
        out += [m.plus(even, p / norm, g[1]), m.plus(even, -p / norm, g[1])]
    return [*out, g[2]]


def _input_1d(m: _Arithmetic, d: Vectors) -> list[ir.Value]:
    """B^T d: row for a point p is prod(x - other points), for infinity the product of all."""

    def ends(i: int) -> ir.Value:
        return m.plus(m.plus(d[i + 4], -(_P2 + _Q2), d[i + 2]), _P2 * _Q2, d[i])

    out = [ends(0)]
    for p, q2 in ((_P, _Q2), (_Q, _P2)):
        even, odd = m.plus(d[4], -q2, d[2]), m.plus(d[3], -q2, d[1])
        out += [m.plus(even, p, odd), m.plus(even, -p, odd)]
    return [*out, ends(1)]


def _output_1d(m: _Arithmetic, x: Vectors) -> list[ir.Value]:
    """A^T x: powers of the points."""
    sums = m.add(x[1], x[2]), m.add(x[3], x[4])
    differences = m.sub(x[1], x[2]), m.sub(x[3], x[4])
    return [
        m.add(m.add(x[0], sums[0]), sums[1]),
        m.plus(m.scaled(_P, differences[0]), _Q, differences[1]),
        m.plus(m.scaled(_P2, sums[0]), _Q2, sums[1]),
        m.plus(m.plus(x[5], _P * _P2, differences[0]), _Q * _Q2, differences[1]),
    ]


@dataclass(frozen=True)
class Transform:
    """`one` along the columns, then along the rows of a square of side x side vectors."""

    side: int
    one: Callable[[_Arithmetic, Vectors], list[ir.Value]]


FILTER = Transform(TAPS, _filter_1d)  # to 6 x 6
INPUT = Transform(SIDE, _input_1d)  # to 6 x 6
OUTPUT = Transform(SIDE, _output_1d)  # to 4 x 4


def emit_transform(
    module: ir.Module, name: str, which: Transform, lanes: int, used: int, target: Target
) -> ir.Function:
    """The function (source, its step, results, their step) of `module`; a step is how many elements
    lie from a vector to the next. Of each result, the first `used` lanes are written."""
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64, PTR, I64]), name)
    function.attributes.add("nounwind")
    source, step, results, result_step = function.args
    for pointer in (source, results):
        pointer.add_attribute("noalias")
    code = Code(ir.IRBuilder(function.append_basic_block("entry")))
    ops = Ops(target)
    ops.builder = code.b
    math, element, side = _Arithmetic(ops, lanes), storage_type(F32), which.side
    x = [code.load(source, code.mul(step, k), element, lanes) for k in range(side * side)]
    columns = [which.one(math, x[j::side]) for j in range(side)]
    rows = [y for row in zip(*columns, strict=True) for y in which.one(math, row)]
    for k, y in enumerate(rows):
        at, done = code.mul(result_step, k), 0
        for piece in in_powers(used, lanes):
            part = y if piece == lanes else code.shuffle(y, y, range(done, done + piece))
            code.store(part, results, code.add(at, done), element)
            done += piece
    code.b.ret_void()
    return function
