"""PyTorch's files, zip and legacy form, read without PyTorch and without executing anything.

A pickle is a program; this reader runs it with its own small set of functions. Every class or
function that a file names is looked up in a table here: tensors are built by functions of ours,
containers are Python's. Anything else raises pickle.UnpicklingError with its name.
"""

from __future__ import annotations

import collections
import io
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from typing import IO, Any, NamedTuple

import numpy as np

from jitgrad.device import device
from jitgrad.nn.parameter import Parameter
from jitgrad.runtime import dtypes, formats
from jitgrad.runtime.dtypes import DType
from jitgrad.serialization.memory import Location, Memory, RuleError
from jitgrad.serialization.unpickler import Unpickler
from jitgrad.tensor import Size, Tensor

allowed: dict[str, Any] = {}
"""What `add_safe_globals` allows besides, by "module.name"."""

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_STORAGE_DTYPES = {
    "DoubleStorage": dtypes.float64, "FloatStorage": dtypes.float32, "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16, "LongStorage": dtypes.int64, "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8,
    "BoolStorage": dtypes.bool_, "ComplexFloatStorage": dtypes.complex64,
    "ComplexDoubleStorage": dtypes.complex128,
}  # fmt: skip


class _StorageType(NamedTuple):
    """What stands for torch.FloatStorage and its kin; no dtype for untyped bytes."""

    dtype: DType | None


class _Storage:
    """A storage that a file names: elements are filled in when they are known (legacy files have
    them behind the pickle)."""

    def __init__(self, key: Any, dtype: DType | None) -> None:
        self.key = key
        self.dtype = dtype
        self.data: Any = None

    def elements(self, dtype: DType) -> np.ndarray[Any, Any]:
        raw = np.frombuffer(self.data, np.uint8)
        return raw[: raw.size - raw.size % dtype.itemsize].view(dtype.np)


# -- the functions that files may call -----------------------------------------------------------
class _Builder:
    """Makes what a file describes. `fill` gives a storage its bytes, or None where they follow."""

    def __init__(self, memory: Memory, fill: Callable[[_Storage, int], None]) -> None:
        self.memory = memory
        self.fill = fill
        self.storages: dict[Any, _Storage] = {}

    def storage(self, kind: Any, key: Any, location: str, count: int) -> _Storage:
        if not isinstance(kind, _StorageType):
            raise pickle.UnpicklingError(f"[load] expected a storage's type; got {kind!r}")
        found = self.storages.get(key)
        if found is None:
            self.memory.expect(key, location)
            found = self.storages[key] = _Storage(key, kind.dtype)
            self.fill(found, count * (kind.dtype.itemsize if kind.dtype else 1))
        return found

    def tensor(
        self, storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool = False,
        hooks: Any = None, metadata: Any = None,
    ) -> Tensor:  # fmt: skip
        if not isinstance(storage, _Storage) or storage.dtype is None:
            raise pickle.UnpicklingError("[load] expected a typed storage for a tensor")
        return self._made(storage, storage.dtype, offset, size, stride, requires_grad)

    def tensor_v3(
        self, storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool, hooks: Any,
        dtype: Any, metadata: Any = None,
    ) -> Tensor:  # fmt: skip
        if not isinstance(storage, _Storage) or not isinstance(dtype, DType):
            raise pickle.UnpicklingError("[load] expected a storage and a dtype for a tensor")
        return self._made(storage, dtype, offset, size, stride, requires_grad)

    def _made(
        self, storage: _Storage, dtype: DType, offset: int, size: Any, stride: Any, grad: bool
    ) -> Tensor:
        if not isinstance(size, (tuple, list)) or not isinstance(stride, (tuple, list)):
            raise pickle.UnpicklingError(
                f"[load] expected a size and strides; got {type(size).__name__} and "
                f"{type(stride).__name__}"
            )
        flat = storage.elements(dtype)
        made = self.memory.tensor(storage.key, flat, dtype, int(offset), size, stride)
        return made.requires_grad_() if grad else made

    def parameter(
        self, data: Tensor, requires_grad: bool, hooks: Any = None, state: Any = None
    ) -> Tensor:
        made: Tensor = Parameter(data, requires_grad)
        return _with_attributes(made, state)

    def with_state(self, rebuild: Any, kind: Any, args: Any, state: Any) -> Tensor:
        """A tensor that has attributes of its own, as those of `nn.Buffer` have."""
        if rebuild not in (self.tensor, self.tensor_v3, self.parameter) or kind != "tensor":
            raise pickle.UnpicklingError("[load] expected what makes a tensor, of PyTorch's types")
        return _with_attributes(rebuild(*args), state)


