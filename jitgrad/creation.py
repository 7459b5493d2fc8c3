"""Making tensors: from data, filled, ranges, random."""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad import gpu
from jitgrad.compiler.ops.movement import inverse_axes
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym
from jitgrad.device import place
from jitgrad.dispatch import apply
from jitgrad.dispatch import full as _full
from jitgrad.functions.args import as_shape, expect_range, expect_rank_of
from jitgrad.functions.shape import as_strided, laid_as, view_dtype
from jitgrad.hostscalar import HostScalar
from jitgrad.levels import draw_for_examples, examples_like
from jitgrad.outside import export
from jitgrad.promotion import cast, check_number, expect_fits, plain_number, promote_types, stored
from jitgrad.random import Generator, next_draw
from jitgrad.runtime import dlpack, dtypes, formats
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.runtime.userline import warn
from jitgrad.state import defaults, state
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor, root_of, wrap_array


def _finish(out: Tensor, requires_grad: bool, device: Any = None) -> Tensor:
    if device is not None:
        out = placed(out, device)
    return out.requires_grad_(requires_grad) if requires_grad else out


def _made_on(device: Any, dtype: DType) -> str:
    """Where the elements are computed of a tensor that is to be on a device. Complex ones have no
    kernels there, and are copied."""
    return "cpu" if device is None or dtype.is_complex else place(device)


def placed(x: Tensor, device: Any, non_blocking: bool = False) -> Tensor:
    """x on a device: itself if it is there, else a copy, whose gradient goes back. non_blocking:
    pinned memory is copied while the host goes on, and so is a GPU's into new pinned memory."""
    where = place(device)
    if where == x._type.device:
        return x
    attrs: dict[str, Any] = {"device": where}
    if non_blocking:
        attrs["non_blocking"] = True
    out: Tensor = apply(OPS["to_device"], (x,), attrs)
    return out


def _told(out: Tensor, source: Any) -> Tensor:
    """Tells the recorder of a tensor made from host data."""
    if state.recorder is not None:
        state.recorder.constant(out, source)
    return out


def host_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on a new array that only depends on shapes and Python numbers."""
    return _told(wrap_array(array), None)


def _check_device(device: Any) -> None:
    if device is not None:
        place(device)


def _expect_dtype(name: str, dtype: Any) -> DType:
    dtype = dtypes.of_python(dtype)
    if not isinstance(dtype, DType):
        raise TypeError(
            f"{name}(): argument 'dtype' must be a jitgrad dtype such as jitgrad.float32, not "
            f"{dtype!r}"
        )
    found: DType = dtype
    return found


# -- from data -----------------------------------------------------------------------------------
def tensor(
    data: Any,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A new leaf with a copy of `data` (numbers, nested sequences, arrays, tensors).

    dtype by default: of the data's; the default dtype for Python floats, int64 for ints, bool for
    bools; that of NumPy's scalars (also `float64`) and of tensors, promoted over all that a
    sequence holds. A tensor of one element in a sequence is a number. Raises ValueError for ragged
    sequences and for larger tensors in them, TypeError for what is no number.
    """
    _check_device(device)
    if isinstance(data, Tensor):
        warn(
            "To copy construct from a tensor, it is recommended to use x.clone().detach() or "
            "x.clone().detach().requires_grad_(True), rather than jitgrad.tensor(x)."
        )
        out = apply(OPS["clone"], (data.detach(),), {})
        return _finish(cast(out, dtype) if dtype is not None else out, requires_grad, device)
    if isinstance(data, HostScalar):
        out = cast(data.lift(), dtype or defaults.dtype)
        return _finish(
            apply(OPS["clone"], (out,), {}), requires_grad, device
        )  # what it may write to
    if isinstance(data, (bool, int, float)) and not isinstance(data, np.generic):
        wanted = _expect_dtype("tensor", dtype or _python_dtype(data))
        if type(data) is int and not -(2**63) <= data < 2**63:
            if wanted.category >= Category.FLOAT:
                data = float(data)
            elif wanted is dtypes.bool_:
                data = True
            elif wanted.is_integer and wanted is not dtypes.uint64:
                raise _overflow(data)
        out = _full((), plain_number(_to_int(data, wanted), wanted), wanted)
        return _finish(out, requires_grad, device)
    return _finish(_told(wrap_array(_to_array(data, dtype)), None), requires_grad, device)


