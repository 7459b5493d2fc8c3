"""jitgrad's own file: a zip of the object's tree as JSON, and its storages as safetensors.

The tree: null, booleans, numbers and strings stand for themselves; everything else is an object
with one key that says what it is, e.g. {"tuple": [...]}, {"dict": [[key, value], ...]},
{"tensor": 3} (the third of "tensors": class, dtype, storage, offset, shape, strides).
"""

from __future__ import annotations

import base64
import json
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from jitgrad.device import device
from jitgrad.hostscalar import HostScalar
from jitgrad.nn.parameter import Buffer, Parameter
from jitgrad.nn.state_dict import StateDict
from jitgrad.runtime import dtypes, formats
from jitgrad.runtime.dtypes import DType
from jitgrad.serialization.memory import Memory
from jitgrad.serialization.safe import read_safetensors, safetensors_bytes
from jitgrad.tensor import Size, Tensor

MEMBER = "jitgrad.json"
_STORAGES = "storages.safetensors"
_VERSION = 1
_CLASSES: dict[str, Callable[..., Any]] = {"Parameter": Parameter, "Buffer": Buffer}
_LISTS: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "size": Size,
}  # fmt: skip
_FACTORIES = {f.__name__: f for f in (list, dict, set, tuple, int, float, str, bool)}
_CODE_OF_LIST: dict[Any, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    Size: "size",
}