def _with_attributes(x: Tensor, state: Any) -> Tensor:
    """x with the attributes that its user gave it: never one that a tensor has of its own."""
    for part in state if isinstance(state, tuple) else (state,):
        for name, value in part.items() if isinstance(part, dict) else ():
            if isinstance(name, str) and not name.startswith("_") and not hasattr(type(x), name):
                setattr(x, name, value)
    return x


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"[load] expected latin1 text; got {encoding!r}")
    return text.encode("latin1")


def _numpy_dtype(spec: Any, *flags: Any) -> np.dtype[Any]:
    found = np.dtype(spec, False, True)  # a copy: a state that follows must not change NumPy's own
    if found.hasobject:
        raise pickle.UnpicklingError("[load] expected numeric NumPy arrays; got objects")
    return found


def _numpy_scalar(dtype: np.dtype[Any], data: Any = b"") -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data
    return np.frombuffer(raw, dtype)[0]


class _Array:
    """What stands for an ndarray until its state comes; `finish` makes the array of it."""

    def __init__(self, *_: Any) -> None:
        self.array: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if dtype.hasobject or not isinstance(raw, (bytes, str)):
            raise pickle.UnpicklingError("[load] expected numeric NumPy arrays; got objects")
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        order = "F" if fortran else "C"
        self.array = np.frombuffer(bytearray(raw), dtype).reshape(shape, order=order)  # type: ignore[call-overload]


_CONTAINERS: dict[str, Any] = {
    "collections.OrderedDict": collections.OrderedDict,
    "collections.defaultdict": collections.defaultdict,
    "collections.Counter": collections.Counter,
    "builtins.set": set, "builtins.frozenset": frozenset, "builtins.complex": complex,
    "builtins.bytearray": bytearray, "builtins.slice": slice, "builtins.range": range,
    "builtins.list": list, "builtins.dict": dict, "builtins.tuple": tuple, "builtins.int": int,
    "builtins.float": float, "builtins.str": str, "builtins.bool": bool,
    "torch.Size": Size,
    "torch.Tensor": "tensor", "torch.nn.parameter.Parameter": "tensor",
    "torch.serialization._get_layout": lambda name: formats.BY_NAME[name.removeprefix("torch.")],
    **{f"torch.{name}": value for name, value in formats.BY_NAME.items()},
    "_codecs.encode": _encode,
}  # fmt: skip
for _core in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _CONTAINERS[f"{_core}._reconstruct"] = _Array
    _CONTAINERS[f"{_core}.scalar"] = _numpy_scalar
_CONTAINERS |= {"numpy.dtype": _numpy_dtype, "numpy.ndarray": "ndarray"}


def _device(kind: str, index: int | None = None) -> Any:
    return device("cpu") if kind in ("cpu", "cuda", "meta") else device(kind)


