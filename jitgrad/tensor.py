"""Tensor: a typed handle on (a part of) a storage, and its place on the tape.

Owns the object: its fields, identity, aliasing (`detach`, `data`), reads of raw data (`numpy`,
`item`). Pickling and copying are in copying.py. Methods made of ops are attached by `methods.py`;
recording and running ops is `dispatch.py`.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from jitgrad import gpu, overriding_class, pytree
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym, is_static, prod
from jitgrad.compiler.types import TensorType
from jitgrad.device import CPU, device
from jitgrad.layouts import is_dense, is_told, layout_of
from jitgrad.outside import export
from jitgrad.pending import fetch
from jitgrad.runtime import dlpack, dtypes, formats, overriding
from jitgrad.runtime.dtypes import DType
from jitgrad.state import bump_epoch, state
from jitgrad.storage import LevelStorage, Storage, TypedStorage

if TYPE_CHECKING:
    from jitgrad.tape.node import Node
    from jitgrad.tape.views import ViewInfo
    from jitgrad.tensor_methods import TensorMethods
else:
    TensorMethods = object


_ITEM = ".item() on a Tensor, or using it in Python control flow"
_READS = {
    "item": _ITEM,
    "int": _ITEM,
    "float": _ITEM,
    "bool": "a Tensor in data-dependent control flow (if, while, and, or)",
}
"""What users did who read the data of a tensor inside vmap."""
_SHARES = ("numpy", "share_memory_")
_ON_DEVICE = (
    "data_ptr", "__dlpack__", "__cuda_array_interface__", "record_stream", "deepcopy", "pickle",
)  # fmt: skip
"""What takes the array of a tensor on a GPU as it is, there."""
"""Reads that give the memory itself, which must be the host's."""


_item_of = tuple.__getitem__


