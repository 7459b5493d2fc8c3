"""Which graph value a tensor has while a function is recorded.

Owns the map from storages to values (never from tensors), views derived at each read, graph inputs
added when a storage is first met. It does not listen to dispatch: recorder.py does.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from jitgrad.compiler.graph_tensor import plain_attrs as plain
from jitgrad.compiler.ir import Graph, Value
from jitgrad.compiler.symbolic import is_static
from jitgrad.compiler.types import TensorType
from jitgrad.facts import layout
from jitgrad.hostscalar import is_lifted
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import user_line
from jitgrad.sizes import plain_shape, to_plain
from jitgrad.sources import (
    Arg,
    Captured,
    Grad,
    Owner,
    Source,
)
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor

T = TypeVar("T")

Found = tuple[Source, Tensor]
"""Where a storage is reached, and the tensor that is there."""


class Finder(Protocol):
    """What the recorder asks of whoever knows arguments and Python state."""

    def storage(self, storage: Storage) -> Found | None:
        """A tensor on this storage that later calls will find, too."""

    def part(self, x: Tensor) -> Found | None:
        """An argument or captured tensor that shows a part of x's storage, and x a view of it."""

    def owner(self, owner: Any) -> Owner | None:
        """Where later calls find the object whose slot is read or rebound."""

    def begun(self, owner: dict[Any, Any]) -> None:
        """A dict of dicts got entries, which count as if they had been there before the call."""

    def array(self, array: np.ndarray[Any, Any]) -> Source | None:
        """Where a NumPy array is found."""

    def end_lending(self) -> None:
        """Nothing stands in the place of numbers of Python state any more."""

    def number(self, owner: Any, key: Any) -> bool:
        """Whether item `key` of dict `owner` can be read afresh at each call."""

    def holds(self, owner: Owner, key: Any, source: Source) -> bool:
        """Whether slot `key` of the owner is this very source."""

    def name(self, source: Source) -> str:
        """How users know the source; "" for what has no name."""

    def is_known(self, value: Any) -> bool:
        """Whether the guards make sure that this object is the same at each call."""


@dataclass(eq=False)
class Entry:
    """A graph input: where it comes from, and what its tensor was when it was first seen.

    base: how many view ops of the storage's chain lie below the graph input (the input is the
    tensor found at the source, not the storage's root).
    """

    kind: str
    source: Source
    value: Value
    storage: Storage
    array: np.ndarray[Any, Any]
    base: int = 0
    tensor: Tensor | None = None
    node: Any = None
    requires_grad: bool = False
    writes: int = 0
    hidden_writes: int = 0
    strides: tuple[int, ...] | None = None

    def release(self) -> None:
        """Lets go of the recorded call's tensor; its layout is kept."""
        self.strides = layout(self.array)
        self.tensor = self.storage = self.array = self.node = None  # type: ignore[assignment]


class ByStorage(Generic[T]):
    """Something of each storage, as long as the storage lives: memory of what the function is done
    with is free, as without a recorder."""

    def __init__(self) -> None:
        self._found: dict[int, T] = {}
        self._refs: dict[int, weakref.ref[Storage]] = {}

    def get(self, storage: Storage) -> T | None:
        return self._found.get(id(storage))

    def __contains__(self, storage: Storage) -> bool:
        return id(storage) in self._found

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, storage: Storage) -> T:
        return self._found[id(storage)]

    def __setitem__(self, storage: Storage, value: T) -> None:
        key = id(storage)
        if key not in self._refs:
            found, refs = self._found, self._refs

            def dead(_: Any) -> None:  # the id may be another storage's from here on
                found.pop(key, None)
                refs.pop(key, None)

            refs[key] = weakref.ref(storage, dead)
        self._found[key] = value

    def clear(self) -> None:
        self._refs.clear()
        self._found.clear()


class Counts(ByStorage[int]):
    """How often something has happened to each storage."""

    def of(self, storage: Storage) -> int:
        return self._found.get(id(storage), 0)

    def add(self, storage: Storage) -> None:
        self[storage] = self.of(storage) + 1


