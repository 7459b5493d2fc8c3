"""In-place methods: values written to a tensor, and tensors that become another view.

Owns `store` (the in-place form of a function), the plain writes (copy_, fill_, apply_, ...), and
the methods that change what a tensor shows: transpose_ and its kin, set_, resize_, as_strided_.
Random fills are in fills.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import creation, gpu
from jitgrad.casting import as_given
from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply, assign
from jitgrad.functions import scatters, select, shape
from jitgrad.functions.args import as_shape, expect_one_device
from jitgrad.promotion import can_cast, cast, stored
from jitgrad.runtime.arguments import CAUGHT, complete, locates
from jitgrad.runtime.overriding import recover
from jitgrad.state import bump_epoch, state
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor, root_of, wrap_array


# -- values --------------------------------------------------------------------------------------
def store(target: Tensor, value: Tensor, name: str) -> Tensor:
    """target's elements become value's: shapes equal, dtype castable. Returns target."""
    if value._type.shape != target._type.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(value.shape)} (in {name})"
        )
    if value._type.dtype is not target._type.dtype:
        if not can_cast(value.dtype, target.dtype):
            raise RuntimeError(
                f"result type {value.dtype} can't be cast to the desired output type "
                f"{target.dtype} (in {name}); use the out-of-place form"
            )
        value = cast(value, target._type.dtype)
    expect_one_device(name, target, value)
    assign(target, value)
    return target


def in_place(function: Callable[..., Any], name: str) -> Callable[..., Tensor]:
    """The method `name` that writes what `function` gives back into its first argument.

    Inside vmap and forward mode it computes with a copy: what their rules save of the argument is
    its value before the write.
    """
    function = as_given(function)

    @functools.wraps(function)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        try:
            if state.levels:
                before = shape.clone(self)
                args = tuple([before if a is self else a for a in args])
                return store(self, function(before, *args, **kwargs), name)
            return store(self, function(self, *args, **kwargs), name)
        except CAUGHT as error:
            if (made := recover(error, method, (self, *args), kwargs)) is not None:
                return made[0]
            complete(error, function, (self, *args), kwargs)
            raise

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In-place form of `{name[:-1]}`."
    return locates(method)


def copy_(self: Tensor, other: Any, non_blocking: bool = False) -> Tensor:
    """Elements become other's, broadcast and converted to this dtype. non_blocking: between pinned
    memory and a GPU the host goes on while it is copied."""
    if not isinstance(other, Tensor):
        other = creation.as_tensor(other)
    value = cast(other, self._type.dtype)
    if value._type is not self._type and tuple(value._type.shape) != tuple(self._type.shape):
        value = value.expand(tuple(self._type.shape))
    assign(self, value, non_blocking)
    return self


def fill_(self: Tensor, value: Any) -> Tensor:
    """All elements become the value."""
    assign(self, select.fill_values(self, value))
    return self


def zero_(self: Tensor) -> Tensor:
    """All elements become 0."""
    return fill_(self, 0)


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """The main diagonal becomes the value: of a matrix, or of a cube of any rank.

    wrap: in a matrix with more rows than columns, the diagonal starts anew after each block of
    columns + 1 rows. Raises RuntimeError for vectors, and for dims that differ past two.
    """
    sizes = self._type.shape
    if len(sizes) < 2:
        raise RuntimeError(f"dimensions must larger than 1; got {self._type}")
    if len(sizes) > 2 and any(d != sizes[0] for d in sizes):
        raise RuntimeError(f"all dimensions of input must be of equal length; got {self._type}")
    step: Any = 0
    for d in sizes:
        step = step * d + 1  # a step of one along every dim
    rows, columns = sizes[0], sizes[-1]
    count = rows if rows < columns else columns
    place = creation.arange(self.numel()).reshape(tuple(sizes))
    on = place % step == 0
    if not (wrap and len(sizes) == 2):
        on = on & (place < count * step)
    value = stored(fill_value, self.dtype)
    assign(self, apply(OPS["where"], (on, value, self), {}))
    return self


def apply_(self: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Each element becomes callable(element), one call each. Ends a trace."""
    return _mapped("apply_", self, (), callable)