class _Unpickler(Unpickler):
    """The unpickler with every lookup through the tables."""

    def __init__(self, stream: Any, builder: _Builder) -> None:
        super().__init__(stream)
        self.builder = builder
        users = tuple(x for x in allowed.values() if isinstance(x, type))
        self.stateful = (_Array, *users)

    def find_class(self, module: str, name: str) -> Any:
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"  # Python 2's name
        builder = self.builder
        ours: dict[str, Any] = {
            "torch._utils._rebuild_tensor": builder.tensor,
            "torch._utils._rebuild_tensor_v2": builder.tensor,
            "torch._utils._rebuild_tensor_v3": builder.tensor_v3,
            "torch._utils._rebuild_parameter": builder.parameter,
            "torch._utils._rebuild_parameter_with_state": builder.parameter,
            "torch._tensor._rebuild_from_type_v2": builder.with_state,
            "torch.device": _device,
        }
        if full in ours:
            return ours[full]
        if full in _CONTAINERS:
            return _CONTAINERS[full]
        if full in allowed:
            return allowed[full]
        if module in ("torch", "torch.storage") and name in _STORAGE_DTYPES:
            return _StorageType(_STORAGE_DTYPES[name])
        if full in ("torch.storage.UntypedStorage", "torch.storage._UntypedStorage",
                    "torch.UntypedStorage"):  # fmt: skip
            return _StorageType(None)
        if module == "torch" and name in dtypes.BY_NAME:
            return dtypes.BY_NAME[name]
        if module == "numpy.dtypes" and name.endswith("DType"):
            return lambda *_: _numpy_dtype(name[:-5].lower())
        raise pickle.UnpicklingError(
            f"[load] refused: the file asks for {full}, which is no tensor and no plain container; "
            "nothing was executed. Save a state_dict, or allow a class of yours with "
            "jitgrad.serialization.add_safe_globals([...])"
        )

    def persistent_load(self, saved: Any) -> Any:
        if not isinstance(saved, tuple) or not saved or saved[0] not in ("storage", b"storage"):
            kind = saved[0] if isinstance(saved, tuple) and saved else saved
            raise pickle.UnpicklingError(
                f"[load] refused: the file holds {kind!r}, where a storage is expected (a whole "
                "module was saved, perhaps); save its state_dict instead"
            )
        kind, key, location, count = saved[1:5]
        if len(saved) > 5 and saved[5] is not None:
            raise pickle.UnpicklingError(
                "[load] refused: the file holds views of storages, as PyTorch before 0.4 wrote them"
            )
        return self.builder.storage(kind, key, str(location), int(count))


def _finished(x: Any, memo: dict[int, tuple[Any, Any]]) -> Any:
    """x with the stand-ins of arrays replaced, in place where containers can be changed. memo: what
    was finished, by identity, with what became of it."""
    if isinstance(x, _Array):
        if x.array is None:
            raise pickle.UnpicklingError("[load] expected the contents of a NumPy array")
        return x.array
    if id(x) in memo:
        return memo[id(x)][1]
    if isinstance(x, dict):
        memo[id(x)] = x, x
        for k in list(x):
            x[k] = _finished(x[k], memo)
    elif isinstance(x, list):
        memo[id(x)] = x, x
        x[:] = [_finished(v, memo) for v in x]
    elif isinstance(x, Tensor):
        memo[id(x)] = x, x
        for name, value in list(vars(x).items()):
            setattr(x, name, _finished(value, memo))
    elif type(x) is tuple:
        memo[id(x)] = x, tuple([_finished(v, memo) for v in x])
        return memo[id(x)][1]
    return x


def _unpickle(stream: Any, builder: _Builder) -> Any:
    try:
        return _finished(_Unpickler(stream, builder).load(), {})
    except RecursionError:
        raise pickle.UnpicklingError(
            f"[load] refused: {builder.memory.name} holds containers that are nested too deeply"
        ) from None
    except (pickle.UnpicklingError, RuntimeError, RuleError):
        raise
    except IndexError:
        raise pickle.UnpicklingError(
            f"[load] {builder.memory.name} is damaged: its pickle takes what it has not put there"
        ) from None
    except EOFError as error:
        raise RuntimeError(
            f"[load] expected a whole file; {builder.memory.name} is torn: {error}"
        ) from None
    except Exception as error:
        raise pickle.UnpicklingError(
            f"[load] {builder.memory.name} is damaged: {type(error).__name__}: {error}"
        ) from error