class Size(tuple[Any, ...]):
    """The shape of a tensor: a tuple with `numel()`. Slices, sums and multiples are Sizes too.
    Raises TypeError for an item that is no int."""

    __slots__ = ()

    def __new__(cls, iterable: Any = (), /) -> Size:
        return _size([_size_item(k, d) for k, d in enumerate(iterable)])

    def numel(self) -> Any:
        """The number of elements (symbolic while dims are)."""
        return prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = _item_of(self, index)
        return _size(found) if found.__class__ is tuple else found

    def __add__(self, other: tuple[Any, ...]) -> Size:
        return Size(tuple.__add__(self, other))

    def __radd__(self, other: tuple[Any, ...]) -> Size:
        return Size((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: Any) -> Size:
        return _size(tuple.__mul__(self, times))

    def __rmul__(self, times: Any) -> Size:
        return _size(tuple.__mul__(self, times))

    def __repr__(self) -> str:
        return f"jitgrad.Size([{', '.join(map(str, self))}])"


_size = functools.partial(tuple.__new__, Size)
"""A Size of what are sizes already."""


def _size_item(position: int, d: Any) -> Any:
    if type(d) is int or isinstance(d, Sym):
        return d
    try:
        return int(operator.index(d))
    except TypeError:
        raise TypeError(
            f"Size() takes an iterable of 'int' (item {position} is '{type(d).__name__}')"
        ) from None


def _shown(shape: tuple[Any, ...]) -> Size:
    """A shape with symbolic dims, as code sees it: fixed, where that asks for the type() of
    values."""
    if state.recorder is not None and not is_static(shape):
        frame = sys._getframe(2)
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        if state.recorder.sizes_fixed(frame):
            shape = tuple(map(operator.index, shape))
    return _size(shape)


pytree.register(Size, lambda size: (size, None), lambda _, sizes: _size(sizes))

_TYPES: dict[Any, TensorType] = {}
_MAX_TYPES = 16384


def intern_type(type_: TensorType) -> TensorType:
    """The one object for this type, its shape a Size. Types with symbolic dims pass unchanged."""
    if not is_static(type_.shape):
        return type_
    key = (type_.shape, type_.dtype, type_.device)
    found = _TYPES.get(key)
    if found is None:
        if len(_TYPES) >= _MAX_TYPES:
            _TYPES.clear()
        shape = Size(map(int, type_.shape))  # NumPy's ints equal Python's, and are found as they
        found = TensorType(shape, type_.dtype, device(type_.device))
        _TYPES[key] = found
    return found


def static_type(shape: tuple[int, ...], dtype: DType) -> TensorType:
    """The interned type of a CPU tensor."""
    found = _TYPES.get((shape, dtype, CPU))
    return intern_type(TensorType(shape, dtype, CPU)) if found is None else found


class Tensor(TensorMethods):
    """A multi-dimensional array that records how it was computed.

    Make one with `jitgrad.tensor(data)`, `zeros(shape)`, `from_numpy(array)` and their kin, or as
    PyTorch's old constructor: `Tensor(2, 3)` (uninitialised) or `Tensor([1, 2])`, in the default
    dtype.

    Inside: `_storage`; `_data`, a strided NumPy view of its array (None in abstract mode); `_type`;
    `_chain`, the view ops from the storage's root to this tensor; `_node` and `_out`, the tape node
    that made it and which output it is; `_view`, how the tape follows writes through views.
    """

    __slots__ = (
        "__dict__", "__weakref__", "_chain", "_data", "_node", "_out", "_requires_grad",
        "_storage", "_type", "_view",
    )  # fmt: skip

    _chain: tuple[tuple[Any, dict[str, Any]], ...]
    _data: Any
    _node: Node | None
    _out: int
    _requires_grad: bool
    _storage: Storage
    _type: TensorType
    _view: ViewInfo | None

    # Rarely set; they live in the instance's __dict__ then.
    _was: Tensor | None = None  # stands for it as the base of views made before it became one
    _grad: Tensor | None = None
    _hooks: OrderedDict[int, Any] | None = None
    _post_hooks: OrderedDict[int, Any] | None = None
    _retains: bool = False
    _shapeless: bool = False  # a parameter that has no shape yet (nn/parameter.py)

    _overrides: str | None = None  # what a subclass defines that is not there yet

    __array_priority__ = 1000

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._legacy_new(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__torch_dispatch__" in vars(cls):
            cls._overrides = "__torch_dispatch__"
        if overriding.overrides(cls):
            overriding_class.install(cls, Tensor)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """func(*args, **kwargs), its tensors as instances of cls: what subclasses that define
        `__torch_function__` call as super()'s. Of classes that do not, it is not asked."""
        return overriding_class.default(cls, Tensor, func, types, args, kwargs)

    if TYPE_CHECKING:
        # Attached by creation.py, conversions.py, methods.py; more in tensor_methods.pyi.
        @staticmethod
        def _from_array(array: Any) -> Tensor: ...

        @staticmethod
        def _bind(op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any: ...

        @staticmethod
        def _constant(value: Any, dtype: DType) -> Tensor: ...

        @classmethod
        def _legacy_new(cls, *args: Any, **kwargs: Any) -> Any: ...

    @staticmethod
    def _make_subclass(cls: type, data: Tensor, require_grad: bool = False) -> Any:
        """A leaf of class `cls` that shares data's storage and version (as nn.Parameter is)."""
        out = data._alias(cls)
        out._requires_grad = bool(require_grad)
        return out

    # -- type ----------------------------------------------------------------------------------
    @property
    def shape(self) -> Size:
        shape = self._type.shape
        return shape if type(shape) is Size else _shown(shape)

    @property
    def dtype(self) -> DType:
        return self._type.dtype

    @property
    def device(self) -> device:
        where = self._type.device
        return where if type(where) is device else device(where)

    @property
    def ndim(self) -> int:
        return len(self._type.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._type.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self._type.dtype.itemsize

    @property
    def layout(self) -> formats.layout:
        """`strided`, as of every tensor."""
        return formats.strided

    @property
    def is_cuda(self) -> bool:
        return self._type.device != "cpu"

    @property
    def is_cpu(self) -> bool:
        return self._type.device == "cpu"

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def is_quantized(self) -> bool:
        return False

    @property
    def is_meta(self) -> bool:
        return False

    is_mkldnn = is_nested = is_xpu = is_mps = is_ipu = is_xla = is_mtia = is_maia = False
    is_vulkan = is_sparse_csr = False

    def is_conj(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return False

    def is_coalesced(self) -> bool:
        raise RuntimeError(f"is_coalesced expected a sparse tensor; got {self._type}")

    def is_distributed(self) -> bool:
        return False

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self._type.shape)

    ndimension = dim

    @overload
    def size(self, dim: None = None) -> Size: ...

    @overload
    def size(self, dim: int) -> int: ...

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension. Raises IndexError when there is no such dim."""
        if dim is None:
            return self.shape
        rank = max(len(self._type.shape), 1)
        if not -rank <= dim < rank or not self._type.shape:
            raise IndexError(
                f"[size] expected a dim in [{-rank}, {rank - 1}]; got {dim} for {self._type}"
            )
        return self.shape[dim]

    def numel(self) -> int:
        """The number of elements (an int; symbolic while dims are)."""
        return prod(self.shape)  # type: ignore[return-value]

    nelement = numel

    def element_size(self) -> int:
        """Bytes of one element."""
        return self._type.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self._type.dtype.is_floating_point

    def is_complex(self) -> bool:
        return self._type.dtype.is_complex

    def is_signed(self) -> bool:
        return self._type.dtype.signed

    def get_device(self) -> int:
        """The number of the GPU that the memory is on; -1 on the CPU."""
        return -1 if self._type.device == "cpu" else int(self._type.device.partition(":")[2])

    # -- memory --------------------------------------------------------------------------------
    def _array(self, what: str) -> np.ndarray[Any, Any]:
        """The data, told to the recorder: from here on it has left the graph."""
        if type(self._storage) is LevelStorage:
            raise RuntimeError(
                f"vmap: It looks like you're calling {_READS.get(what, what + '()')}. The tensor, "
                f"{self._type} for each of {self._storage.level.size} examples, has no single "
                "value here: use tensor operations such as where(), or do it outside of vmap"
            )
        if state.recorder is not None:
            state.recorder.raw_read(self, what)
        data = self._data
        if data is None and fetch(self):
            data = self._data
        if data is None:
            raise RuntimeError(
                f"[{what}] expected a tensor with data; {self._type} is abstract (it was made "
                "while tracing from shapes alone); read values outside of the traced function"
            )
        if self._type.device != "cpu" and what not in _ON_DEVICE:
            if what in _SHARES:
                raise TypeError(
                    f"can't convert {self._type.device} device type tensor to numpy. Use "
                    "Tensor.cpu() to copy the tensor to host memory first."
                )
            return gpu.kernels.host_array(data)
        return data

    def _shared(self, what: str, address: bool = False) -> np.ndarray[Any, Any]:
        """The data, for others to keep: they see what is written to it later."""
        data = self._array(what)
        export(self._storage, address)
        return data

    def stride(self, dim: int | None = None) -> Any:
        """Steps between elements, in elements, of every dimension or of one."""
        data = self._data
        if data is not None and state.recorder is not None:
            if data.flags.c_contiguous and not is_static(self._type.shape):
                data = None  # steps are products of sizes
            elif not data.flags.c_contiguous:
                state.recorder.layout_read()
        if data is None and is_told(self) and not is_dense(self):
            item = self._type.dtype.itemsize
            strides = tuple(s // item for s in layout_of(self)[1])
        elif data is None or not data.size:
            steps: list[Any] = []
            step: Any = 1
            for d in reversed(self._type.shape):
                steps.append(step)
                step = step * (1 if isinstance(d, int) and d == 0 else d)
            strides = tuple(reversed(steps))
        else:
            item = self._type.dtype.itemsize
            strides = tuple(s // item for s in data.strides)
        return strides if dim is None else strides[dim]

    def storage_offset(self) -> int:
        """Where the first element is in the storage, in elements."""
        self._asked("storage_offset")
        if self._data is None or self._storage.array is None:
            return 0
        here = self._data.__array_interface__["data"][0]
        start = self._storage.array.__array_interface__["data"][0]
        return int(here - start) // self._type.dtype.itemsize

    def data_ptr(self) -> int:
        """The address of the first element. Ends a trace."""
        return int(self._shared("data_ptr", address=True).__array_interface__["data"][0])

    const_data_ptr = data_ptr

    def untyped_storage(self) -> Storage:
        """The memory, as bytes. Tensors that share it have the same one."""
        return self._storage

    def storage(self) -> TypedStorage:
        """The memory, as elements of this dtype."""
        return TypedStorage(self._storage, self._type.dtype)

    _typed_storage = storage

    def storage_type(self) -> type:
        return TypedStorage

    def is_set_to(self, tensor: Tensor) -> bool:
        """Whether both show the same elements of the same memory in the same order."""
        return (
            self._storage is tensor._storage
            and self._type == tensor._type
            and self.stride() == tensor.stride()
            and self.storage_offset() == tensor.storage_offset()
        )

    def dim_order(self, *, ambiguity_check: Any = False) -> tuple[int, ...]:
        """The dims from the outermost in memory to the innermost."""
        steps = self.stride()
        return tuple(sorted(range(self.ndim), key=lambda k: -steps[k]))

    def as_subclass(self, cls: type) -> Any:
        """This tensor as an instance of a subclass of Tensor: the same memory and place on the
        tape."""
        out = self._alias(cls)
        out._node, out._out, out._requires_grad = self._node, self._out, self._requires_grad
        return out

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether elements lie in row-major order without gaps."""
        return not is_told(self) or is_dense(self)

    def is_shared(self) -> bool:
        """Whether the memory is one that processes share (share_memory_)."""
        return self._storage.is_shared()

    def is_pinned(self, device: Any = None) -> bool:
        """Whether the memory is pinned (pin_memory)."""
        return self._storage.is_pinned()

    def is_inference(self) -> bool:
        return False

    def _alias(self, cls: type[Tensor] | None = None) -> Any:
        """A tensor on the same storage that is no part of the tape.

        Raises TypeError for a class that overrides kernels.
        """
        if cls is not None and cls._overrides is not None:
            raise TypeError(
                f"[Tensor] expected a subclass without {cls._overrides}; {cls.__name__} defines "
                "it: kernels cannot be overridden (docs/limits.md)"
            )
        out = _new(Tensor if cls is None else cls)
        out._data = self._data
        out._type = self._type
        out._storage = self._storage
        out._chain = self._chain
        out._node = None
        out._out = 0
        out._requires_grad = False
        out._view = None
        if self._data is None and state.lazy is not None:
            state.lazy.follow(out)
        return out

    def detach(self) -> Tensor:
        """This tensor, off the tape: shares memory and version counter."""
        if state.levels:  # examples, tangents: every level detaches
            return Tensor._bind(OPS["detach"], (self,), {})
        out: Tensor = self._alias()
        if self._view is not None and self._view.hidden:
            out._view = self._view.detached()
        return out

    def detach_(self) -> Tensor:
        """Takes this tensor off the tape. Raises RuntimeError for a view."""
        if self._view_of() is not None:
            raise RuntimeError(
                "[detach_] expected a tensor that is no view; use detach(), or detach_() its base"
            )
        for x in (self, self._was):
            if x is not None:
                x._node, x._out, x._requires_grad = None, 0, False
        bump_epoch()
        return self

    @property
    def data(self) -> Tensor:
        """This tensor, off the tape: shares memory; writes to it are not seen by the tape."""
        out: Tensor = self.detach() if state.levels else self._alias()
        out._view = _hidden_view()
        return out

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"[data] expected a Tensor; got {type(value).__name__}")
        if self._requires_grad and not (value.dtype.is_floating_point or value.dtype.is_complex):
            raise RuntimeError(
                f"[data] expected a floating dtype, since this tensor requires grad; got "
                f"{value._type}"
            )
        if state.recorder is not None:
            state.recorder.rebind(self, "data", value)
        self._data, self._type = value._data, value._type
        self._storage, self._chain = value._storage, value._chain
        bump_epoch()

    def _asked(self, what: str) -> None:
        """Tells the recorder that code asks what guards do not hold by themselves."""
        if state.recorder is not None:
            state.recorder.memory_read(self, what)

    @property
    def _base(self) -> Tensor | None:
        self._asked("_base")
        return self._view_of()

    def _view_of(self) -> Tensor | None:
        """The tensor that this one is a view of."""
        base: Tensor | None = None if self._view is None else self._view.base
        return None if base is self._was else base

    def _is_view(self) -> bool:
        return self._base is not None

    @property
    def _version(self) -> int:
        """How many in-place writes the tape has seen on this storage."""
        if state.recorder is not None:
            state.recorder.raw_read(self, "_version")
        return self._storage.version - self._storage.hidden

    # -- tape ----------------------------------------------------------------------------------
    @property
    def requires_grad(self) -> bool:
        if self._view is not None:
            self._view.refresh(self)
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Says whether operations on this leaf are recorded. Returns this tensor.

        Raises RuntimeError for a dtype that is not floating, and for False on a non-leaf,
        TypeError for what is no bool.
        """
        if not isinstance(requires_grad, bool):
            raise TypeError(
                "requires_grad_(): argument 'requires_grad' must be bool, not "
                f"{type(requires_grad).__name__}"
            )
        dtype = self._type.dtype
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise RuntimeError(
                "only Tensors of floating point and complex dtype can require gradients; got "
                f"{self._type}; convert it first, e.g. with .float()"
            )
        if not requires_grad and not self.is_leaf:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a "
                "computed variable in a subgraph that doesn't require differentiation use "
                "var_no_grad = var.detach()."
            )
        if self.is_leaf and self._requires_grad != bool(requires_grad):
            if state.recorder is not None:
                state.recorder.rebind(self, "requires_grad", bool(requires_grad))
            self._requires_grad = bool(requires_grad)
            bump_epoch()
        return self

    @property
    def is_leaf(self) -> bool:
        """True for tensors that the user made, not an op that needs a gradient."""
        return not self.requires_grad or self._node is None

    @property
    def grad_fn(self) -> Node | None:
        """The tape node that made this tensor; None for a leaf."""
        if self._view is not None:
            self._view.refresh(self)
        if self._node is not None and state.recorder is not None:
            state.recorder.tape_read(self._node)
        return None if self._node is None else self._node.shown()

    @property
    def output_nr(self) -> int:
        self._asked("output_nr")
        return self._out

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient of a leaf (or of a tensor after retain_grad()); or None."""
        if state.recorder is not None:
            state.recorder.slot_read(self, "grad")
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"assigned grad expected to be a Tensor or None but got {type(value).__name__}"
                )
            if value is self:
                raise RuntimeError("can't assign Variable as its own grad")
            if value._type is not self._type and value._type != self._type:
                away = value._type.device != self._type.device
                raise RuntimeError(
                    f"[grad] expected a gradient of type {self._type}, as the tensor's; got "
                    f"{value._type}"
                    + ("; assigned grad has data located on a different device" if away else "")
                )
        self._set_grad(value)

    @grad.deleter
    def grad(self) -> None:
        self._set_grad(None)

    def _set_grad(self, value: Tensor | None) -> None:
        if value is None and self._grad is None and state.recorder is None:
            return
        if state.recorder is not None:
            state.recorder.rebind(self, "grad", value)
        self._grad = value  # no epoch: what a call reads of it is guarded at each call

    @property
    def retains_grad(self) -> bool:
        self._asked("retains_grad")
        return self._retains

    # -- raw data ------------------------------------------------------------------------------
    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """The data as a NumPy array that shares memory. Ends a trace.

        Raises RuntimeError when the tensor requires grad, except in no_grad mode; force=True
        detaches first.
        """
        if state.grad_enabled and not force and self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
                "instead."
            )
        if force and self.is_cuda:
            return self._array("numpy of")
        return self._shared("numpy")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"[__array__] {self._type} as {dtype} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Tensor:
        """What NumPy's functions give of this tensor: a tensor on their result's memory."""
        return Tensor._from_array(np.asarray(array))

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """A DLPack capsule of the memory, versioned where `max_version`, a pair, allows it. Raises
        BufferError where the tensor requires grad, and for a device that it is not on."""
        if self.requires_grad:
            raise BufferError(
                "Can't export tensors that require gradient, use tensor.detach() first"
            )
        if stream is not None and type(stream) is not int:
            raise TypeError(f"stream must be ``int`` or ``none``; got {type(stream).__name__}")
        options = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        if self.is_cuda:
            return gpu.interop.to_dlpack(self, stream=stream, **options)
        if stream == -1:
            stream = None  # no order, which the CPU needs not
        asked = {name: x for name, x in {"stream": stream, **options}.items() if x is not None}
        return dlpack.export(self._shared("__dlpack__"), **asked)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Numba's CUDA array interface, version 3, for tensors on a GPU."""
        if not self.is_cuda:
            raise AttributeError(
                f"Can't get __cuda_array_interface__ on non-CUDA tensor type: {self.type()} If "
                "CUDA data is required use tensor.cuda() to copy tensor to device memory."
            )
        found: dict[str, Any] = gpu.interop.interface(self)
        return found

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.get_device()) if self.is_cuda else (1, 0)

    def item(self) -> Any:
        """The only element, as a Python number. While recording, of a floating tensor, what stands
        for it (recorder.number_of)."""
        if state.recorder is not None and self._type.dtype.is_floating_point:
            found = state.recorder.number_of(self)
            if found is not None:
                return found
        data = self._array("item")
        if data.size != 1:
            raise RuntimeError(
                f"a Tensor with {data.size} elements cannot be converted to Scalar; "
                f"got {self._type}; index one element first"
            )
        return _python(data.reshape(()))

    def tolist(self) -> list[Any]:
        """The elements as nested lists of Python numbers (of a 0-d tensor, its number). Ends a
        trace."""
        return _python(self._array("tolist"))

    def __bool__(self) -> bool:
        data = self._array("bool")
        if data.size != 1:
            count = "no values" if data.size == 0 else "more than one value"
            raise RuntimeError(f"Boolean value of Tensor with {count} is ambiguous")
        return bool(data.reshape(())[()])

    def __int__(self) -> int:
        data = self._array("int")
        return int(_real(data.item(), "int64") if data.size == 1 else self._no_number())

    def __float__(self) -> float:
        data = self._array("float")
        return float(_real(data.item(), "double") if data.size == 1 else self._no_number())

    def _no_number(self) -> Any:
        raise ValueError(
            "only one element tensors can be converted to Python scalars; got "
            f"{self._type}; index one element first"
        )

    def __complex__(self) -> complex:
        return complex(self.item() if self.numel() == 1 else self._no_number())

    def __index__(self) -> int:
        if self._type.dtype.category > dtypes.Category.INT or self.numel() != 1:
            raise TypeError(
                "only integer tensors of a single element can be converted to an index; got "
                f"{self._type}"
            )
        return int(self)

    def __len__(self) -> int:
        if not self._type.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._type.shape[0]  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Tensor]:
        if not self._type.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def __reversed__(self) -> Tensor:
        """The tensor with its first dim flipped."""
        return self.flip(0) if self.ndim else self

    def __delitem__(self, index: Any) -> None:
        raise TypeError("Tensor does not support deleting items")

    def __contains__(self, element: Any) -> bool:
        if isinstance(element, (Tensor, int, float, complex)):
            return bool((self == element).any())
        raise RuntimeError(
            f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
            f"{type(element)}."
        )

    def __hash__(self) -> int:
        return id(self)

    def __format__(self, spec: str) -> str:
        if not self._type.shape and type(self) is Tensor:
            return format(self.item(), spec)
        return object.__format__(self, spec)


