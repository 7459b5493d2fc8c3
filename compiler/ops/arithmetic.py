"""Ops of two operands on each element: add, div, pow, remainder, maximum, atan2, ...

Owns their records and the base of all binary ones. Operands come promoted to one dtype. Integers
wrap; integer division by zero is a run-time fault (`checked`), never a trap; docs/numerics.md
states division and pow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from jitgrad.compiler.fmod import fmod as fmod_expr
from jitgrad.compiler.loops import (
    INDEX,
    Builder,
    Expr,
    const,
    make,
    select,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.elementwise import compute, direct
from jitgrad.compiler.ops.record import (
    Check,
    Elementwise,
    OnnxContext,
    Sample,
    broadcast_like,
    op,
    reduce_like,
    scalar_like,
    zeros_like,
)
from jitgrad.compiler.symbolic import hint
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


class Binary(Elementwise):
    """Two operands. A record gives `numpy`, `node` (or `scalar`), and `partials`.

    partials(t0, t1, out, a, b) gives the two terms of the derivative: t0 times d out/da and t1
    times d out/db, elementwise in the broadcast shape (None for a term that is None or zero).
    vjp calls it with the cotangent for both.
    """

    arity = 2
    chooses = True
    numpy: ClassVar[Callable[..., Any]]
    node: str = ""
    onnx_op: str = ""
    onnx_bool: str = ""

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return compute(type(self).numpy, a, b)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        return None if attrs else direct(self, Binary, types[0].dtype)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make(self.node, *x)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        raise NotImplementedError(self.name)

    def vjp(
        self, g: Any, out: Any, *operands: Any, needs: Sequence[bool] = (True, True), **attrs: Any
    ) -> tuple[Any, ...]:
        a, b = operands
        linear = op.conj(g) if g.dtype.is_complex else g
        ga, gb = self.partials(
            linear if needs[0] else None, linear if needs[1] else None, out, a, b
        )
        if linear is not g:
            ga, gb = (None if t is None else op.conj(t) for t in (ga, gb))
        return reduce_like(ga, a), reduce_like(gb, b)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        t0, t1 = tangents
        da, db = self.partials(t0, t1, out, *operands)
        if da is None or db is None:
            return broadcast_like(da if db is None else db, out)
        return broadcast_like(op.add(da, db), out)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if ctx.type(inputs[0]).dtype is dtypes.bool_:
            if not self.onnx_bool:
                return super().onnx(ctx, inputs, **attrs)
            return ctx.node(self.onnx_bool, inputs)
        if not self.onnx_op:
            return super().onnx(ctx, inputs, **attrs)
        return ctx.node(self.onnx_op, inputs)

    def samples(self) -> Iterable[Sample]:
        return examples.binary()


class Add(Binary):
    """a + b; logical or of bools."""

    name, onnx_op, onnx_bool = "add", "Add", "Or"
    complex_too = True
    exact = True
    numpy = np.add

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make("or" if x[0].dtype is dtypes.bool_ else "add", *x)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return t0, t1

    def samples(self) -> Iterable[Sample]:
        return examples.binary(bools=True)


class Sub(Binary):
    """a - b. Bools are refused, as in PyTorch."""

    name, node, onnx_op = "sub", "sub", "Sub"
    complex_too = True
    exact = True
    numpy = np.subtract

    def check_dtype(self, dtype: DType) -> None:
        super().check_dtype(dtype)
        self.expect(
            dtype is not dtypes.bool_,
            "expected numbers; got bool tensors; use logical_xor (^) or convert with .to(dtype)",
        )

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return t0, None if t1 is None else op.neg(t1)


class Mul(Binary):
    """a * b; logical and of bools."""

    name, onnx_op, onnx_bool = "mul", "Mul", "And"
    complex_too = True
    exact = True
    saves = (0, 1)
    numpy = np.multiply

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make("and" if x[0].dtype is dtypes.bool_ else "mul", *x)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return (
            None if t0 is None else op.mul(t0, b),
            None if t1 is None else op.mul(t1, a),
        )

    def samples(self) -> Iterable[Sample]:
        return examples.binary(bools=True)


class Div(Binary):
    """a / b of floats (integers are promoted to the default float dtype first)."""

    name, promotes, node, onnx_op = "div", "float", "div", "Div"
    complex_too = True
    exact = True
    saves = (1, "out")
    numpy = np.divide

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return (
            None if t0 is None else op.div(t0, b),
            None if t1 is None else op.neg(op.mul(t1, op.div(out, b))),
        )

    def samples(self) -> Iterable[Sample]:
        return examples.binary(0.5, 2.0, ints=False)


_DIVISOR = Check(1, zero=False)


class _Division(Binary):
    """Division whose integer form faults on a zero divisor and wraps at minimum / -1."""

    checked = True

    def check_dtype(self, dtype: DType) -> None:
        super().check_dtype(dtype)
        self.expect(
            dtype is not dtypes.bool_,
            "expected numbers; got bool tensors; convert with .to(dtype)",
        )

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind in "iu" and not b.all() and a.size:
            raise self.failed(_DIVISOR, 0, {})
        return compute(type(self).numpy, a, b)

    def checks(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Sequence[Check]:
        if types[1].dtype.is_floating_point or any(hint(d) == 0 for d in types[0].shape):
            return ()
        return (_DIVISOR,)

    def failed(self, check: Check, value: Any, attrs: dict[str, Any]) -> Exception:
        return RuntimeError(
            f"[{self.name}] ZeroDivisionError: expected integer divisors that are not 0; got a 0; "
            "mask it with where, or convert to a floating dtype first"
        )

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        n, d = x
        if d.dtype.is_floating_point:
            return self.floating(n, d)
        zero = d.eq(0)
        flag = b.check(select(zero, const(1, INDEX), const(0, INDEX)), 1)  # 0; faults on zero
        unsafe = make("or", zero, d.eq(-1)) if d.dtype.signed else zero
        safe = select(unsafe, const(1, d.dtype), d) + flag.cast(d.dtype)
        out = self.integral(n, safe)
        return select(d.eq(-1), self.by_minus_one(n), out) if d.dtype.signed else out

    def floating(self, n: Expr, d: Expr) -> Expr:
        raise NotImplementedError(self.name)

    def integral(self, n: Expr, d: Expr) -> Expr:
        """The result for a divisor that is neither 0 nor -1."""
        raise NotImplementedError(self.name)

    def by_minus_one(self, n: Expr) -> Expr:
        return const(0, n.dtype)

    def onnx_parts(self, ctx: OnnxContext, a: str, b: str) -> tuple[str, str]:
        """ONNX values: fmod(a, b), and where it is not 0 and has not the sign of b."""
        zero = ctx.constant(np.asarray(0, ctx.type(a).dtype.np))
        r = ctx.node("Mod", [a, b], fmod=1)
        signs = ctx.node("Xor", [ctx.node("Less", [r, zero]), ctx.node("Less", [b, zero])])
        nonzero = ctx.node("Not", [ctx.node("Equal", [r, zero])])
        return r, ctx.node("And", [nonzero, signs])

    def samples(self) -> Iterable[Sample]:
        yield from examples.binary(2.2, 2.3, 0.97, 1.03, zero_divisor=False)
        yield from (
            Sample((np.array([7.0, -7.0, 7.0, -7.0, 6.0]), np.array([2.0, 2.0, -2.0, -2.0, -3.0])),
                   note="signs", grad=False),
            Sample((examples.integers((4, 1), np.int32), examples.integers((1, 5), np.int32, 1, 9)),
                   note="signs, int32", grad=False),
        )  # fmt: skip


def _python_quotient(n: Expr, d: Expr) -> Expr:
    """floor(n / d) of floats by the exact remainder, as Python's // does."""
    r = fmod_expr(n, d)
    quotient = (n - r) / d
    opposite = (d < 0.0).ne(r < 0.0)
    quotient = select(make("and", r.ne(0.0), opposite), quotient - 1.0, quotient)
    low = make("floor", quotient)
    rounded = select(quotient - low > 0.5, low + 1.0, low)
    signed_zero = make("copysign", const(0.0, n.dtype), n / d)
    return select(d.eq(0.0), n / d, select(quotient.eq(0.0), signed_zero, rounded))