def map_(self: Tensor, other: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
    """Each element becomes callable(element, other element). Ends a trace."""
    return _mapped("map_", self, (other,), callable)


def map2_(self: Tensor, x: Tensor, y: Tensor, callable: Callable[[Any, Any, Any], Any]) -> Tensor:
    """Each element becomes callable(element, x's element, y's element). Ends a trace."""
    return _mapped("map2_", self, (x, y), callable)


def _mapped(
    name: str, self: Tensor, others: tuple[Tensor, ...], function: Callable[..., Any]
) -> Tensor:
    if any(x.requires_grad for x in (self, *others)):
        raise TypeError(
            f"Can't call {name} on Variable that requires grad. Use var.detach().{name}() instead."
        )
    for x in others:
        if x.dtype is not self.dtype:
            raise TypeError(f"[{name}] expected tensors of dtype {self.dtype}; got {x._type}")
    flat = [x.expand(tuple(self._type.shape)).reshape(-1).tolist() for x in (self, *others)]
    made = [function(*values) for values in zip(*flat, strict=True)]
    self._array(name)
    values = np.array(made, self.dtype.np if made else None).reshape(tuple(self._type.shape))
    assign(self, cast(wrap_array(values), self.dtype))
    return self


# -- what a tensor shows -------------------------------------------------------------------------
def _become(self: Tensor, view: Tensor) -> Tensor:
    """self takes the place of `view` in all: type, memory, node, base."""
    if state.recorder is not None:
        state.recorder.rebind(self, "data", view)
    self._data, self._type = view._data, view._type
    self._storage, self._chain = view._storage, view._chain
    self._node, self._out, self._requires_grad = view._node, view._out, view._requires_grad
    self._view = view._view
    self.__dict__.pop("_below", None)  # what vmap remembers of a view (levels.py)
    if "_below" in view.__dict__:
        self.__dict__["_below"] = view.__dict__["_below"]
    bump_epoch()
    return self


def view_in_place(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """squeeze_ and its kin: the tensor itself becomes the view. On the tape it is from then on the
    result of the view op.

    Raises RuntimeError for a leaf that requires grad, as any in-place operation does.
    """

    @functools.wraps(function)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.requires_grad and state.grad_enabled and self._node is None:
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation."
            )
        leaf = self.requires_grad and self._node is None  # in no_grad mode: it stays a leaf
        source = self
        if self._view is None and not leaf:
            # What it was stands for it among the bases; it becomes a view of that.
            source = self._alias()
            source._node, source._out = self._node, self._out
            source._requires_grad = self._requires_grad
        view = function(source, *args, **kwargs)
        if source is not self:
            self._was = source
        if leaf:
            view = view.detach()
            view._requires_grad, view._view = True, None
        return _become(self, view)

    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    method.locates = False  # type: ignore[attr-defined]  # the function does
    method.__doc__ = f"In-place form of `{name[:-1]}`: this tensor becomes the view."
    return method


def _expect_device_of(x: Tensor, device: str) -> None:
    if device != x._type.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{x._type.device}" to a storage '
            f'on different device "{device}"; the devices must match'
        )


