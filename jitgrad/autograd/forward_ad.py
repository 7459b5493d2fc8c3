"""torch.autograd.forward_ad: tensors that carry a tangent (dual tensors), inside a level."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from jitgrad.autograd.forward import Tangents
from jitgrad.state import state
from jitgrad.tensor import Tensor


class UnpackedDualTensor(NamedTuple):
    """What unpack_dual gives: the tensor without its tangent, and the tangent (None: zero)."""

    primal: Tensor
    tangent: Tensor | None


class _DualLevel(Tangents):
    """The level of dual_level(), as told from those of func.jvp."""

    block: dual_level


def _current() -> _DualLevel | None:
    for level in reversed(state.levels):
        if isinstance(level, _DualLevel):
            return level
    return None


class dual_level:
    """`with dual_level():` inside, make_dual's tensors push their tangents through operations.

    Raises RuntimeError inside another dual level.
    """

    _inside: AbstractContextManager[None] | None = None

    def __enter__(self) -> int:
        if _current() is not None:
            raise RuntimeError("Nested forward mode AD is not supported at the moment")
        level = _DualLevel()
        level.block = self
        self._inside = level.inside()
        self._inside.__enter__()
        return 0

    def __exit__(self, *exc: Any) -> None:
        assert self._inside is not None
        self._inside.__exit__(*exc)
        self._inside = None


def enter_dual_level() -> int:
    """Enters a level until exit_dual_level(); dual_level() is the same as a block."""
    return dual_level().__enter__()


def exit_dual_level(*, level: int | None = None) -> None:
    """Leaves the level. Raises RuntimeError where none was entered."""
    now = _current()
    if now is None or (level is not None and level != 0):
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This is "
            "not supported."
        )
    now.block.__exit__(None, None, None)


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """A tensor of tensor's values with a tangent of the same shape, on the tape where `tensor` is.
    Its memory is its own (PyTorch's is a view); the tangent takes its dtype.

    Raises RuntimeError outside dual_level() and for a tangent of another shape; ValueError for
    dtypes that are not floating.
    """
    now = _current()
    if now is None:
        raise RuntimeError(
            "Trying to create a dual Tensor for forward AD but no level exists, make sure to "
            "enter_dual_level() first."
        )
    for what, x in (("primal", tensor), ("tangent", tangent)):
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"Expected {what} to be floating point or complex, but got: {x.dtype}")
    with now.outside():
        return now.start(tensor, tangent)


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """The tensor without its tangent, and the tangent; None where it has none, or outside."""
    now = _current()
    tangent = None if now is None else now.get(tensor)
    if now is None or tangent is None:
        return UnpackedDualTensor(tensor, None)
    with now.outside():
        primal: Tensor = tensor.clone()
    return UnpackedDualTensor(primal, tangent)


__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]
