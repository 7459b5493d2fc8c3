"""Parameter and Buffer: tensors that a Module owns."""

from __future__ import annotations

from typing import Any

from jitgrad.tensor import Tensor


class Parameter(Tensor):
    """A tensor that, set as a Module's attribute, joins its parameters.

    Args:
        data: a tensor of any shape; the parameter shares its storage and is a leaf.
        requires_grad: whether gradients accumulate in `.grad` (floating dtypes only).

    Raises TypeError for what is no Tensor, RuntimeError for a gradient of another dtype.
    """

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> Any:
        if not isinstance(data, Tensor):
            raise TypeError(
                f"[Parameter] expected a Tensor; got {type(data).__name__}; "
                "wrap numbers and lists with jitgrad.tensor(...) first"
            )
        if requires_grad and not (data.is_floating_point() or data.is_complex()):
            raise RuntimeError(
                "[Parameter] Only Tensors of floating point and complex dtype can require "
                f"gradients; got {data.dtype} {tuple(data.shape)}; pass requires_grad=False"
            )
        return Tensor._make_subclass(cls, data.detach(), requires_grad)

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that, set as a Module's attribute, joins its buffers (no gradient).

    Args:
        data: a tensor of any shape.
        persistent: whether it is part of the Module's state_dict.
    """

    persistent: bool = True

    def __new__(cls, data: Tensor, *, persistent: bool = True) -> Any:
        self = Tensor._make_subclass(cls, data.detach(), False)
        self.persistent = persistent
        return self
