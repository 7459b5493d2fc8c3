"""Conversions of a tensor to a dtype or device, tensors made like another, and the old typed names.

Owns `to`, `type`, `new_*`, and the constructors FloatTensor, LongTensor, ... and Tensor(...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jitgrad import creation
from jitgrad.device import device as Device
from jitgrad.device import place, set_default
from jitgrad.functions import shape
from jitgrad.functions.args import as_shape, expect_rank_of, expect_tensor
from jitgrad.levels import examples_like
from jitgrad.promotion import cast
from jitgrad.runtime import cuda as cuda_runtime
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.state import defaults, set_default_dtype, state
from jitgrad.storage import Storage
from jitgrad.tensor import Size, Tensor, root_of, wrap_array

TYPE_NAMES = {
    dtypes.float32: "FloatTensor", dtypes.float64: "DoubleTensor", dtypes.float16: "HalfTensor",
    dtypes.bfloat16: "BFloat16Tensor", dtypes.int64: "LongTensor", dtypes.int32: "IntTensor",
    dtypes.int16: "ShortTensor", dtypes.int8: "CharTensor", dtypes.uint8: "ByteTensor",
    dtypes.bool_: "BoolTensor", dtypes.complex64: "ComplexFloatTensor",
    dtypes.complex128: "ComplexDoubleTensor",
}  # fmt: skip
_BY_TYPE_NAME = {name: dtype for dtype, name in TYPE_NAMES.items()}

CONVERSIONS = {
    "float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16,
    "bfloat16": dtypes.bfloat16, "long": dtypes.int64, "int": dtypes.int32, "short": dtypes.int16,
    "char": dtypes.int8, "byte": dtypes.uint8, "bool": dtypes.bool_,
    "cfloat": dtypes.complex64, "cdouble": dtypes.complex128,
}  # fmt: skip


class To(NamedTuple):
    """What the arguments of `to` ask for; None where they say nothing of it."""

    device: Any
    dtype: DType | None
    non_blocking: bool
    copy: bool
    memory_format: Any


def parse_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> To:
    """The arguments of x.to. Raises TypeError for what is none of them."""
    dtype, copy = kwargs.get("dtype"), kwargs.get("copy", False)
    target: Any = None
    if kwargs:
        if not _OPTIONS.issuperset(kwargs):
            unknown = ", ".join(sorted(set(kwargs) - _OPTIONS))
            raise TypeError(f"to(): got an unexpected keyword argument: {unknown}")
        dtype = dtypes.of_python(dtype)
    if dtype is not None and not isinstance(dtype, DType):
        raise TypeError(f"to(): expected a dtype as dtype; got {type(dtype).__name__}")
    if kwargs.get("device") is not None:
        target = kwargs["device"]
    flags = []
    for arg in (*args, kwargs.get("tensor")):
        if isinstance(arg, DType):
            dtype = arg
        elif isinstance(arg, Tensor):
            dtype, target = arg.dtype, arg._type.device
        elif isinstance(arg, bool):
            flags.append(arg)
        elif isinstance(arg, (str, int)):
            target = arg
        elif isinstance(dtypes.of_python(arg), DType):
            dtype = dtypes.of_python(arg)
        elif arg is not None:
            raise TypeError(
                f"to(): expected a dtype, a device or a tensor; got {type(arg).__name__}"
            )
    if len(flags) > 1:
        copy = flags[1]
    non_blocking = flags[0] if flags else bool(kwargs.get("non_blocking", False))
    return To(target, dtype, non_blocking, copy, kwargs.get("memory_format"))


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """To a dtype and/or device: x.to(dtype), x.to(device), x.to(device, dtype), x.to(other), each
    with non_blocking and copy after. Itself if nothing changes (a copy with copy=True)."""
    target, dtype, non_blocking, copy, memory_format = parse_to(args, kwargs)
    if memory_format is not None:
        expect_rank_of(memory_format, self.ndim)
    x = self
    if target is not None:
        x = creation.placed(x, target, non_blocking)
    if dtype is not None and dtype is not x._type.dtype:
        return cast(x, dtype)
    return shape.clone(x) if copy and x is self else x


_OPTIONS = {"dtype", "device", "non_blocking", "copy", "memory_format", "tensor"}


def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """x.type(): its type's name as PyTorch spells it; x.type(dtype), with a dtype, a type's name or
    FloatTensor and its kin: converted."""
    if dtype is None:
        return f"torch.{'cuda.' if self.is_cuda else ''}{TYPE_NAMES[self.dtype]}"
    wanted, where = _typed(dtype)
    x = cast(self, wanted)
    if where is None or where == self.device.type:
        return x
    return creation.placed(x, where, non_blocking)


def _typed(spec: Any) -> tuple[DType, str | None]:
    """The dtype, and the kind of device (None for that which a tensor has), of a dtype,
    "torch.cuda.LongTensor" or cuda.LongTensor."""
    if isinstance(spec, DType):
        return spec, None
    if isinstance(spec, str):
        space, _, name = spec.rpartition(".")
        found = _BY_TYPE_NAME.get(name)
        if found is not None:
            return found, "cuda" if space.endswith("cuda") else "cpu"
    if spec is Tensor:
        return defaults.dtype, "cpu"
    if isinstance(spec, TensorTypeMeta):
        return spec.dtype, spec.place
    kind = ValueError if isinstance(spec, (str, type)) else TypeError
    raise kind(f"invalid type: {spec!r}; expected a dtype or a name such as torch.LongTensor")


def conversion(name: str, dtype: DType) -> Callable[..., Tensor]:
    """The method `name` that converts to `dtype`."""

    def method(self: Tensor, memory_format: Any = None) -> Tensor:
        if memory_format is not None:
            expect_rank_of(memory_format, self.ndim)
        return cast(self, dtype)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Converted to {dtype}."
    return method


type_.__name__ = "type"


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Converted to other's dtype, on its device."""
    expect_tensor("type_as", other)
    return to(self, other)


