"""expect_range: the identity, on elements of which a function asks that they lie in a range.

Owns the one record by which functions composed of ops raise errors of their own about values
(class numbers, probabilities), eager and compiled alike, at the function's name and not at that of
the op inside which would meet the bad value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Builder,
    Expr,
    const,
    select,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.checking import broken, flag
from jitgrad.compiler.ops.record import Check, Elementwise, OnnxContext, Sample
from jitgrad.compiler.symbolic import Sym
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_ERRORS: dict[str, type[Exception]] = {
    "IndexError": IndexError, "RuntimeError": RuntimeError, "ValueError": ValueError,
}  # fmt: skip


class ExpectRange(Elementwise):
    """x, where low <= x <= high everywhere; low and high are of numbers that x's dtype has (NaN is
    out of range; None asks nothing).

    error: the name of the exception's type. text: what it says; "{value}" in it stands for the
    first element out of range.
    """

    name, public, widens = "expect_range", False, False
    checked = identity = True
    effort = 0

    def check_dtype(self, dtype: DType) -> None:
        return None

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        numbers = all(isinstance(attrs[k], (int, float, Sym, type(None))) for k in ("low", "high"))
        self.expect(
            numbers and attrs["error"] in _ERRORS and isinstance(attrs["text"], str),
            f"expected low and high, numbers or None, and an error of {', '.join(_ERRORS)} with "
            f"its text; got {attrs}",
            TypeError,
        )
        return super().infer(*types)

    def checks(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Sequence[Check]:
        return [Check(0, attrs["low"], attrs["high"])]

    def failed(self, check: Check, value: Any, attrs: dict[str, Any]) -> Exception:
        shown = "?" if value is None else str(value)
        return _ERRORS[attrs["error"]](attrs["text"].replace("{value}", shown))

    def reference(self, x: np.ndarray, **attrs: Any) -> np.ndarray:
        check = Check(0, attrs["low"], attrs["high"])
        value = check.first(x)
        if value is not None:
            raise self.failed(check, value, attrs)
        return x

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        (value,) = x
        low, high = attrs["low"], attrs["high"]
        if value.dtype is dtypes.int64 and low == 0 and isinstance(high, (int, Sym)):
            return b.check(value.cast(INDEX), high + 1).cast(value.dtype)
        bad = flag(b, broken(Check(0, low, high), value))
        return select(bad, const(0, value.dtype), value)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        return (g,)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        return tangents[0]

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Identity", inputs)  # ONNX has no way to refuse a value

    def samples(self) -> Iterable[Sample]:
        text = {"error": "IndexError", "text": "[f] {value} is out of range"}
        i = examples.integers((2, 3), np.int64, 0, 4)
        yield Sample((i,), {"low": 0, "high": 3, **text}, "in range")
        yield Sample((i - 2,), {"low": -2, "high": None, **text}, "negative")
        yield Sample((i.astype(np.int32),), {"low": None, "high": 3, **text}, "int32")
        x = examples.uniform((3, 2), 0.0, 1.0)
        yield Sample((x,), {"low": 0.0, "high": 1.0, **text}, "floats")
        yield Sample((x[:0],), {"low": 0.0, "high": 1.0, **text}, "empty")
        zeros = np.array([0.0, -0.0])
        yield Sample((zeros,), {"low": 0.0, "high": 1.0, **text}, "zeros", grad=False)


expect_range = ExpectRange()
