"""Parameter and Buffer: tensors that a Module owns; and those whose shape is not known yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.copying import deepcopy_values
from jitgrad.device import device as Device
from jitgrad.making import empty
from jitgrad.runtime.dtypes import DType
from jitgrad.tensor import Tensor


class Parameter(Tensor):
    """A tensor that, set as a Module's attribute, joins its parameters.

    Args:
        data: a tensor of any shape (default: empty). The parameter shares its storage, is a leaf.
        requires_grad: whether gradients accumulate in `.grad` (floating dtypes only).

    Raises TypeError for what is no Tensor, RuntimeError for a gradient of another dtype.
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Any:
        data = empty(0) if data is None else data
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Without .grad and the attributes that users set."""
        return deepcopy_values(self, memo)


class Buffer(Tensor):
    """A tensor that, set as a Module's attribute, joins its buffers (no gradient).

    Args:
        data: a tensor of any shape.
        persistent: whether it is part of the Module's state_dict.
    """

    persistent: bool = True

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Any:
        data = empty(0) if data is None else data
        self = Tensor._make_subclass(cls, data.detach(), data.requires_grad)
        self.persistent = persistent
        return self


class UninitializedTensorMixin:
    """A tensor with a dtype and no shape yet: `materialize(shape)` makes it one with values.

    Before that, anything but the dtype raises ValueError (the shape: RuntimeError).
    """

    cls_to_become: Any = Tensor
    _shapeless = True
    _requires_grad: bool

    def materialize(self, shape: Any, device: Any = None, dtype: DType | None = None) -> None:
        """Becomes a tensor (a Parameter, for parameters) of this shape, with any values."""
        made = empty(tuple(shape), dtype=dtype or self.dtype, device=device)
        self.__class__ = self.cls_to_become
        self.data = made

    def convert(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Takes the dtype that fn (a conversion) gives."""
        Tensor._type.__set__(self, fn(empty(0, dtype=self.dtype))._type)  # type: ignore[attr-defined]

    @property
    def _type(self) -> Any:
        name = type(self).__name__
        raise ValueError(
            f"Attempted to use an uninitialized parameter ({name}): call the lazy module with a "
            "first batch, so that it finds its shapes, before you use its parameters"
        )

    @_type.setter
    def _type(self, value: Any) -> None:
        Tensor._type.__set__(self, value)  # type: ignore[attr-defined]

    @property
    def dtype(self) -> DType:
        found: DType = Tensor._type.__get__(self).dtype  # type: ignore[attr-defined]
        return found

    @property
    def device(self) -> Any:
        return Device("cpu")

    @property
    def shape(self) -> Any:
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer. This error usually "
            "happens in `load_state_dict` when trying to load an uninitialized parameter into an "
            "initialized one. Call `forward` to initialize the parameters before accessing their "
            "attributes."
        )

    def numel(self) -> Any:
        return self._type.shape.numel()

    nelement = numel

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        return self.dtype.is_complex

    def detach(self) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self._again()
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (_uninitialized, (type(self), self._requires_grad, self.dtype))

    def _again(self) -> Any:
        return _uninitialized(type(self), self._requires_grad, self.dtype)


def _uninitialized(cls: Any, requires_grad: bool, dtype: DType) -> Any:
    return Tensor._make_subclass(cls, empty(0, dtype=dtype), requires_grad)


class UninitializedParameter(UninitializedTensorMixin, Parameter):
    """A Parameter with no shape yet."""

    cls_to_become = Parameter

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        return _uninitialized(cls, requires_grad, empty(0, device=device, dtype=dtype).dtype)


class UninitializedBuffer(UninitializedTensorMixin, Tensor):
    """A buffer with no shape yet."""

    persistent: bool = True

    def __new__(
        cls, requires_grad: bool = False, device: Any = None, dtype: Any = None,
        persistent: bool = True,
    ) -> Any:  # fmt: skip
        made = _uninitialized(cls, requires_grad, empty(0, device=device, dtype=dtype).dtype)
        made.persistent = persistent
        return made


def is_lazy(param: Any) -> bool:
    """Whether it is a parameter or buffer with no shape yet."""
    return isinstance(param, UninitializedTensorMixin)