def cpu(self: Tensor, memory_format: Any = None) -> Tensor:
    """On the CPU: itself if it is there, else a copy, once the device has computed it."""
    return creation.placed(self, "cpu")


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, **more: Any) -> Tensor:
    """On a GPU (the current one if None). Raises RuntimeError where there is none."""
    if device is not None and Device(device).type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device; got {device}")
    return creation.placed(self, "cuda" if device is None else device, non_blocking)


def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """A copy in pinned memory, from which GPUs copy while the host goes on; itself where it is in
    such memory, and where there is no GPU to pin for. Raises RuntimeError on a GPU."""
    if self.is_cuda:
        raise RuntimeError("cannot pin a tensor on a GPU; only dense CPU tensors can be pinned")
    if not cuda_runtime.device.count() or self.is_pinned():
        return self
    return wrap_array(cuda_runtime.pinned.pinned_copy(self._array("pin_memory of")))


# -- made like another ---------------------------------------------------------------------------
def new_full_method(make: Any) -> Callable[..., Tensor]:
    """new_zeros and its kin: `make` in this tensor's dtype."""

    def method(self: Tensor, *size: Any, **kwargs: Any) -> Tensor:
        if "size" in kwargs:
            size = (kwargs.pop("size"), *size)
        _as_self(self, kwargs)
        pin = kwargs.pop("pin_memory", False)
        out = make(*size, **kwargs)
        out = pin_memory(out) if pin else out
        return examples_like(self, out) if state.levels else out

    method.__name__ = method.__qualname__ = f"new_{make.__name__}"
    method.__doc__ = f"`{make.__name__}` in this tensor's dtype."
    return method


def _as_self(self: Tensor, kwargs: dict[str, Any]) -> None:
    """Sets the dtype and device that are not given to those of the tensor."""
    if kwargs.get("dtype") is None:
        kwargs["dtype"] = self.dtype
    if kwargs.get("device") is None:
        kwargs["device"] = self._type.device


def new_tensor(self: Tensor, data: Any, **kwargs: Any) -> Tensor:
    """tensor(data) of this dtype, on this device: a copy."""
    _as_self(self, kwargs)
    if isinstance(data, Tensor):
        copy = shape.clone(cast(data.detach(), kwargs["dtype"]))
        copy = creation.placed(copy, kwargs["device"]).detach()
        return copy.requires_grad_() if kwargs.get("requires_grad") else copy
    return creation.tensor(data, **kwargs)