def _to_int(value: Any, dtype: DType) -> Any:
    return _whole(value, dtype) if dtype.is_integer and isinstance(value, float) else value


def _whole(value: float, dtype: DType) -> int:
    """A number without its fraction. Raises RuntimeError where the dtype, of integers, does not
    hold it."""
    check_number(value, dtype)
    return math.trunc(value)


def _overflow(data: Any) -> ValueError:
    return ValueError(f"Overflow when unpacking long long; got {_short(data)}")


def _python_dtype(value: Any) -> DType:
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, builtins.complex):
        return defaults.dtype.to_complex()
    return dtypes.int64 if isinstance(value, int) else defaults.dtype


def _to_array(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """A new array of the data."""
    if dtype is not None:
        dtype = _expect_dtype("tensor", dtype)
    if isinstance(data, np.generic):
        return _converted(np.array(data), dtype)
    if isinstance(data, np.ndarray):
        array = np.array(data)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        dtypes.from_numpy(array.dtype)
        return array if dtype is None else OPS["cast"].reference(array, dtype=dtype)
    held = data
    if isinstance(data, (list, tuple)) and _has_tensor(data):
        data = _plain(data)
    try:
        array = np.array(data)
    except ValueError:
        raise ValueError(
            "[tensor] expected sequences of equal lengths at each depth; got ragged ones: "
            f"{_short(data)}"
        ) from None
    except OverflowError:
        raise _overflow(data) from None
    if array.dtype == object or array.dtype.kind in "USMm":
        if array.dtype == object and _all_ints(data):
            if dtype is None or dtype.category < Category.FLOAT:
                raise _overflow(data)
            return _converted(array.astype(np.float64), dtype)
        if isinstance(data, (list, tuple)):
            strange = None in data
        else:
            strange = not isinstance(data, (str, bytes))
        raise (RuntimeError if strange else TypeError)(
            f"[tensor] expected numbers, sequences of numbers, or an array; got "
            f"{type(data).__name__}: {_short(data)}"
        )
    if dtype is None:
        if array.size == 0 and array.dtype == np.float64:
            dtype = defaults.dtype
        elif (held is not data or array.dtype.kind in "fc") and not hasattr(data, "__array__"):
            dtype = _held_dtype(held) or _python_dtype(array.flat[0].item())
        elif array.dtype == np.uint64:
            raise _overflow(data)
    return _converted(array, dtype)


def _held_dtype(data: Any) -> DType | None:
    """The dtype that all numbers in the data promote to; None if there are none."""
    if isinstance(data, Tensor):
        return data.dtype
    if isinstance(data, (np.ndarray, np.generic)):
        return dtypes.from_numpy(data.dtype)
    if not isinstance(data, (list, tuple)):
        return _python_dtype(data) if isinstance(data, (int, float, builtins.complex)) else None
    kinds = set(map(type, data))
    if kinds <= {bool, int, float}:
        data = [kind() for kind in kinds]  # one of each will do
    found: DType | None = None
    for x in data:
        dtype = _held_dtype(x)
        if dtype is not None and dtype is not found:
            found = dtype if found is None else promote_types(found, dtype)
    return found


def _all_ints(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return all(_all_ints(x) for x in data)
    return isinstance(data, int)


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."


def _converted(array: np.ndarray[Any, Any], dtype: DType | None) -> np.ndarray[Any, Any]:
    """Numbers of Python's in this dtype, which must hold them (unsigned ones wrap negatives)."""
    if dtype is None:
        dtypes.from_numpy(array.dtype)
        return array
    if dtype.np == array.dtype:
        return array
    if array.dtype.kind == "c" and not dtype.is_complex and dtype is not dtypes.bool_:
        raise TypeError(
            f"must be real number, not complex: expected real numbers for {dtype.name}; got "
            f"{array.flat[0].item()}; use a complex dtype"
        )
    if array.dtype == np.uint64 and dtype.is_integer and dtype is not dtypes.uint64:
        raise _overflow(array.max().item())
    if array.size and dtype.is_integer and array.dtype.kind in "iuf":
        for value in (array.min().item(), array.max().item()):
            _whole(value, dtype)
    return OPS["cast"].reference(array, dtype=dtype)


def _has_tensor(data: Any) -> bool:
    return any(
        isinstance(x, (Tensor, HostScalar)) or (isinstance(x, (list, tuple)) and _has_tensor(x))
        for x in data
    )


def _plain(data: Any) -> Any:
    if isinstance(data, Tensor):
        if data.numel() != 1:
            raise ValueError(
                "only one element tensors can be converted to Python scalars; got a sequence that "
                f"holds {data._type}; use stack()"
            )
        return data.item()
    if isinstance(data, HostScalar):
        return float(data)
    if isinstance(data, (list, tuple)):
        return [_plain(x) for x in data]
    return data


def from_numpy(ndarray: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the array's memory, with its strides.

    A read-only array gives a tensor that raises when it is written in place. Raises TypeError for
    what is no ndarray, or a dtype that jitgrad has not, ValueError for negative strides and for
    bytes in the other order.
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(ndarray).__name__})")
    if any(s < 0 for s in ndarray.strides):
        raise ValueError(
            "At least one stride in the given numpy array is negative, and tensors with negative "
            f"strides are not supported; got strides {ndarray.strides}; copy the array first, with "
            "array.copy()"
        )
    if not ndarray.dtype.isnative:
        raise ValueError(
            "given numpy array has byte order different from the native byte order; got dtype "
            f"{ndarray.dtype.str}; convert it with array.astype(array.dtype.newbyteorder('='))"
        )
    array = ndarray.view(np.ndarray) if type(ndarray) is not np.ndarray else ndarray
    out = wrap_array(array)
    export(out._storage)
    return _told(out, ndarray)


Tensor._from_array = staticmethod(from_numpy)  # type: ignore[method-assign, assignment]


def as_tensor(data: Any, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor of the data, without a copy where tensor or array allows it."""
    if device is not None:
        return placed(as_tensor(data, dtype), device)
    if isinstance(data, Tensor):
        return data if dtype is None else cast(data, dtype)
    if isinstance(data, np.ndarray):
        out = from_numpy(data)
        return out if dtype is None else cast(out, dtype)
    if hasattr(data, "__cuda_array_interface__"):
        out = gpu.interop.from_interface(data)
        return out if dtype is None else cast(out, dtype)
    return tensor(data, dtype=dtype)


def asarray(
    obj: Any,
    *,
    dtype: DType | None = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """as_tensor, also of a storage's bytes; copy=True copies in any case, copy=False raises
    ValueError where it must copy."""
    if isinstance(obj, Storage):
        obj = view_dtype(root_of(obj).reshape(-1), dtypes.uint8)
    out = as_tensor(obj, dtype, device)
    shares = (isinstance(obj, Tensor) and out is obj) or (
        isinstance(obj, np.ndarray) and dtype in (None, dtypes.from_numpy(obj.dtype))
    )
    if copy is False and not shares:
        raise ValueError("can't alias the object's memory; use copy=None")
    if copy and shares:
        out = apply(OPS["clone"], (out.detach(),), {})
    return _finish(out, requires_grad, device)


def frombuffer(
    buffer: Any, *, dtype: DType, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """A 1-d tensor on the memory of an object with the buffer protocol.

    Raises ValueError for another object, an empty buffer, a count of 0, and an offset or a count
    beyond the buffer.
    """
    wanted = _expect_dtype("frombuffer", dtype).np
    try:
        length = memoryview(buffer).nbytes
    except TypeError:
        raise ValueError(
            f"object does not implement Python buffer protocol; got {type(buffer).__name__}"
        ) from None
    if not length or not count:
        raise ValueError(f"both buffer length ({length}) and count ({count}) must not be 0")
    if not 0 <= offset < length:
        raise ValueError(
            f"offset ({offset} bytes) must be non-negative and no greater than buffer length "
            f"({length} bytes) minus 1"
        )
    return _finish(from_numpy(np.frombuffer(buffer, wanted, count, offset)), requires_grad)


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of any object that speaks DLPack, or of a capsule (used once).

    copy: True gives memory of its own; False raises ValueError where a device asks for a copy.
    """
    out = _of_dlpack(ext_tensor)
    if device is not None and place(device) != out.device:
        if copy is False:
            raise ValueError(
                f"[from_dlpack] expected memory on {device}, not to be copied; got it on "
                f"{out.device}; use copy=None"
            )
        return placed(out, device)
    return out.clone() if copy else out


def _of_dlpack(source: Any) -> Tensor:
    content = dlpack.take(_capsule(source) if hasattr(source, "__dlpack__") else source)
    if content.device_type == dlpack.CUDA:
        return gpu.interop.from_content(content)
    if content.device_type not in dlpack.ON_HOST:
        raise BufferError(
            f"[from_dlpack] expected memory of the CPU or of a CUDA device; got DLPack's device "
            f"type {content.device_type}"
        )
    return from_numpy(dlpack.host_array(content))


def _capsule(source: Any) -> Any:
    """The capsule of an object that speaks DLPack: versioned, if it knows versions."""
    device = source.__dlpack_device__()
    if not isinstance(device, tuple) or len(device) != 2:
        raise TypeError(
            "[from_dlpack] expected __dlpack_device__() to give (device type, number); got "
            f"{device!r}"
        )
    options: dict[str, Any] = {}
    if device[0] == dlpack.CUDA:
        options["stream"] = gpu.interop.reader_stream(int(device[1]))
    try:
        return source.__dlpack__(max_version=dlpack.NEWEST, **options)
    except TypeError:
        return source.__dlpack__(**options)


# -- filled --------------------------------------------------------------------------------------
def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor of one value; dtype by default the value's (bool, int64 or the default dtype)."""
    _check_device(device)
    if isinstance(size, int):
        raise TypeError(
            f"full(): argument 'size' (position 1) must be tuple of ints, not {type(size).__name__}"
        )
    shape = _shape("full", (size,))
    if isinstance(fill_value, Tensor):
        out = cast(fill_value, dtype or fill_value.dtype)
        return _finish(out.expand(shape).clone().detach(), requires_grad, device)
    if isinstance(fill_value, HostScalar):
        wanted = _expect_dtype("full", dtype or defaults.dtype)
        out = stored(fill_value, wanted)
        return _finish(out.expand(shape).clone(), requires_grad, device)
    wanted = _expect_dtype("full", dtype or _python_dtype(fill_value))
    expect_fits(fill_value, wanted)
    value = plain_number(_to_int(fill_value, wanted), wanted)
    out = _full(shape, value, wanted, _made_on(device, wanted))
    return _finish(out, requires_grad, device)


def scalar_tensor(
    s: Any, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A 0-d tensor of a number, in the default dtype."""
    _check_device(device)
    wanted = defaults.dtype if dtype is None else _expect_dtype("scalar_tensor", dtype)
    if isinstance(s, HostScalar):
        return full((), s, dtype=wanted, device=device, requires_grad=requires_grad)
    expect_fits(s, wanted, halves=False)
    out = _full((), plain_number(_to_int(s, wanted), wanted), wanted, _made_on(device, wanted))
    return _finish(out, requires_grad, device)


def _shape(name: str, size: tuple[Any, ...], given: Any = True) -> tuple[Any, ...]:
    if not given:
        raise TypeError(f'{name}() missing 1 required positional arguments: "size"')
    shape = as_shape(size)
    for d in shape:
        if isinstance(d, int) and d < 0:
            raise RuntimeError(
                f"[{name}] Trying to create tensor with negative dimension {d}: {list(shape)}"
            )
    return shape


def _filled(name: str, value: int) -> Any:
    def make(
        *sizes: Any,
        size: Any = None,
        dtype: DType | None = None,
        layout: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
        memory_format: Any = None,
    ) -> Tensor:
        _check_device(device)
        wanted = defaults.dtype if dtype is None else _expect_dtype(name, dtype)
        shape = _shape(name, sizes if size is None else (size,), sizes or size is not None)
        if memory_format is not None:
            expect_rank_of(memory_format, len(shape))
        out = _full(shape, plain_number(value, wanted), wanted, _made_on(device, wanted))
        return _finish(out, requires_grad, device)

    make.__name__ = make.__qualname__ = name
    return make


zeros = _filled("zeros", 0)
zeros.__doc__ = "zeros(2, 3) or zeros((2, 3)): a tensor of zeros, in the default dtype."
ones = _filled("ones", 1)
ones.__doc__ = "ones(2, 3) or ones((2, 3)): a tensor of ones, in the default dtype."
empty = _filled("empty", 0)
empty.__doc__ = "empty(2, 3) or empty((2, 3)): a tensor to be filled (zeros here, always)."


def _like_memory(made: Tensor, like: Tensor, memory_format: Any) -> Tensor:
    """`made`, a new tensor, or a copy that lies in memory as `like` does; as it is with a
    memory_format but preserve_format."""
    kept = memory_format is None or memory_format is formats.preserve_format
    return laid_as(made, like) if kept else made


def _like(make: Any) -> Any:
    def like(
        input: Tensor,
        *,
        dtype: DType | None = None,
        layout: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
        memory_format: Any = None,
        **more: Any,  # generator, for the random ones
    ) -> Tensor:
        if memory_format is not None:
            expect_rank_of(memory_format, input.ndim)
        wanted = input.dtype if dtype is None else dtype
        where = input._type.device if device is None else device
        out: Tensor = make(tuple(input._type.shape), dtype=wanted, device=where, **more)
        out = _finish(_like_memory(out, input, memory_format), requires_grad)
        return examples_like(input, out) if state.levels else out

    like.__name__ = like.__qualname__ = f"{make.__name__}_like"
    like.__doc__ = f"`{make.__name__}` of input's shape and dtype."
    return like


zeros_like, ones_like, empty_like = _like(zeros), _like(ones), _like(empty)


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """A tensor of one value, of input's shape and dtype."""
    if memory_format is not None:
        expect_rank_of(memory_format, input.ndim)
    where = input._type.device if device is None else device
    out = full(tuple(input._type.shape), fill_value, dtype=dtype or input.dtype, device=where)
    out = _finish(_like_memory(out, input, memory_format), requires_grad)
    return examples_like(input, out) if state.levels else out


def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor to be filled (zeros here, always), with these steps between its elements."""
    last = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    memory = empty(0 if 0 in size else last + 1, dtype=dtype, device=device)
    out = as_strided(memory, size, stride, 0).detach()  # no view: nobody else has the memory
    return _finish(out, requires_grad, device)


def empty_permuted(
    size: Sequence[int],
    physical_layout: Sequence[int],
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **more: Any,
) -> Tensor:
    """A tensor to be filled, whose dims lie in memory in the order physical_layout."""
    layout = tuple(physical_layout)
    if sorted(layout) != [*builtins.range(len(size))]:
        raise RuntimeError(
            "Number of dimensions in size does not match the length of the physical_layout, or "
            f"duplicate dims: got size {tuple(size)} and physical_layout {layout}"
        )
    memory = empty([size[k] for k in layout], dtype=dtype, device=device, **more)
    out = memory.permute(inverse_axes(layout)).detach()
    return _finish(out, requires_grad, device)


# -- ranges --------------------------------------------------------------------------------------
_MOST_STEPS = 2**60  # of eight bytes: more than there are addresses


def arange(
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """start, start + step, ... below end: int64 for ints, else the default dtype."""
    _check_device(device)
    if end is None:
        start, end = 0, start
    values = [x.item() if isinstance(x, (Tensor, np.generic)) else x for x in (start, end, step)]
    start, end, step = [float(v) if isinstance(v, HostScalar) else v for v in values]
    if any(isinstance(v, float) and not math.isfinite(v) for v in (start, end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    given_step = step
    if isinstance(dtype, DType):
        if dtype is dtypes.bool_ or dtype.is_complex:
            raise NotImplementedError(f"[arange] expected a dtype of numbers in order; got {dtype}")
        if dtype.is_integer:  # all three become integers first
            start, end, step = [int(v) if isinstance(v, float) else v for v in (start, end, step)]
    if step == 0:
        kind = ValueError if given_step else RuntimeError
        raise kind(f"step must be nonzero; got {given_step} in {dtype}")
    if (end < start) if step > 0 else (end > start):
        raise RuntimeError(
            "upper bound and lower bound inconsistent with step sign; got "
            f"arange({start}, {end}, {step})"
        )
    floats = any(isinstance(v, float) for v in (start, end, step))
    wanted = _expect_dtype("arange", dtype or (defaults.dtype if floats else dtypes.int64))
    if floats:
        steps = (end - start) / step
        count: Any = math.ceil(steps) if steps < _MOST_STEPS else _MOST_STEPS
    else:
        count = -((start - end) // step)
    if floats and count >= _MOST_STEPS:
        raise RuntimeError(
            f"[arange] invalid size, possible overflow: expected fewer than 2^60 steps; got "
            f"arange({start}, {end}, {step})"
        )
    plain = float if wanted.is_floating_point else int
    start, step = (v if isinstance(v, Sym) else plain(v) for v in (start, step))
    attrs = {"shape": (count,), "dtype": wanted, "start": start, "step": step}
    attrs["device"] = _made_on(device, wanted)
    return _finish(apply(OPS["iota"], (), attrs), requires_grad, device)


def range(start: Any, end: Any, step: Any = 1, *, device: Any = None, **more: Any) -> Tensor:
    """arange that includes `end` (as the old torch.range)."""
    more.setdefault("dtype", defaults.dtype)
    return arange(start, end + step * 0.5, step, device=device, **more)


def linspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    *,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """`steps` numbers from start to end, both included. Symmetric in start and end."""
    _check_device(device)
    if isinstance(steps, (float, complex)):
        raise TypeError(f"linspace(): argument 'steps' must be int, not {type(steps).__name__}")
    if steps < 0:
        raise RuntimeError(f"number of steps must be non-negative; got {steps}")
    for x in (start, end):
        if isinstance(x, Tensor) and x.ndim:
            raise RuntimeError(
                f"[linspace] only supports 0-dimensional start and end tensors; got {x._type}"
            )
    start, end = (x.item() if isinstance(x, Tensor) else float(x) for x in (start, end))
    wanted = _expect_dtype("linspace", dtype or defaults.dtype)
    wide = dtypes.float64
    if not isinstance(steps, Sym) and steps == 1:
        return _finish(_full((1,), plain_number(start, wanted), wanted), requires_grad, device)
    where = _made_on(device, wanted)
    # From the nearer end, so that both ends are exact.
    number = _iota(steps, 0, 1, dtypes.int64, where)
    first_half = number < steps // 2
    if isinstance(steps, Sym):  # the attributes of iota are numbers; it may turn out to be 1
        last = _full((), 0.0, wide) + (steps - 1)
        gap = (end - start) / last.clamp(min=1.0)
        low, high = number * gap + start, end - (last - number) * gap
        first_half = first_half | (number == 0)
    else:
        step = (end - start) / (steps - 1) if steps else 0.0
        low = _iota(steps, start, step, wide, where)
        high = end - _iota(steps, float(steps - 1), -1.0, wide, where) * step
    return _finish(
        cast(apply(OPS["where"], (first_half, low, high), {}), wanted), requires_grad, device
    )


def _iota(count: Any, start: Any, step: Any, dtype: DType, device: str) -> Tensor:
    attrs = {"shape": (count,), "dtype": dtype, "start": start, "step": step, "device": device}
    return apply(OPS["iota"], (), attrs)


def logspace(
    start: float | Tensor, end: float | Tensor, steps: int, base: float = 10.0, *,
    dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """base ** linspace(start, end, steps)."""
    powers = base ** linspace(start, end, steps, dtype=dtypes.float64, device=device)
    return _finish(cast(powers, dtype or defaults.dtype), requires_grad, device)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A matrix with ones on the diagonal, zeros elsewhere."""
    _check_device(device)
    for what, size in (("n", n), ("m", n if m is None else m)):
        if isinstance(size, (bool, float)):
            raise TypeError(f"eye(): argument '{what}' must be int, not {type(size).__name__}")
        if size < 0:
            raise RuntimeError(f"{what} must be greater or equal to 0, got {size}")
    wanted = dtype or defaults.dtype
    where = _made_on(device, wanted)
    columns = _iota(n if m is None else m, 0, 1, dtypes.int64, where)
    on = columns == _iota(n, 0, 1, dtypes.int64, where).unsqueeze(1)
    return _finish(cast(on, wanted), requires_grad, device)


# -- random --------------------------------------------------------------------------------------
def draw(
    name: str, shape: tuple[Any, ...], dtype: DType, generator: Generator | None,
    device: str = "cpu",
) -> Tensor:  # fmt: skip
    """One draw of a random record ("uniform", "normal", "random_bits")."""

    def make(shape: tuple[Any, ...]) -> Tensor:
        attrs = {"shape": shape, "dtype": dtype, "device": device}
        out: Tensor = apply(OPS[name], next_draw(generator), attrs)
        return out

    return draw_for_examples(make, shape) if state.levels else make(shape)


def _random(name: str, record: str, doc: str) -> Any:
    def make(
        *sizes: Any,
        size: Any = None,
        generator: Generator | None = None,
        dtype: DType | None = None,
        layout: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        _check_device(device)
        wanted = defaults.dtype if dtype is None else _expect_dtype(name, dtype)
        shape = _shape(name, sizes if size is None else (size,), sizes or size is not None)
        if wanted.is_complex:
            parts = draw(record, (*shape, 2), wanted.to_real(), generator)
            if record == "normal":
                parts = parts * math.sqrt(0.5)
            return _finish(apply(OPS["view_as_complex"], (parts,), {}), requires_grad, device)
        where = _made_on(device, wanted)
        return _finish(draw(record, shape, wanted, generator, where), requires_grad, device)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = doc
    return make


rand = _random("rand", "uniform", "Uniform numbers in [0, 1).")
randn = _random("randn", "normal", "Normal numbers of mean 0 and variance 1.")
rand_like, randn_like = _like(rand), _like(randn)


def randint(
    low: int = 0,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Integers in [low, high), int64 by default; randint(high, size) starts at 0.

    By remainder of 32 random bits (of 63 for wider ranges), as PyTorch.
    """
    _check_device(device)
    if size is None:
        low, high, size = 0, low, high
    if high is None or isinstance(size, (int, float)) or size is None:
        raise TypeError(
            f"randint() expected a bound and a size: randint(high, size) or randint(low, high, "
            f"size); got low={low}, high={high}, size={size}"
        )
    low, high = _bound(low), _bound(high)
    if high <= low:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    shape = _shape("randint", (tuple(size),))
    where = _made_on(device, dtypes.int64)
    values = random_integers(shape, high - low, generator, where) + low
    return _finish(cast(values, dtype or dtypes.int64), requires_grad, device)


def _bound(value: Any) -> int:
    if isinstance(value, float):
        raise TypeError(f"randint() expected ints as bounds; got {value!r}")
    return int(value)


def random_integers(
    shape: tuple[Any, ...], extent: int, generator: Generator | None, device: str
) -> Tensor:
    """int64 integers in [0, extent), on a device."""
    bits = cast(draw("random_bits", shape, dtypes.uint32, generator, device), dtypes.int64)
    if extent >= 2**32:
        high = cast(draw("random_bits", shape, dtypes.uint32, generator, device), dtypes.int64)
        bits = (high & 0x7FFFFFFF) * 2**32 + bits
    return bits if extent == 2**63 else bits % extent


def randint_like(
    input: Tensor, low: int | None = None, high: int | None = None, **more: Any
) -> Tensor:
    """randint of input's shape and dtype; one bound is `high`."""
    more.setdefault("dtype", input.dtype)
    if low is None and high is None:
        raise TypeError("randint_like() expected a bound: randint_like(input, high)")
    bounds = (0, low) if high is None else (low or 0, high)
    made = randint(*bounds, tuple(input._type.shape), **more)
    return _like_memory(made, input, None)


_SHORT_KEYS = 1 << 18  # elements that keys of 32 bits put in order: 8 pairs of equal ones


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """The integers 0 .. n-1 in random order."""
    _check_device(device)
    if n < 0:
        raise RuntimeError(f"[randperm] n must be non-negative; got {n}")
    # Equal keys stay in order. Of 32 bits there are few for so many; past that keys have 53.
    short = n <= _SHORT_KEYS
    kind = ("random_bits", (n,), dtypes.uint32) if short else ("uniform", (n,), dtypes.float64)
    order = draw(*kind, generator, _made_on(device, dtypes.int64)).argsort()
    return _finish(cast(order, dtype or dtypes.int64), requires_grad, device)


def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Generator | None = None,
    dtype: DType | None = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normal numbers with these means and standard deviations (tensors or numbers). Raises
    RuntimeError for a negative standard deviation."""
    if isinstance(std, Tensor):
        if std.dtype.is_complex:
            raise RuntimeError(
                f"normal expects standard deviation to be non-complex; got {std._type}"
            )
        text = "normal expects all elements of std >= 0.0; got {value}"
        std = expect_range(std, 0.0, None, RuntimeError, text)
    elif not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    _check_device(device)
    if size is None:
        like = mean if isinstance(mean, Tensor) else std
        shape = (mean + std)._type.shape if isinstance(like, Tensor) else ()
        dtype = dtype or (like.dtype if isinstance(like, Tensor) else None)
        std = cast(std, dtype) if isinstance(std, Tensor) and dtype is not None else std
    else:
        shape = _shape("normal", (tuple(size),))
    given = [x for x in (mean, std) if isinstance(x, Tensor) and x._type.device != "cpu"]
    where = place(given[0]._type.device if given else device)
    drawn = draw("normal", tuple(shape), dtype or defaults.dtype, generator, where)
    return _finish(drawn * std + mean, requires_grad, device)


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None
) -> Tensor:
    """1 with the probability that input (or p) says, else 0; of input's dtype.

    Raises RuntimeError for a probability outside [0, 1].
    """
    if input.dtype.category < Category.FLOAT and p is None:
        raise NotImplementedError(
            f"[bernoulli] expected probabilities of a floating dtype; got {input._type}"
        )
    chance: Any = p
    if p is None:
        text = "[bernoulli] Expected p_in >= 0 && p_in <= 1; got {value}"
        chance = expect_range(input.detach(), 0.0, 1.0, RuntimeError, text)
    elif not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    uniform = draw(
        "uniform", tuple(input._type.shape), dtypes.float32, generator, input._type.device
    )
    return cast(uniform < chance, input.dtype)


def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Indices drawn with the (unnormalised) probabilities of each row of input (N, C) or (C,).

    Raises RuntimeError for other shapes, for elements that are negative or not finite, and for a
    row whose sum is 0.
    """
    if input.ndim not in (1, 2):
        raise RuntimeError(f"prob_dist must be 1 or 2 dim; got {input._type}")
    if input.dtype.category < Category.FLOAT:
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for the input; got {input._type}"
        )
    if num_samples <= 0:
        raise RuntimeError(f"cannot sample n_sample <= 0 samples; got {num_samples}")
    count = input.shape[-1]
    if not replacement and num_samples > count:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    text = "probability tensor contains either `inf`, `nan` or element < 0; got {value}"
    largest = sys.float_info.max
    weights = expect_range(input.detach().to(dtypes.float64), 0.0, largest, RuntimeError, text)
    text = "invalid multinomial distribution (sum of probabilities <= 0)"
    expect_range((weights.sum(-1) > 0).to(dtypes.int64), 1, None, RuntimeError, text)
    lead, where = tuple(input._type.shape[:-1]), input._type.device
    if replacement:
        total = weights.cumsum(-1)
        uniform = draw("uniform", (*lead, num_samples), dtypes.float64, generator, where)
        # The first place whose running sum exceeds u: never one of probability 0.
        level = (uniform * total.narrow(-1, count - 1, 1)).unsqueeze(-1)
        return (total.unsqueeze(-2) <= level).sum(-1)
    # Exponential race: the k smallest of Exp(1) / weight are a sample without replacement.
    uniform = draw("uniform", (*lead, count), dtypes.float64, generator, where)
    race = -(-uniform).log1p() / weights
    return race.topk(num_samples, -1, largest=False).indices