def _python_quotient_reference(n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The same steps in NumPy (np.floor_divide differs between builds at infinity)."""
    if n.dtype.kind in "iu":
        return np.asarray(np.floor_divide(n, d))
    r = np.fmod(n, d)
    quotient = (n - r) / d
    quotient = np.where((r != 0) & ((d < 0) != (r < 0)), quotient - 1, quotient)
    low = np.floor(quotient)
    rounded = np.where(quotient - low > 0.5, low + 1, low)
    signed_zero = np.copysign(np.zeros((), n.dtype), n / d)
    return np.where(d == 0, n / d, np.where(quotient == 0, signed_zero, rounded))


class FloorDivide(_Division):
    """floor(a / b), exact for floats too (Python's //). Its derivative is zero."""

    name = "floor_divide"
    numpy = _python_quotient_reference

    def floating(self, n: Expr, d: Expr) -> Expr:
        return _python_quotient(n, d)

    def integral(self, n: Expr, d: Expr) -> Expr:
        return n // d

    def by_minus_one(self, n: Expr) -> Expr:
        return make("neg", n)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return tuple(None if t is None else zeros_like(t) for t in (t0, t1))  # type: ignore[return-value]

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        a, b = inputs
        r, opposite = self.onnx_parts(ctx, a, b)
        if not ctx.type(a).dtype.is_floating_point:
            one_less = ctx.node("Cast", [opposite], to=ctx.onnx_dtype(ctx.type(a).dtype))
            return ctx.node("Sub", [ctx.node("Div", inputs), one_less])
        one = ctx.constant(np.asarray(1, ctx.type(a).dtype.np))
        half = ctx.constant(np.asarray(0.5, ctx.type(a).dtype.np))
        zero = ctx.constant(np.asarray(0, ctx.type(a).dtype.np))
        q = ctx.node("Div", [ctx.node("Sub", [a, r]), b])
        q = ctx.node("Where", [opposite, ctx.node("Sub", [q, one]), q])
        low = ctx.node("Floor", [q])
        up = ctx.node("Greater", [ctx.node("Sub", [q, low]), half])
        rounded = ctx.node("Where", [up, ctx.node("Add", [low, one]), low])
        by_zero = ctx.node("Equal", [b, zero])
        return ctx.node("Where", [by_zero, ctx.node("Div", inputs), rounded])


class Remainder(_Division):
    """a - b * floor(a / b), with the sign of b (Python's %). Floats: rounded once."""

    name = "remainder"
    saves = (0, 1)
    numpy = np.remainder

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind in "iu":
            return super().reference(a, b)
        return compute(_float_remainder, a, b)

    def floating(self, n: Expr, d: Expr) -> Expr:
        r = fmod_expr(n, d)
        opposite = make("and", r.ne(0.0), (d < 0.0).ne(r < 0.0))
        return select(opposite, r + d, r)

    def integral(self, n: Expr, d: Expr) -> Expr:
        return n % d

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        quotient = None if t1 is None else op.floor_divide(a, b)
        return t0, None if t1 is None else op.neg(op.mul(t1, quotient))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if not ctx.type(inputs[0]).dtype.is_floating_point:
            return ctx.node("Mod", inputs, fmod=0)
        r, opposite = self.onnx_parts(ctx, *inputs)
        return ctx.node("Where", [opposite, ctx.node("Add", [r, inputs[1]]), r])


def _float_remainder(n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """PyTorch's: the exact fmod, plus the divisor where the signs differ."""
    r = np.fmod(n, d)
    return np.where((r != 0) & ((d < 0) != (r < 0)), r + d, r)


class Fmod(_Division):
    """a - b * trunc(a / b), with the sign of a (C's fmod); exact."""

    name = "fmod"
    saves = (0, 1)
    numpy = np.fmod

    def floating(self, n: Expr, d: Expr) -> Expr:
        return fmod_expr(n, d)

    def integral(self, n: Expr, d: Expr) -> Expr:
        return n - make("div", n, d) * d

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        if t1 is None:
            return t0, None
        return t0, op.neg(op.mul(t1, op.trunc(op.div(op.sub(a, op.fmod(a, b)), b))))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Mod", inputs, fmod=1)


def _integer_power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a ** b, wrapping; a negative exponent gives the integer part of the true power."""
    if a.dtype.kind == "u":
        return np.asarray(np.power(a, b))
    out = np.power(a, np.maximum(b, 0))
    odd = (b & 1) == 1
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, out)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "b":
        return np.asarray(a | ~b)
    return _integer_power(a, b) if a.dtype.kind in "iu" else np.asarray(np.power(a, b))


class Pow(Binary):
    """a ** b. Integers wrap, and 1/a rounds toward zero for a negative exponent (0 ** -1 is 0)."""

    name, onnx_op = "pow", "Pow"
    effort = 8
    complex_too = True
    saves = (0, 1, "out")
    numpy = _power

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        base, exponent = x
        dtype = base.dtype
        if dtype.is_floating_point:
            return make("pow", base, exponent)
        if dtype is dtypes.bool_:
            return make("or", base, make("not", exponent))
        one, zero = const(1, dtype), const(0, dtype)
        out, square, bits = one, base, exponent
        for _ in range(dtype.bits - dtype.signed):  # by squaring, all bits of the exponent
            out = select((bits & one).eq(1), out * square, out)
            square = square * square
            bits = bits >> one
        if not dtype.signed:
            return out
        sign = select((exponent & one).eq(1), const(-1, dtype), one)
        inverse = select(base.eq(1), one, select(base.eq(-1), sign, zero))
        return select(exponent < 0, inverse, out)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        zero = scalar_like(out, 0)
        da = db = None
        if t0 is not None:
            flat = op.eq(b, zero)
            power = op.where(flat, scalar_like(out, 1), b)  # 0 ** -1 has no derivative of its own
            slope = op.mul(power, op.pow(a, op.sub(power, 1.0)))
            da = op.where(flat, zero, op.mul(t0, slope))
        if t1 is not None:
            size = op.real(b) if b.dtype.is_complex else b
            flat = op.logical_and(op.eq(a, zero), op.ge(size, scalar_like(size, 0)))
            db = op.where(flat, zero, op.mul(t1, op.mul(out, op.log(a))))
        return da, db

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        dtype = ctx.type(inputs[0]).dtype
        if dtype.is_floating_point or not dtype.signed:
            return super().onnx(ctx, inputs, **attrs)
        base, exponent = inputs  # ONNX says nothing of negative integer exponents
        zero, one, two, less = (ctx.constant(np.array(v, dtype.np)) for v in (0, 1, 2, -1))
        power = ctx.node("Pow", [base, ctx.node("Max", [exponent, zero])])
        odd = ctx.node("Equal", [ctx.node("Mod", [exponent, two]), one])
        sign = ctx.node("Where", [odd, less, one])
        inverse = ctx.node("Where", [ctx.node("Equal", [base, less]), sign, zero])
        inverse = ctx.node("Where", [ctx.node("Equal", [base, one]), one, inverse])
        return ctx.node("Where", [ctx.node("Less", [exponent, zero]), inverse, power])

    def samples(self) -> Iterable[Sample]:
        yield from examples.binary(0.5, 2.0, -2.0, 2.0, bools=True)
        yield Sample(
            (examples.integers((5, 1), np.int64), examples.integers((1, 6), np.int64, -2, 7)),
            note="small integers", grad=False,
        )  # fmt: skip
        yield Sample(
            (np.array([-2.0, -1.5, 0.0]), np.array([3.0, 2.0, 2.0])), note="base <= 0", grad=False
        )


class _Extreme(Binary):
    """maximum and minimum: NaN wins; a tie shares the gradient evenly."""

    saves = (0, 1)
    in_place = False
    logic = ""

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make(self.logic if x[0].dtype is dtypes.bool_ else self.node, *x)

    def loses(self, a: Any, b: Any) -> Any:
        """Where a is not the result because b is."""
        raise NotImplementedError(self.name)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        zero = scalar_like(a, 0)
        tie = op.eq(a, b)

        def share(t: Any, lost: Any) -> Any:
            return op.where(lost, zero, op.where(tie, op.mul(t, 0.5), t))

        return (
            None if t0 is None else share(t0, self.loses(a, b)),
            None if t1 is None else share(t1, self.loses(b, a)),
        )

    def samples(self) -> Iterable[Sample]:
        return examples.binary(bools=True)


class Maximum(_Extreme):
    name, node, logic, onnx_op, onnx_bool = "maximum", "max", "or", "Max", "Or"
    exact = True
    numpy = np.maximum

    def loses(self, a: Any, b: Any) -> Any:
        return op.lt(a, b)


class Minimum(_Extreme):
    name, node, logic, onnx_op, onnx_bool = "minimum", "min", "and", "Min", "And"
    exact = True
    numpy = np.minimum

    def loses(self, a: Any, b: Any) -> Any:
        return op.gt(a, b)


class Atan2(Binary):
    """The angle of the point (x=b, y=a), in (-pi, pi]."""

    name, promotes, node = "atan2", "float", "atan2"
    effort = 8
    saves = (0, 1)
    numpy = np.arctan2

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        square = op.add(op.mul(a, a), op.mul(b, b))
        none = op.eq(square, scalar_like(square, 0))  # at the origin the derivative counts as 0
        square = op.where(none, scalar_like(square, 1), square)
        return (
            None if t0 is None else op.mul(t0, op.div(b, square)),
            None if t1 is None else op.mul(t1, op.div(op.neg(a), square)),
        )

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        a, b = inputs
        dtype = ctx.type(a).dtype.np
        zero, eighth, half = (ctx.constant(np.array(v, dtype)) for v in (0.0, np.pi / 4, np.pi))
        y, x = ctx.node("Abs", [a]), ctx.node("Abs", [b])
        angle = ctx.node("Atan", [ctx.node("Div", [y, x])])
        diagonal = ctx.node("Where", [ctx.node("Equal", [x, zero]), zero, eighth])  # not 0/0
        angle = ctx.node("Where", [ctx.node("Equal", [x, y]), diagonal, angle])
        left = ctx.node("Sub", [half, angle])
        angle = ctx.node("Where", [_onnx_signbit(ctx, b, zero), left, angle])
        below = ctx.node("Neg", [angle])
        return ctx.node("Where", [_onnx_signbit(ctx, a, zero), below, angle])

    def samples(self) -> Iterable[Sample]:
        return examples.binary(0.5, 2.0, ints=False)


def _hypot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.abs(a), np.abs(b)
    high, low = np.maximum(a, b), np.minimum(a, b)
    one = high.dtype.type(1)
    ratio = np.where(low == np.inf, one, low / np.where(high == 0, one, high))
    out = high * np.sqrt(one + ratio * ratio)
    return np.where((a == np.inf) | (b == np.inf), high.dtype.type(np.inf), out)


class Hypot(Binary):
    """sqrt(a**2 + b**2), without overflow in between; infinite beside NaN (IEEE 754)."""

    name, promotes = "hypot", "float"
    public, in_place = False, False
    saves = (0, 1, "out")
    numpy = _hypot

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        p, q = (make("abs", v) for v in x)
        high, low = make("max", p, q), make("min", p, q)
        one, most = const(1.0, high.dtype), const(float("inf"), high.dtype)
        ratio = select(low.eq(most), one, low / select(high.eq(0.0), one, high))
        out = high * make("sqrt", one + ratio * ratio)
        return select(make("or", p.eq(most), q.eq(most)), most, out)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return (
            None if t0 is None else op.mul(t0, op.div(a, out)),
            None if t1 is None else op.mul(t1, op.div(b, out)),
        )

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        dtype = ctx.type(inputs[0]).dtype.np
        zero, one, most = (ctx.constant(np.array(v, dtype)) for v in (0.0, 1.0, np.inf))
        sizes = [ctx.node("Abs", [v]) for v in inputs]
        high, low = ctx.node("Max", sizes), ctx.node("Min", sizes)
        safe = ctx.node("Where", [ctx.node("Equal", [high, zero]), one, high])
        ratio = ctx.node("Div", [low, safe])
        ratio = ctx.node("Where", [ctx.node("Equal", [low, most]), one, ratio])
        square = ctx.node("Add", [one, ctx.node("Mul", [ratio, ratio])])
        out = ctx.node("Mul", [high, ctx.node("Sqrt", [square])])
        infinite = [ctx.node("Equal", [v, most]) for v in sizes]
        return ctx.node("Where", [ctx.node("Or", infinite), most, out])

    def samples(self) -> Iterable[Sample]:
        return examples.binary(0.5, 2.0, ints=False)


class Copysign(Binary):
    """The size of a with the sign of b. The derivative by b is zero."""

    name, promotes, node = "copysign", "float", "copysign"
    saves = (0, "out")
    numpy = np.copysign

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        da = None
        if t0 is not None:
            zero = scalar_like(a, 0)
            da = op.mul(t0, op.where(op.eq(a, zero), zero, op.div(out, a)))
        return da, None if t1 is None else zeros_like(t1)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        size = ctx.node("Abs", [inputs[0]])
        zero = ctx.constant(np.array(0, ctx.type(inputs[0]).dtype.np))
        return ctx.node(
            "Where", [_onnx_signbit(ctx, inputs[1], zero), ctx.node("Neg", [size]), size]
        )

    def samples(self) -> Iterable[Sample]:
        return examples.binary(0.5, 2.0, ints=False)


def _onnx_signbit(ctx: OnnxContext, x: str, zero: str) -> str:
    """Whether floats are negative, -0.0 among them."""
    inverse = ctx.node("Reciprocal", [x])
    return str(ctx.node("Or", [ctx.node("Less", [x, zero]), ctx.node("Less", [inverse, zero])]))


add, sub, mul, div = Add(), Sub(), Mul(), Div()
floor_divide, remainder, fmod, pow_ = FloorDivide(), Remainder(), Fmod(), Pow()
maximum, minimum, atan2, copysign = Maximum(), Minimum(), Atan2(), Copysign()
hypot = Hypot()
