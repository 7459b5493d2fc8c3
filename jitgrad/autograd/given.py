"""Gradients and tangents that the user's code gives: arguments of `backward` and `grad`, results of
hooks, and of the derivatives of autograd.Function. Owns what they must be like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.types import TensorType
from jitgrad.conversions import type_
from jitgrad.dispatch import apply
from jitgrad.functions.numeric import sum_to_size
from jitgrad.tensor import Tensor


def as_gradient(g: Tensor, of: TensorType, what: str) -> Tensor:
    """A gradient of a tensor of type `of`: summed where that was broadcast, in its dtype, a 0-d one
    on its device. `what` begins the text of the RuntimeError for another shape or device."""
    if g._type is of:
        return g
    if g._type.shape != of.shape:
        if not _broadcasts(of.shape, g._type.shape):
            raise RuntimeError(
                f"{what} - got {list(g.shape)} but expected shape compatible with {list(of.shape)}"
            )
        g = sum_to_size(g, of.shape)
    return like(g, of, what)


def like(g: Tensor, of: TensorType, what: str) -> Tensor:
    """g in a type's dtype, on its device where g is 0-d. Raises RuntimeError for a g with dims on
    another device."""
    if g._type.device != of.device:
        if g._type.shape:
            raise RuntimeError(f"{what} - expected device {of.device} but got {g._type.device}")
        g = apply(OPS["to_device"], (g,), {"device": of.device})
    if g._type.dtype is not of.dtype:
        g = apply(OPS["cast"], (g,), {"dtype": of.dtype})
    return g


def _broadcasts(shape: Sequence[Any], to: Sequence[Any]) -> bool:
    """Whether a tensor of a shape can be expanded to another one."""
    return len(shape) <= len(to) and all(
        n == 1 or n == m for n, m in zip(reversed(shape), reversed(to), strict=False)
    )


def changed(hook: Callable[..., Any], given: Any, was: Tensor | None) -> Any:
    """What a hook made of a gradient. Raises TypeError for what is no tensor, RuntimeError for one
    of another dtype, device or shape."""
    if given is None:
        return given
    if not isinstance(given, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(given).__name__}'")
    if was is None or given._type is was._type:
        return given
    if (given._type.dtype, given._type.device) != (was._type.dtype, was._type.device):
        raise RuntimeError(
            f"hook '{name_of(hook)}' has changed the type of value (was {_named(was)} got "
            f"{_named(given)})"
        )
    if given._type.shape != was._type.shape:
        raise RuntimeError(
            f"hook '{name_of(hook)}' has changed the size of value (was {list(was.shape)} got "
            f"{list(given.shape)})"
        )
    return given


def all_changed(hook: Callable[..., Any], given: Any, were: Sequence[Any]) -> tuple[Any, ...]:
    """`changed`, of a hook that gives a gradient for each of several, as a tuple."""
    many = (given,) if isinstance(given, Tensor) and len(were) == 1 else given
    if not isinstance(many, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(given).__name__}'")
    if len(many) != len(were):
        raise RuntimeError(
            f"hook '{name_of(hook)}' has returned an incorrect number of values (got {len(many)}, "
            f"but expected {len(were)})"
        )
    return tuple([changed(hook, g, was) for g, was in zip(many, were, strict=True)])


def name_of(hook: Any) -> str:
    """The name of a hook, for texts of errors."""
    return getattr(hook, "__name__", "<unknown name>")


def _named(x: Tensor) -> str:
    where = "" if x._type.device == "cpu" else f" on {x._type.device}"
    return f"{type_(x)}{where}"
