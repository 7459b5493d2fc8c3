"""torch._check and its kin, and the assertions about tensors.

Owns conditions on Python values (sizes among them),
which raise at once. What a tensor holds is asked by
the record `expect_range`, so that compiled code asks it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.functions.args import expect_range, expect_tensor
from jitgrad.sizes import SymInt
from jitgrad.tensor import Tensor

Message = Callable[[], Any] | None


def _check_with(error_type: type[Exception], cond: Any, message: Message = None) -> None:
    """Raises error_type, with message() as its text, unless cond holds.

    Raises TypeError for a cond that is no bool and a message that cannot be called.
    """
    if not isinstance(cond, bool):
        raise TypeError(f"cond must be a bool, but got {type(cond)}")
    if cond:
        return
    if message is None:
        text = "[_check] expected the condition to hold; it does not"
    elif callable(message):
        text = str(message())
    else:
        raise TypeError(f"message must be a callable; got {type(message).__name__}")
    raise error_type(text)


def _check(cond: Any, message: Message = None) -> None:
    """Raises RuntimeError unless cond holds."""
    _check_with(RuntimeError, cond, message)


def _check_index(cond: Any, message: Message = None) -> None:
    """Raises IndexError unless cond holds."""
    _check_with(IndexError, cond, message)


def _check_value(cond: Any, message: Message = None) -> None:
    """Raises ValueError unless cond holds."""
    _check_with(ValueError, cond, message)


def _check_type(cond: Any, message: Message = None) -> None:
    """Raises TypeError unless cond holds."""
    _check_with(TypeError, cond, message)


def _check_not_implemented(cond: Any, message: Message = None) -> None:
    """Raises NotImplementedError unless cond holds."""
    _check_with(NotImplementedError, cond, message)


def _check_is_size(i: Any, message: Message = None, *, max: Any = None) -> None:
    """Raises RuntimeError unless i, an int, is a size: at least 0, and at most max."""
    _check(bool(i >= 0) and (max is None or bool(i <= max)), message)


def _check_tensor_all(cond: Tensor, message: Message = None) -> None:
    """Raises RuntimeError unless all elements of cond, booleans, hold. The values are looked at."""
    expect_tensor("_check_tensor_all", cond)
    _check(bool(cond.all()), message)


def _assert_async(input: Tensor, assert_msg: str | None = None) -> None:
    """Raises RuntimeError if input, of one element, is zero: in compiled code, when it runs."""
    expect_tensor("_assert_async", input)
    if input.numel() != 1:
        raise RuntimeError(
            f"[_assert_async] expected a tensor of one element; got shape {tuple(input.shape)}; "
            "reduce it with .all()"
        )
    text = assert_msg or "Expected Tensor with single nonzero value, but got zero"
    expect_range((input != 0).long(), 1, None, RuntimeError, text)


def sym_int(a: Any) -> Any:
    """a as an int, rounded towards zero; an int that stands for a size stays symbolic."""
    return a if isinstance(a, SymInt) else int(a)
