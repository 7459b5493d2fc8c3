"""torch.testing: comparing tensors, and random tensors to test with.

Owns `assert_close` and `make_tensor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.creation import as_tensor, full, rand, randint
from jitgrad.functions.args import as_shape
from jitgrad.missing import missing
from jitgrad.promotion import cast, promote_types
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.tensor import Tensor

# dtype -> (relative, absolute)
_TOLERANCES = {
    dtypes.float16: (1e-3, 1e-5), dtypes.bfloat16: (1.6e-2, 1e-5), dtypes.float32: (1.3e-6, 1e-5),
    dtypes.float64: (1e-7, 1e-7), dtypes.complex64: (1.3e-6, 1e-5),
    dtypes.complex128: (1e-7, 1e-7),
}  # fmt: skip


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """Raises AssertionError unless |actual - expected| <= atol + rtol * |expected|, everywhere.

    Takes tensors, arrays, numbers, and sequences and mappings of them. Tolerances depend on the
    dtype (those of PyTorch: 1.3e-6 and 1e-5 for float32); for two dtypes the looser ones count.

    Raises ValueError for one tolerance without the other, TypeError for what cannot be compared.
    """
    if (rtol is None) != (atol is None):
        raise ValueError(
            "Both 'rtol' and 'atol' must be either specified or unspecified; got "
            f"rtol={rtol}, atol={atol}"
        )
    checks = _Checks(
        rtol, atol, equal_nan, check_device, check_dtype, check_stride, allow_subclasses
    )  # fmt: skip
    fault = checks.fault(actual, expected, "")
    if fault:
        text = fault if msg is None else msg(fault) if callable(msg) else msg
        raise AssertionError(text)


class _Checks:
    """The comparison of two values, with its options. `fault` says what differs; "" if nothing."""

    def __init__(
        self, rtol: float | None, atol: float | None, equal_nan: bool, check_device: bool,
        check_dtype: bool, check_stride: bool, subclasses: bool,
    ) -> None:  # fmt: skip
        self.rtol, self.atol, self.equal_nan = rtol, atol, equal_nan
        self.check_device, self.check_dtype = check_device, check_dtype
        self.check_stride, self.subclasses = check_stride, subclasses

    def fault(self, a: Any, b: Any, where: str) -> str:
        if _is_sequence(a) and _is_sequence(b):
            if len(a) != len(b):
                return f"The length of the sequences mismatch: {len(a)} != {len(b)}{where}"
            pairs = [(a[i], b[i], i) for i in range(len(a))]
        elif isinstance(a, Mapping) and isinstance(b, Mapping):
            if set(a) != set(b):
                return (
                    f"The keys of the mappings do not match: {sorted(map(str, a))} != "
                    f"{sorted(map(str, b))}{where}"
                )
            pairs = [(a[k], b[k], k) for k in a]
        elif a is None and b is None:
            return ""
        else:
            return self._leaf_fault(a, b, where)
        inside = f" (in {where.strip()[4:-1]}" if where else " (in item "
        for x, y, key in pairs:
            found = self.fault(x, y, f"{inside}[{key!r}])")
            if found:
                return found
        return ""

    def _leaf_fault(self, a: Any, b: Any, where: str) -> str:
        related = isinstance(a, type(b)) or isinstance(b, type(a))
        if not related and not (_is_number(a) and _is_number(b)):
            raise TypeError(
                f"[assert_close] expected two values of one kind; got {type(a).__name__} and "
                f"{type(b).__name__}{where}"
            )
        if not self.subclasses and type(a) is not type(b):
            raise TypeError(
                f"[assert_close] expected equal types (allow_subclasses=False); got "
                f"{type(a).__name__} and {type(b).__name__}{where}"
            )
        if isinstance(a, (Tensor, np.ndarray)):
            return self._tensor_fault(as_tensor(a).detach(), as_tensor(b).detach(), where)
        if _is_number(a):
            return self._number_fault(a, b, where)
        raise TypeError(
            f"[assert_close] expected tensors, arrays, numbers, or sequences and mappings of them; "
            f"got {type(a).__name__}{where}"
        )

    def _tolerances(self, *found: DType) -> tuple[float, float]:
        if self.rtol is not None and self.atol is not None:
            return self.rtol, self.atol
        pairs = [_TOLERANCES.get(d, (0.0, 0.0)) for d in found]
        return max(p[0] for p in pairs), max(p[1] for p in pairs)

    def _tensor_fault(self, a: Tensor, b: Tensor, where: str) -> str:
        if tuple(a.shape) != tuple(b.shape):
            return f"The values for attribute 'shape' do not match: {a.shape} != {b.shape}{where}"
        if self.check_stride and a.stride() != b.stride():
            return f"The values for attribute 'stride()' do not match: {a.stride()} != {b.stride()}"
        if a.dtype is not b.dtype and self.check_dtype:
            return f"The values for attribute 'dtype' do not match: {a.dtype} != {b.dtype}{where}"
        if a.device != b.device and self.check_device:
            return (
                f"The values for attribute 'device' do not match: {a.device} != {b.device}{where}"
            )
        rtol, atol = self._tolerances(a.dtype, b.dtype)
        common = promote_types(a.dtype, b.dtype)
        x, y = (_comparable(cast(t, common)) for t in (a, b))
        close = x == y
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.where(close, 0, np.abs(x - y))
            if x.dtype.kind in "fc":
                close = close | (np.isfinite(y) & (gap <= atol + rtol * np.abs(y)))
            elif rtol or atol:
                close = close | (gap <= atol + rtol * np.abs(y))
        if self.equal_nan:
            close = close | ((x != x) & (y != y))
        if close.all():
            return ""
        bad = ~close
        kind = "Tensor-likes are not close!" if rtol or atol else "Tensor-likes are not equal!"
        lines = [kind, "", f"Mismatched elements: {bad.sum()} / {bad.size}"
                 f" ({bad.sum() / bad.size:.1%})"]  # fmt: skip
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = gap / np.abs(y)
        for name, values, allowed in (("absolute", gap, atol), ("relative", relative, rtol)):
            shown = np.where(np.isnan(values), math.inf, values)
            at = np.unravel_index(int(np.argmax(np.where(bad, shown, -1))), bad.shape)
            index = tuple(int(i) for i in at)
            lines.append(
                f"Greatest {name} difference: {values[at]} at index {index} (up to {allowed} "
                "allowed)"
            )
        return "\n".join(lines) + where

    def _number_fault(self, a: Any, b: Any, where: str) -> str:
        if self.check_dtype and type(a) is not type(b):
            return f"The types of the numbers do not match: {type(a)} != {type(b)}{where}"
        kinds = [_NUMBERS[t] for t in (type(a), type(b)) if t in _NUMBERS]
        rtol, atol = self._tolerances(*kinds) if kinds else (0.0, 0.0)
        if a == b or (self.equal_nan and a != a and b != b):
            return ""
        if math.isfinite(abs(b)) and abs(a - b) <= atol + rtol * abs(b):
            return ""
        return (
            f"Scalars are not close!\n\nExpected {b} but got {a}.\nAbsolute difference: "
            f"{abs(a - b)} (up to {atol} allowed), relative tolerance {rtol}{where}"
        )


_NUMBERS = {float: dtypes.float64, int: dtypes.int64, bool: dtypes.bool_,
            complex: dtypes.complex128}  # fmt: skip


def _is_sequence(x: Any) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str)


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, complex, np.number, np.bool_))


def _comparable(x: Tensor) -> np.ndarray[Any, Any]:
    """The values in a dtype whose differences do not overflow."""
    array = (x.float() if x.dtype in (dtypes.bfloat16, dtypes.float16) else x).cpu().numpy()
    if array.dtype.kind in "biu":
        return array.astype(np.int64)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


# -- make_tensor ---------------------------------------------------------------------------------
def make_tensor(
    *shape: Any,
    dtype: DType,
    device: Any = "cpu",
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Uniform random numbers from [low, high): by default [-9, 9), [0, 10) for uint8, [0, 2) for
    bool.

    Args:
        noncontiguous: every second element of a larger tensor.
        exclude_zero: zeros become the smallest positive number (1 for integers).

    Raises ValueError for low >= high; RuntimeError for a gradient of a dtype that has none.
    """
    size = as_shape(shape)
    if dtype is dtypes.bool_:
        first, last = (0.0, 2.0)
    else:
        first, last = (0.0, 10.0) if dtype is dtypes.uint8 else (-9.0, 9.0)
    first, last = (first if low is None else low), (last if high is None else high)
    if not first < last:
        raise ValueError(f"`low` must be less than `high`; got low={first}, high={last}")
    wide = (*size[:-1], 2 * size[-1]) if noncontiguous and size and math.prod(size) > 1 else size
    if dtype.is_floating_point:
        out = cast(rand(wide, dtype=dtypes.float64) * (last - first) + first, dtype)
        tiny = float(np.finfo(np.float32).tiny) if dtype is not dtypes.float16 else 6.104e-5
    elif dtype.is_complex:
        raise RuntimeError(
            f"[make_tensor] expected a real dtype; got {dtype}: complex arithmetic is not there yet"
        )
    else:
        out = cast(randint(math.ceil(first), math.ceil(last), wide, dtype=dtypes.int64), dtype)
        tiny = 1
    if exclude_zero:
        out = out.masked_fill(out == 0, cast(full((), tiny), dtype).item())
    if wide is not size:
        out = out[..., ::2]
    return out.requires_grad_() if requires_grad else out


__getattr__ = missing(__name__)