overriding.PLAIN.add(vars(Tensor)["__torch_function__"].__func__)

_new = object.__new__


def wrap(array: np.ndarray[Any, Any] | None, type_: TensorType) -> Tensor:
    """A root tensor of a fresh storage; `type_` describes `array`."""
    storage: Storage = _new(Storage)  # Storage(array, type_), without the call
    storage.array = array
    storage.type = type_
    storage.version = 0
    storage.hidden = 0
    t: Tensor = _new(Tensor)
    t._data = array
    t._type = type_
    t._storage = storage
    t._chain = ()
    t._node = None
    t._out = 0
    t._requires_grad = False
    t._view = None
    return t


def root_of(storage: Storage) -> Tensor:
    """A tensor on all of a storage, off the tape."""
    t: Tensor = _new(Tensor)
    t._data = storage.array
    t._type = intern_type(storage.type)
    t._storage = storage
    t._chain = ()
    t._node = None
    t._out = 0
    t._requires_grad = False
    t._view = None
    return t


class AbsentTensor(Tensor):
    """A tensor whose data was not kept, as no wanted gradient reads it (tape/saves.py). An op
    on it gives absent tensors again."""

    __slots__ = ()


def absent(type_: TensorType) -> Tensor:
    """A tensor of this type whose data was not kept."""
    t: Tensor = _new(AbsentTensor)
    t._data = None
    t._type = type_
    t._storage = Storage(None, type_)
    t._chain = ()
    t._node = None
    t._out = 0
    t._requires_grad = False
    t._view = None
    return t


def wrap_array(array: np.ndarray[Any, Any]) -> Tensor:
    """A root tensor on this array's memory. Raises TypeError for a dtype that jitgrad has not."""
    return wrap(array, static_type(array.shape, dtypes.from_numpy(array.dtype)))


def _real(value: Any, what: str) -> Any:
    """A number as float() and int() take it. Raises RuntimeError for one that is not real."""
    if isinstance(value, complex):
        if value.imag:
            raise RuntimeError(
                f"value cannot be converted to type {what} without overflow; got {value}"
            )
        return value.real
    return value


def _python(data: np.ndarray[Any, Any]) -> Any:
    if data.dtype.kind not in "biufc":  # bfloat16
        data = data.astype(np.float32)
    return data.tolist()


class HiddenView:
    """The `_view` of a tensor got by `.data`: in-place writes to it stay unseen by the tape."""

    __slots__ = ()
    base = None
    hidden = True
    tracked = True

    def refresh(self, tensor: Tensor) -> None:
        """Nothing to follow: it is off the tape."""

    def detached(self) -> HiddenView:
        return self


_HIDDEN = HiddenView()


def _hidden_view() -> Any:
    return _HIDDEN