def set_(
    self: Tensor,
    source: Any = None,
    storage_offset: int = 0,
    size: Any = None,
    stride: Any = None,
) -> Tensor:
    """Shares source's memory from here on: that of a tensor, or of a storage (with size, stride and
    offset in elements). set_() makes it empty."""
    if source is None:
        self.data = creation.empty(0, dtype=self.dtype, device=self._type.device)
        return self
    if isinstance(source, Tensor):
        _expect_device_of(self, source._type.device)
        if source.dtype is not self.dtype:
            raise RuntimeError(
                f"[set_] expected a source of dtype {self.dtype}; got {source._type}; convert it "
                "with .to(dtype)"
            )
        if size is not None:
            source = shape.as_strided(source.detach(), size, stride, storage_offset)
        self.data = source
        return self
    storage = getattr(source, "_untyped_storage", source)
    if not isinstance(storage, Storage):
        raise TypeError(f"[set_] expected a Tensor or a storage; got {type(source).__name__}")
    _expect_device_of(self, storage.type.device)
    whole = shape.view_dtype(root_of(storage).reshape(-1), self.dtype)
    if size is None:
        size = (whole.numel() - storage_offset,)
    size = as_shape((size,) if isinstance(size, int) else tuple(size))
    self.data = shape.as_strided(whole, size, _strides(size) if stride is None else stride,
                                 storage_offset)  # fmt: skip
    return self


def _strides(size: tuple[Any, ...]) -> tuple[Any, ...]:
    """Row-major strides, in elements."""
    steps: list[Any] = []
    step: Any = 1
    for d in reversed(size):
        steps.append(step)
        step = step * d
    return tuple(reversed(steps))


def resize_(self: Tensor, *sizes: Any, size: Any = None, memory_format: Any = None) -> Tensor:
    """Becomes a row-major tensor of this shape on the same memory.

    Where the memory is too small the tensor moves to new memory, its elements first and zeros
    after, and shares it with no other tensor. Raises RuntimeError for a tensor that requires grad.
    """
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    size = as_shape(sizes if size is None else (size,))
    if tuple(size) == tuple(self._type.shape):
        return self
    count: Any = 1
    for d in size:
        if d < 0:
            raise RuntimeError(f"[resize_] expected sizes of at least 0; got {list(size)}")
        count = count * d
    root = self._storage.type.numel if self._storage.type.dtype is self.dtype else self.numel()
    offset = self.storage_offset()
    if count + offset <= root and shape.strides_known(self):
        part = shape.as_strided(self, size, _strides(size), offset)
        if self._view is None:  # it is no view of itself
            part._view = None
        return _become(self, part)
    old = self.detach().reshape(-1)
    have = self.numel()
    if have > count:
        old = old.narrow(0, 0, count)
    elif have < count:
        old = shape.cat([old, creation.zeros(count - have, dtype=self.dtype)])
    self.data = old.reshape(size).clone()
    return self


def resize_as_(self: Tensor, the_template: Tensor, *, memory_format: Any = None) -> Tensor:
    """resize_ to the template's shape."""
    return resize_(self, tuple(the_template._type.shape))


def put_(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Elements of the flattened tensor at `index` become source's (or grow by them)."""
    return store(self, scatters.put(self, index, source, accumulate), "put_")


def share_memory_(self: Tensor) -> Tensor:
    """Moves the memory, for all tensors on it, to where processes can share it. Returns this
    tensor.

    A forked process, or one that gets the tensor through jitgrad.multiprocessing's queues, sees the
    same memory: writes of one are seen by the other. NumPy arrays that numpy() gave before keep
    the old memory. Nothing for memory of a GPU. Raises RuntimeError where the system has no room.
    """
    if self.is_cuda:
        return self
    self._array("share_memory_")
    alone = sys.getrefcount(self._storage) == 2  # this tensor's reference, and the call's
    self._storage.share_memory_(self if alone else None)
    return self


def record_stream(self: Tensor, s: Any) -> None:
    """The memory is used by work on a stream: it is reused after that. Nothing on the CPU."""
    if self.is_cuda:
        gpu.interop.record_stream(self, s)


IN_PLACE: tuple[Callable[..., Any], ...] = (
    copy_, fill_, zero_, fill_diagonal_, apply_, map_, map2_, set_, resize_, resize_as_, put_,
    share_memory_, record_stream,
)  # fmt: skip
"""The methods made here."""