# -- writing -------------------------------------------------------------------------------------
class _Writer:
    """Takes an object apart. `storages` by key; `tensors` as described, each object once."""

    def __init__(self) -> None:
        self.storages: dict[str, np.ndarray[Any, Any]] = {}
        self.tensors: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._keys: dict[int, tuple[str, int]] = {}
        self._held: list[Any] = []
        self._open: set[int] = set()
        self.shared: dict[int, int] = {}

    def tree(self, x: Any, path: str) -> Any:
        if x is None or type(x) in (bool, int, float, str):
            return x
        if isinstance(x, HostScalar):
            return float(x)
        if isinstance(x, Tensor):
            return {"tensor": self._tensor(x, path)}
        if isinstance(x, (np.ndarray, np.generic)):
            return self._array(x, path)
        kind = _CODE_OF_LIST.get(type(x))
        if kind is None and not isinstance(x, dict):
            return self._atom(x, path)
        if id(x) in self._open:
            raise ValueError(f"[save] expected a tree; {path} contains itself")
        self._open.add(id(x))
        try:
            if kind is not None:
                return {kind: [self.tree(v, f"{path}[{i}]") for i, v in enumerate(x)]}
            return self._dict(x, path)
        finally:
            self._open.discard(id(x))

    def _dict(self, x: dict[Any, Any], path: str) -> Any:
        factory = getattr(x, "default_factory", None)
        known = type(x) in (dict, OrderedDict, StateDict, Counter, defaultdict)
        if not known or factory not in (None, *_FACTORIES.values()):
            raise self._refused(x, path)
        pairs = [
            [self.tree(k, f"a key of {path}"), self.tree(v, f"{path}[{k!r}]")] for k, v in x.items()
        ]
        if type(x) is defaultdict:
            return {"default": [pairs, factory and factory.__name__]}
        if not isinstance(x, OrderedDict):
            return {"dict" if type(x) is dict else "counter": pairs}
        extra = {k: self.tree(v, f"{path}.{k}") for k, v in vars(x).items()}
        return {"ordered": [pairs, extra]} if extra else {"ordered": [pairs]}

    def _atom(self, x: Any, path: str) -> Any:
        if isinstance(x, DType):
            return {"dtype": x.name}
        if isinstance(x, formats.TYPES):
            return {"format": x.name}
        if isinstance(x, device):
            return {"device": str.__str__(x)}
        if isinstance(x, (bytes, bytearray)):
            return {type(x).__name__: base64.b64encode(x).decode()}
        if isinstance(x, complex):
            return {"complex": [x.real, x.imag]}
        if isinstance(x, slice):
            return {"slice": [self.tree(v, path) for v in (x.start, x.stop, x.step)]}
        raise self._refused(x, path)

    def _refused(self, x: Any, path: str) -> TypeError:
        hint = "save its state_dict()" if hasattr(x, "state_dict") else "save plain data"
        return TypeError(
            "[save] expected tensors, arrays, numbers, strings and None in dicts, lists, tuples "
            f"and sets; got {type(x).__module__}.{type(x).__qualname__} at {path}; {hint} instead"
        )

    def _array(self, x: Any, path: str) -> Any:
        try:
            dtypes.from_numpy(x.dtype)
        except TypeError:
            raise self._refused(x, path) from None
        key = f"a{len(self.storages)}"
        flat = np.ascontiguousarray(x).reshape(-1)
        self.storages[key] = flat.view(np.float64) if flat.dtype == np.complex128 else flat
        entry = {"storage": key, "dtype": dtypes.from_numpy(x.dtype).name, "shape": list(x.shape)}
        return {"array" if isinstance(x, np.ndarray) else "scalar": entry}

    def _tensor(self, x: Tensor, path: str) -> int:
        number = self._numbers.get(id(x))
        if number is not None:
            return number
        shown = x.detach()
        data = shown._array("save")
        key, low = self._storage(x, data)
        item = data.itemsize
        offset = 0
        if low:  # where the elements are, not where a copy of a GPU's is
            data = shown._data
            offset = (data.__array_interface__["data"][0] - low) // item
        strides = [s // item for s in data.strides]
        if not low:
            strides = [s // item for s in np.empty(data.shape, data.dtype).strides]
        if min((0, *strides)) < 0:
            raise RuntimeError(
                f"[save] the tensor at {path} shares its memory with another and has negative "
                "strides; save a .clone() of it"
            )
        kind = type(x).__name__
        entry = {
            "class": kind if kind in _CLASSES else "Tensor", "storage": key, "dtype": x.dtype.name,
            "offset": offset, "shape": list(data.shape), "strides": strides,
            "requires_grad": bool(x.requires_grad), "device": x._type.device,
        }  # fmt: skip
        if isinstance(x, Buffer):
            entry["persistent"] = x.persistent
        self._numbers[id(x)] = len(self.tensors)
        self._held.append(x)
        self.tensors.append(entry)
        return self._numbers[id(x)]

    def _storage(self, x: Tensor, data: np.ndarray[Any, Any]) -> tuple[str, int]:
        """The key of the storage that x is stored in, and the address that offsets count from; the
        address is 0 where the storage holds x's elements alone, in row-major order."""
        root = x._storage
        found = self._keys.get(id(root))
        if found is not None:
            return found
        key = f"t{len(self.storages)}"
        if self.shared.get(id(root), 0) < 2 or root.array is None:
            flat, low = np.ascontiguousarray(data).reshape(-1), 0
        else:  # all of the memory between the root's lowest and highest element
            flat, low = root.elements()
            self._keys[id(root)] = key, low
        self.storages[key] = flat.view(np.float64) if flat.dtype == np.complex128 else flat
        self._held.append(root)
        return key, low


def _count(x: Any, seen: dict[int, set[int]]) -> None:
    """Which tensors (by id) show each storage (by id)."""
    if isinstance(x, Tensor):
        seen.setdefault(id(x._storage), set()).add(id(x))
    elif isinstance(x, dict):
        for k, v in x.items():
            _count(k, seen)
            _count(v, seen)
    elif type(x) in _CODE_OF_LIST:
        for v in x:
            _count(v, seen)


def write(obj: Any, stream: IO[bytes]) -> None:
    """Writes an object. Raises TypeError for what cannot be stored, before anything is written."""
    writer = _Writer()
    seen: dict[int, set[int]] = {}
    try:
        _count(obj, seen)
        writer.shared = {key: len(ids) for key, ids in seen.items()}
        tree = writer.tree(obj, "obj")
    except RecursionError:
        raise ValueError("[save] expected a tree; obj contains itself, or is too deep") from None
    about = {"format": "jitgrad", "version": _VERSION, "tree": tree, "tensors": writer.tensors}
    data = safetensors_bytes(writer.storages)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as file:
        file.writestr(MEMBER, json.dumps(about))
        file.writestr(_STORAGES, data)


# -- reading -------------------------------------------------------------------------------------
class _Reader:
    def __init__(self, about: dict[str, Any], arrays: dict[str, Any], memory: Memory) -> None:
        self.arrays = arrays
        self.memory = memory
        self.tensors = [self._tensor(entry) for entry in about["tensors"]]

    def _flat(self, entry: dict[str, Any]) -> tuple[np.ndarray[Any, Any], DType]:
        dtype = dtypes.BY_NAME[entry["dtype"]]
        flat = self.arrays[entry["storage"]]
        return (flat.view(dtype.np) if dtype is dtypes.complex128 else flat), dtype

    def _tensor(self, entry: dict[str, Any]) -> Tensor:
        flat, dtype = self._flat(entry)
        if self.memory.location.rule is not None:  # without one all come to the CPU
            self.memory.expect(entry["storage"], entry.get("device", "cpu"))
        made = self.memory.tensor(
            entry["storage"], flat, dtype, entry["offset"], entry["shape"], entry["strides"]
        )
        if entry["class"] == "Buffer":
            return Buffer(made, persistent=entry["persistent"])
        if entry["class"] == "Parameter":
            return Parameter(made, entry["requires_grad"])
        return made.requires_grad_() if entry["requires_grad"] else made

    def object(self, x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        ((kind, value),) = x.items()
        if kind in _LISTS:
            return _LISTS[kind]([self.object(v) for v in value])
        if kind in ("dict", "counter"):
            pairs = {self.object(k): self.object(v) for k, v in value}
            return pairs if kind == "dict" else Counter(pairs)
        if kind == "default":
            factory = None if value[1] is None else _FACTORIES[value[1]]
            return defaultdict(factory, ((self.object(k), self.object(v)) for k, v in value[0]))
        if kind == "ordered":
            kind = StateDict if "_metadata" in value[-1] else OrderedDict
            made = kind((self.object(k), self.object(v)) for k, v in value[0])
            for name, extra in value[1].items() if len(value) > 1 else ():
                setattr(made, name, self.object(extra))
            return made
        if kind == "tensor":
            return self.tensors[value]
        if kind in ("array", "scalar"):
            array = self._flat(value)[0].reshape(value["shape"])
            return array if kind == "array" else array[()]
        return _ATOMS[kind](value)


_ATOMS: dict[str, Callable[[Any], Any]] = {
    "dtype": dtypes.BY_NAME.__getitem__,
    "format": formats.BY_NAME.__getitem__,
    "device": device,
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "complex": lambda parts: complex(*parts),
    "slice": lambda parts: slice(*parts),
}


def read(file: zipfile.ZipFile, memory: Memory) -> Any:
    """The object in a file by `write`. Raises RuntimeError for a damaged or newer file."""
    try:
        about = json.loads(file.read(MEMBER))
        if about["version"] > _VERSION:
            raise RuntimeError(
                f"[load] expected a file of version {_VERSION} at most; {memory.name} has version "
                f"{about['version']}: load it with a newer jitgrad"
            )
        arrays = read_safetensors(memory.member(file, _STORAGES), memory.name)
        reader = _Reader(about, arrays, memory)
        return reader.object(about["tree"])
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise RuntimeError(
            f"[load] expected a whole file; {memory.name} is damaged: {type(error).__name__}: "
            f"{error}"
        ) from error