# -- the two forms -------------------------------------------------------------------------------
def read_zip(file: zipfile.ZipFile, memory: Memory) -> Any:
    """PyTorch's zip form: NAME/data.pkl, NAME/data/KEY for each storage, NAME/byteorder."""
    names = set(file.namelist())
    found = [n for n in names if n.count("/") == 1 and n.endswith("/data.pkl")]
    if len(found) != 1:
        what = "a TorchScript archive" if any("/code/" in n for n in names) else "no data.pkl"
        raise RuntimeError(
            f"[load] expected a file by jitgrad.save or torch.save; {memory.name} has {what}"
        )
    prefix = found[0][: -len("data.pkl")]
    if f"{prefix}constants.pkl" in names:
        raise RuntimeError(
            f"[load] {memory.name} is a TorchScript archive; load it in PyTorch and save its "
            "state_dict"
        )
    order = f"{prefix}byteorder"
    if order in names and file.read(order).decode() != sys.byteorder:
        raise RuntimeError(f"[load] {memory.name} was written on a machine of other byte order")

    def fill(storage: _Storage, size: int) -> None:
        member = f"{prefix}data/{storage.key}"
        if member not in names:
            raise RuntimeError(f"[load] expected a whole file; {memory.name} lacks {member}")
        storage.data = memory.member(file, member)

    return _unpickle(io.BytesIO(file.read(found[0])), _Builder(memory, fill))


def read_legacy(stream: IO[bytes], memory: Memory) -> Any:
    """PyTorch's form before 1.6: pickles one behind the other, then the storages' bytes.

    The object's pickle comes before the bytes, so it is read twice: once for its storages.
    """
    nothing = _Builder(memory, lambda storage, size: None)
    try:
        magic = _Unpickler(stream, nothing).load()
    except pickle.UnpicklingError:
        raise
    except Exception:
        magic = None
    if magic != _MAGIC:
        raise pickle.UnpicklingError(
            f"[load] expected a file by torch.save or jitgrad.save; {memory.name} is another pickle"
        )
    protocol = _unpickle(stream, nothing)
    if protocol != _PROTOCOL:
        raise RuntimeError(f"[load] expected protocol {_PROTOCOL}; {memory.name} has {protocol}")
    about = _unpickle(stream, nothing)
    if isinstance(about, dict) and about.get("little_endian", True) != (sys.byteorder == "little"):
        raise RuntimeError(f"[load] {memory.name} was written on a machine of other byte order")
    start = stream.tell()
    most = stream.seek(0, io.SEEK_END) - start
    stream.seek(start)
    sizes: dict[Any, int] = {}

    def reserve(storage: _Storage, size: int) -> None:
        if not 0 <= size <= most:
            raise RuntimeError(f"[load] expected a whole file; {memory.name} is torn")
        sizes[storage.key] = size
        storage.data = bytearray(size)

    first = _Builder(Memory(Location("cpu"), memory.name, False), reserve)
    _unpickle(stream, first)
    keys = _unpickle(stream, nothing)
    data: dict[Any, bytearray] = {}
    for key in keys:
        storage = first.storages.get(key)
        header = stream.read(8)
        if storage is None or len(header) != 8:
            raise RuntimeError(f"[load] expected a whole file; {memory.name} is torn")
        count = struct.unpack("<q", header)[0]
        size = count * (storage.dtype.itemsize if storage.dtype else 1)
        if not 0 <= size <= sizes[key]:
            raise RuntimeError(f"[load] expected a whole file; {memory.name} is damaged")
        data[key] = bytearray(stream.read(size))
        if len(data[key]) != size:
            raise RuntimeError(f"[load] expected a whole file; {memory.name} is torn")

    def fill(storage: _Storage, size: int) -> None:
        if storage.key not in data:
            raise RuntimeError(f"[load] expected a whole file; {memory.name} lacks a storage")
        storage.data = data[storage.key]

    stream.seek(start)
    return _unpickle(stream, _Builder(memory, fill))