def new_empty_strided(self: Tensor, size: Any, stride: Any, **kwargs: Any) -> Tensor:
    """empty_strided in this tensor's dtype, on its device."""
    _as_self(self, kwargs)
    return creation.empty_strided(size, stride, **kwargs)


def new(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The old constructor in this tensor's dtype: x.new(2, 3), x.new([1, 2]), x.new(size)."""
    return legacy_tensor(self.dtype, args, kwargs, self._type.device)


# -- the old typed constructors ------------------------------------------------------------------
def legacy_tensor(
    dtype: DType, args: tuple[Any, ...], kwargs: dict[str, Any], device: str = "cpu"
) -> Tensor:
    """What FloatTensor(...) and its kin give: of sizes (zeros), of a Size, of a sequence or array,
    of a tensor (the same memory), of a storage. Raises TypeError for anything else."""
    if kwargs.get("device") is not None:
        device = place(kwargs["device"])
    if not args:
        return creation.empty(0, dtype=dtype, device=device)
    first = args[0]
    if isinstance(first, Tensor):
        if first.dtype is not dtype:
            raise TypeError(
                f"expected {TYPE_NAMES[dtype]} (got {type_(first)}); convert it with .to(dtype)"
            )
        return first.detach()
    storage = getattr(first, "_untyped_storage", first)
    if isinstance(storage, Storage):
        return shape.view_dtype(root_of(storage).reshape(-1), dtype)
    if isinstance(first, Size) or all(isinstance(a, int) for a in args):
        return creation.empty(*as_shape(args), dtype=dtype, device=device)
    if isinstance(first, (list, tuple, np.ndarray)):
        return creation.placed(creation.tensor(first, dtype=dtype), device)
    raise TypeError(
        f"new(): data must be a sequence (got {type(first).__name__}); use jitgrad.tensor(...)"
    )


def legacy_new(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Tensor(2, 3), Tensor([1.0, 2.0]), Tensor(other): in the default dtype."""
    if len(args) == 1 and isinstance(args[0], Tensor):
        made = args[0].detach()  # of any dtype, unlike FloatTensor(x)
    else:
        made = legacy_tensor(defaults.dtype, args, kwargs)
    return made if cls is Tensor else made._alias(cls)


class TensorTypeMeta(type):
    """The class of FloatTensor and its kin, and of those of `cuda`: calling one makes a Tensor, and
    isinstance looks at the dtype and the kind of device (`place`)."""

    dtype: DType
    place: str

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance.dtype is cls.dtype
            and instance.device.type == cls.place
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.place == "cuda" and not cuda_runtime.device.count():
            raise RuntimeError(
                f"type torch.cuda.{cls.__name__} not available; there is no GPU: "
                f"{cuda_runtime.device.reason()}"
            )
        return legacy_tensor(cls.dtype, args, kwargs, place(cls.place))


def _types(kind: str, module: str) -> dict[str, TensorTypeMeta]:
    return {
        name: TensorTypeMeta(name, (), {
            "dtype": dtype, "place": kind, "__module__": module, "__doc__": f"Tensors of {dtype}.",
        })
        for dtype, name in TYPE_NAMES.items()
    }  # fmt: skip


TENSOR_TYPES = _types("cpu", "jitgrad")
"""FloatTensor, LongTensor, ...: by name."""

CUDA_TENSOR_TYPES = _types("cuda", "jitgrad.cuda")
"""cuda.FloatTensor, cuda.LongTensor, ...: by name."""


def set_default_tensor_type(t: Any) -> None:
    """Sets the dtype that Python floats become, and the default device, by a type's name or
    FloatTensor and its kin."""
    dtype, kind = _typed(t)
    set_default_dtype(dtype)
    set_default(kind)


METHODS: dict[str, Callable[..., Any]] = {
    "to": to, "type": type_, "type_as": type_as, "cpu": cpu, "cuda": cuda,
    "pin_memory": pin_memory, "new_tensor": new_tensor, "new": new,
    "new_empty_strided": new_empty_strided,
    **{name: conversion(name, dtype) for name, dtype in CONVERSIONS.items()},
    **{
        f"new_{make.__name__}": new_full_method(make)
        for make in (creation.zeros, creation.ones, creation.empty, creation.full)
    },
}  # fmt: skip
"""The methods made here, by name."""