class ValueMap:
    """Which graph value each storage holds now, while a graph is recorded.

    Attributes: `graph`; `entries`, what its inputs are; `reason` and `line`, why and where the
    recording was given up ("" while it is good); `postponed`, the next call is to be recorded.
    """

    def __init__(self, name: str, finder: Finder) -> None:
        self.graph = Graph(name=name)
        self.finder = finder
        self.reason = ""
        self.line = ""
        self.postponed = False
        self.entries: list[Entry] = []
        self._values: ByStorage[Value] = ByStorage()
        self._entry: dict[Storage, Entry] = {}
        self._parts: dict[Storage, list[Entry]] = {}  # other parts of storages that none writes
        self._counts = Counts()  # writes
        self._views: ByStorage[dict[Any, tuple[int, Any, Value]]] = ByStorage()
        self.view_lines: dict[int, str] = {}  # of the steps of chains, by id, that were made here
        self._grads: dict[Storage, Found] = {}

    def give_up(self, reason: str, line: str = "") -> None:
        """Ends the recording. The first reason stands."""
        if not self.reason:
            self.reason, self.line = reason, line

    # -- values --------------------------------------------------------------------------------
    def value_of(self, x: Tensor, line: str) -> Value:
        """The graph value of a tensor now. After giving up, any value."""
        value = self._root(x, line)
        if value is None:
            return _NOTHING
        storage = x._storage
        count = self._counts.of(storage)
        entry, chain = self._place(x, line)
        if entry is not None:
            value = self._now(entry)
        if not chain:
            return value
        views = self._views.get(storage)
        if views is None:
            views = self._views[storage] = {}
        for n, step in enumerate(chain):
            key = (entry, tuple(map(id, chain[: n + 1])))
            cached = views.get(key)
            if cached is None or cached[0] != count:
                op, attrs = step
                made = line or self.view_lines.get(id(step), "")
                value = self.graph.add(op, value, line=made, **plain_attrs(attrs))
                cached = views[key] = (count, chain, value)
            value = cached[2]
        return value

    def _root(self, x: Tensor, line: str) -> Value | None:
        """The value of x's storage (as far as the graph knows it)."""
        found = self._values.get(x._storage)
        if found is None and not self.reason:
            entry = self.entry_of(x, line)
            return None if entry is None else entry.value
        return found

    def entry_of(self, x: Tensor, line: str = "") -> Entry | None:
        """The graph input of x's storage, added when it is first met."""
        storage = x._storage
        entry = self._entry.get(storage)
        if entry is not None or self.reason:
            return entry
        found = self._grads.get(storage) or self.finder.storage(storage)
        if found is None:
            self.give_up(
                f"uses a tensor ({x._type}) that is reached in no way jit can follow; pass it as "
                "an argument, or keep it on a Module",
                line or here(),
            )
            return None
        source, tensor = found
        kind = "arg" if isinstance(source, Arg) else "state"
        return self._add_entry(kind, source, tensor, tensor._data)

    def _add_entry(
        self, kind: str, source: Source, tensor: Tensor, array: np.ndarray[Any, Any]
    ) -> Entry:
        entry = self._new_entry(kind, source, tensor, array)
        self._entry[entry.storage] = entry
        self._values[entry.storage] = entry.value
        return entry

    def _new_entry(
        self, kind: str, source: Source, tensor: Tensor, array: np.ndarray[Any, Any]
    ) -> Entry:
        name = self._name(source)
        value = self.graph.add_input(plain_type(tensor._type), kind, name)
        storage = tensor._storage
        held = tensor if isinstance(source, (Arg, Captured, Grad)) else None
        if isinstance(source, Captured) and source.item.kind == "array":
            held = None  # the function made the tensor; only its memory is state
        entry = Entry(
            kind, source, value, storage, array, len(tensor._chain), held, tensor._node,
            tensor.requires_grad,
        )  # fmt: skip
        self.entries.append(entry)
        return entry

    def _name(self, source: Source) -> str:
        name = self.finder.name(source) or type(source).__name__.lower()
        taken = {item.name for item in self.graph.inputs}
        unique, n = name, 1
        while unique in taken:
            n += 1
            unique = f"{name}#{n}"
        return unique

    def _now(self, entry: Entry) -> Value:
        """What the memory of a graph input holds now."""
        written = self._counts.of(entry.storage)
        return self._values[entry.storage] if written else entry.value

    def _place(self, x: Tensor, line: str) -> tuple[Entry | None, Any]:
        """The graph input that x's memory came from (None: the function made it), and the view ops
        from the graph's value of that memory to x."""
        first = self._entry.get(x._storage)
        if first is None or not first.base:
            return first, x._chain
        parts = self._parts.get(x._storage, [])
        for entry in (first, *parts):
            assert entry.tensor is not None
            if is_part(x._chain, entry.tensor._chain):
                return entry, x._chain[entry.base :]
        found = None if self._counts.of(x._storage) else self.finder.part(x)
        if found is None:
            self.give_up("uses two tensors that show different parts of one storage", line)
            return first, ()
        source, tensor = found
        kind = "arg" if isinstance(source, Arg) else "state"
        entry = self._new_entry(kind, source, tensor, tensor._data)
        self._parts[x._storage] = [*parts, entry]
        return entry, x._chain[entry.base :]


def is_part(chain: Any, base: Any) -> bool:
    """Whether a tensor with this chain of views is a view of one whose chain is `base`."""
    return len(base) <= len(chain) and all(a is b for a, b in zip(base, chain, strict=False))


_NOTHING = Value(TensorType((), dtypes.float32))


_plain: dict[int, tuple[TensorType, TensorType]] = {}
"""By id of a type that tensors have (kept here, so that the id stays its): that type, and as graphs
have it. Types with symbolic dims are in none."""
_MAX_PLAIN = 8192
_PLAIN_KINDS = frozenset([int, bool, float, str, type(None)])
"""Attributes that graphs have as they are."""


def plain_type(t: TensorType) -> TensorType:
    """The type with a plain tuple (of ints and plain Syms) and a plain str, as graphs have it."""
    known = _plain.get(id(t))
    if known is not None:
        return known[1]
    found = TensorType(plain_shape(t.shape), t.dtype, str.__str__(t.device))
    if is_static(found.shape):
        if len(_plain) >= _MAX_PLAIN:
            _plain.clear()
        _plain[id(t)] = t, found
    return found


def known_types(
    operands: Sequence[Tensor], values: Sequence[Value], outputs: Sequence[Tensor]
) -> list[TensorType] | None:
    """The types of a node's outputs as dispatch inferred them; None where the values that stand for
    the operands have other types, or some are symbolic."""
    found = []
    for x in (*operands, *outputs):
        t = x._type
        known = _plain.get(id(t))
        if known is None:
            plain_type(t)
            if id(t) not in _plain:
                return None
            known = _plain[id(t)]
        found.append(known[1])
    count = len(values)
    for v, t in zip(values, found[:count], strict=True):
        if v.type is not t and v.type != t:
            return None
    return found[count:]


def plain_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes with plain tuples, strs, floats and Syms."""
    for x in attrs.values():
        if type(x) not in _PLAIN_KINDS:
            break
    else:
        return attrs
    numbers = {k: v.specialise() if is_lifted(v) else to_plain(v) for k, v in attrs.items()}
    return plain(numbers)


def here() -> str:
    return user_line(3)
