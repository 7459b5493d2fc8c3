"""Recorder: what dispatch reports while a function runs eagerly becomes a Graph.

Owns the map from storages to graph values, views derived at each read, writes through views,
slots, and the description of results. It gives up (`reason`) where recording cannot say what a
later call would do; the function has then simply run eagerly. Python state: see guards.py.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from jitgrad.autograd.engine import grad
from jitgrad.compiler.ir import Graph, Rebind, Value, Write
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.types import TensorType
from jitgrad.facts import layout, leaf_facts
from jitgrad.hostscalar import HostScalar
from jitgrad.pair import Pair, split
from jitgrad.pytree import Structure, flatten
from jitgrad.random import draw_tensors
from jitgrad.runtime import dtypes
from jitgrad.sources import (
    AliasResult,
    Arg,
    Captured,
    Constant,
    ConstantResult,
    Draw,
    FreshResult,
    Grad,
    Number,
    Owner,
    Result,
    SameResult,
    Seed,
    Source,
)
from jitgrad.state import abstract_mode
from jitgrad.storage import Storage
from jitgrad.tape.node import edge_of, next_seq
from jitgrad.tape.views import put_chain
from jitgrad.tensor import Size, Tensor, static_type, wrap
from jitgrad.userline import user_line

Found = tuple[Source, Tensor]
"""Where a storage is reached, and the tensor that is there."""


class Finder(Protocol):
    """What the recorder asks of whoever knows arguments and Python state."""

    def storage(self, storage: Storage) -> Found | None:
        """A tensor on this storage that later calls will find, too."""

    def owner(self, owner: Any) -> Owner | None:
        """Where later calls find the object whose slot is read or rebound."""

    def array(self, array: np.ndarray[Any, Any]) -> Source | None:
        """Where a NumPy array is found."""

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


@dataclass
class Trace:
    """What was recorded. `entries` are the graph's inputs, in order.

    rebinds: (owner, key, result or None). slots: (owner, key, facts of the tensor or None), read
    before they were set. draws: per generator. special: names of lifted numbers whose value is
    guarded.
    """

    graph: Graph
    entries: list[Entry]
    structure: Structure
    results: list[Result]
    rebinds: list[tuple[Owner, Any, Result | None]]
    slots: list[tuple[Owner, str, Any]]
    draws: dict[Any, int]
    special: dict[Any, float]
    pair: Pair | None = None


class GraphTensor:
    """A graph value with the face that records call (`_bind`, shape, dtype, device)."""

    __slots__ = ("line", "recorder", "value")

    def __init__(self, recorder: Recorder, value: Value, line: str) -> None:
        self.recorder, self.value, self.line = recorder, value, line

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.value.type.shape

    @property
    def dtype(self) -> Any:
        return self.value.type.dtype

    @property
    def device(self) -> str:
        return self.value.type.device

    @property
    def ndim(self) -> int:
        return len(self.value.type.shape)

    def _bind(self, op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        add = self.recorder.graph.add_node
        inputs = []
        for x in operands:
            if not isinstance(x, GraphTensor):
                number = {"shape": (), "value": x, "dtype": self.dtype, "device": self.device}
                x = GraphTensor(self.recorder, add(OPS["full"], (), number)[0], self.line)
            inputs.append(x.value)
        made = [
            GraphTensor(self.recorder, v, self.line)
            for v in add(op, inputs, plain_attrs(attrs), self.line)
        ]
        return made[0] if op.nout == 1 else tuple(made)


class Recorder:
    """Builds the Graph of one call. See jitgrad/dispatch.py for the protocol.

    Attributes: `reason`, why the recording was given up ("" while it is good), and `line`, where.
    """

    def __init__(self, name: str, finder: Finder) -> None:
        self.graph = Graph(name=name)
        self.finder = finder
        self.reason = ""
        self.line = ""
        self.entries: list[Entry] = []
        self._values: dict[Storage, Value] = {}
        self._entry: dict[Storage, Entry] = {}
        self._counts: dict[Storage, int] = {}
        self._hidden: dict[Storage, int] = {}
        self._views: dict[Any, tuple[int, Any, Value]] = {}
        self._slots: dict[tuple[int, str], tuple[Any, Owner, Tensor | None]] = {}
        self._grads: dict[Storage, Found] = {}
        self._rebinds: dict[tuple[int, Any], tuple[Any, Owner, Any]] = {}
        self._draws: dict[Any, int] = {}
        self._seeds: dict[int, Tensor] = {}
        self._lifted: dict[int, tuple[HostScalar, Tensor]] = {}
        self._numbers: dict[tuple[int, Any], HostScalar] = {}
        self._keep: list[Any] = []
        self._made: list[tuple[weakref.ref[Tensor], str]] = []
        self._strangers: list[tuple[weakref.ref[Tensor], str]] = []
        self._copies: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self.special: dict[Any, float] = {}
        self.first_node = next_seq()

    def give_up(self, reason: str, line: str = "") -> None:
        """Ends the recording. The first reason stands."""
        if not self.reason:
            self.reason, self.line = reason, line

    # -- the protocol --------------------------------------------------------------------------
    def op(
        self, op: Any, operands: Sequence[Tensor], attrs: dict[str, Any], outputs: Any, line: str
    ) -> None:
        if self.reason:
            return
        for y in outputs:
            self._made.append((weakref.ref(y), line))
        if op.view and outputs[0]._storage is operands[0]._storage:
            return  # derived from the storage's value whenever it is read
        inputs = [self.value_of(x, line) for x in operands]
        if self.reason:
            return
        values = self.graph.add_node(op, inputs, plain_attrs(attrs), line)
        for y, v in zip(outputs, values, strict=True):
            if tuple(v.type.shape) != tuple(y._type.shape) or v.type.dtype is not y._type.dtype:
                self.give_up(f"{op.name} gave {y._type}, where its types say {v.type}", line)
                return
            self._values[y._storage] = v

    def write(self, target: Tensor, value: Tensor, line: str) -> None:
        if self.reason:
            return
        new = self.value_of(value, line)
        storage = target._storage
        old = self._root(target, line)
        if self.reason:
            return
        chain = self._suffix(target, line)
        if chain:
            assert old is not None
            update = GraphTensor(self, new, line)
            new = put_chain(GraphTensor(self, old, line), chain, update).value
        if self.reason:
            return
        self._values[storage] = new
        self._counts[storage] = self._counts.get(storage, 0) + 1
        if target._view is not None and target._view.hidden:
            self._hidden[storage] = self._hidden.get(storage, 0) + 1

    def rebind(self, owner: Any, key: Any, value: Any) -> None:
        if self.reason:
            return
        where = self.finder.owner(owner)
        if where is None and not isinstance(owner, Tensor):
            self.give_up(f"sets {key!r} of an object that is reached in no way jit can follow")
            return
        if key == "requires_grad" or key == "data":
            if where is not None or owner._storage in self._entry:
                self.give_up(f"sets .{key} of a tensor that it did not make")
            return
        if where is None:  # a tensor made here, or the trace is given up at the end
            self._stranger(owner, f"sets .{key} of")
            return
        if isinstance(value, Tensor):
            self._keep.append(value)
        self._rebinds[id(owner), key] = (owner, where, value)

    def slot_read(self, owner: Any, key: str) -> None:
        if self.reason or (id(owner), key) in self._slots or (id(owner), key) in self._rebinds:
            return
        where = self.finder.owner(owner)
        grad = owner._grad
        if where is None:
            if grad is not None:
                self._stranger(owner, f"reads .{key} of")
            return
        self._slots[id(owner), key] = (owner, where, grad)
        if grad is not None:
            self._grads[grad._storage] = (Grad(where), grad)

    def raw_read(self, tensor: Tensor, what: str) -> None:
        line = _here()
        kind = {"item": "a number", "bool": "a bool"}.get(what, "an array")
        self.give_up(f"reads a tensor's value in Python ({what}, {kind} of {tensor._type})", line)

    def constant(self, tensor: Tensor, array: Any) -> None:
        if self.reason:
            return
        data = tensor._data
        source: Source | None = None
        if isinstance(array, np.ndarray):
            source = self.finder.array(array)
            if source is None:
                self._copies.append((data, data.copy()))
        self._made.append((weakref.ref(tensor), _here()))
        if source is None:
            source = Constant(data.copy())
            self._add_entry("state", source, tensor, source.array)
        else:
            self._add_entry("state", source, tensor, data)

    def draw(self, generator: Any) -> tuple[Tensor, Tensor]:
        seed, number = draw_tensors(generator.initial_seed(), generator.advance())
        if self.reason:
            return seed, number
        offset = self._draws.get(generator, 0)
        self._draws[generator] = offset + 1
        known = self._seeds.get(id(generator))
        if known is None:
            self._seeds[id(generator)] = seed
            self._add_entry("scalar", Seed(generator), seed, seed._data)
        else:
            seed = known
        self._add_entry("scalar", Draw(generator, offset), number, number._data)
        return seed, number

    def lift(self, scalar: HostScalar) -> Tensor:
        known = self._lifted.get(id(scalar))
        if known is not None:
            return known[1]
        out = wrap(np.array(scalar.value, np.float64), static_type((), dtypes.float64))
        if not self.reason:
            self._lifted[id(scalar)] = (scalar, out)
            self._add_entry("scalar", Number(scalar), out, out._data)
        return out

    def specialise(self, scalar: HostScalar) -> None:
        for leaf in leaves_of(scalar):
            self.special[leaf.name] = leaf.value

    def lift_number(self, value: float, owner: Any, key: Any) -> Any:
        if self.reason:
            return value
        name = (id(owner), key)
        known = self._numbers.get(name)
        if known is None:
            if not self.finder.number(owner, key):
                return value
            self._keep.append(owner)
            known = self._numbers[name] = HostScalar(value, name, self)
        return known

    # -- values --------------------------------------------------------------------------------
    def value_of(self, x: Tensor, line: str) -> Value:
        """The graph value of a tensor now. After giving up, any value."""
        value = self._root(x, line)
        if value is None:
            return _NOTHING
        storage = x._storage
        count = self._counts.get(storage, 0)
        for n, step in enumerate(chain := self._suffix(x, line)):
            key = (storage, tuple(map(id, chain[: n + 1])))
            cached = self._views.get(key)
            if cached is None or cached[0] != count:
                op, attrs = step
                value = self.graph.add(op, value, line=line, **plain_attrs(attrs))
                cached = self._views[key] = (count, chain, value)
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
                line or _here(),
            )
            return None
        source, tensor = found
        kind = "arg" if isinstance(source, Arg) else "state"
        return self._add_entry(kind, source, tensor, tensor._data)

    def _add_entry(
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
        self._entry[storage] = entry
        self._values[storage] = value
        return entry

    def _name(self, source: Source) -> str:
        name = self.finder.name(source) or type(source).__name__.lower()
        taken = {item.name for item in self.graph.inputs}
        unique, n = name, 1
        while unique in taken:
            n += 1
            unique = f"{name}#{n}"
        return unique

    def _suffix(self, x: Tensor, line: str) -> Any:
        """The view ops from the graph's value of the storage to x."""
        entry = self._entry.get(x._storage)
        if entry is None or not entry.base:
            return x._chain
        assert entry.tensor is not None
        base = entry.tensor._chain
        if len(x._chain) < len(base) or any(
            a is not b for a, b in zip(base, x._chain, strict=False)
        ):
            self.give_up("uses two tensors that show different parts of one storage", line)
            return ()
        return x._chain[len(base) :]

    def _stranger(self, owner: Tensor, what: str) -> None:
        self._strangers.append((weakref.ref(owner), what))

    # -- the end -------------------------------------------------------------------------------
    def finish(self, result: Any, recording: Callable[[], AbstractContextManager[Any]]) -> Any:
        """The trace of a call that returned `result`; None when recording was given up.

        recording: a context in which this recorder is told of what runs.
        """
        if self.reason:
            return None
        leaves, structure = flatten(result)
        roots = _Roots(self)
        results = [self._result(x, roots) for x in leaves]
        rebinds: list[tuple[Owner, Any, Result | None]] = []
        for (_, key), (_, where, value) in self._rebinds.items():
            if isinstance(value, Tensor):
                if value._node is not None:
                    self.give_up("keeps a tensor that is on the tape (create_graph)")
                out = self._result(value, roots)
                if isinstance(out, SameResult) and self.finder.holds(where, key, out.source):
                    continue  # it holds what it held
                rebinds.append((where, key, out))
            else:
                rebinds.append((where, key, None))
        del leaves
        if self.reason:
            return None
        self._check_strangers()
        self._check_writes()
        if self.reason:
            return None
        pair = None
        if roots.tensors:
            if roots.shared():
                self.give_up("returns two tensors on the same memory, one of them on the tape")
                return None
            pair = self._differentiate(roots, recording)
            if pair is None:
                return None
        return self._trace(structure, results, rebinds, roots, pair)

    def _differentiate(
        self, roots: _Roots, recording: Callable[[], AbstractContextManager[Any]]
    ) -> Pair | None:
        """Records the backward of the results that are on the tape, without data."""
        graph, outputs = self.graph, roots.tensors
        targets = self._targets(outputs)
        if self.reason or not targets:
            self.give_up("returns tensors on the tape of no input")
            return None
        forward = len(graph.nodes)
        seeds = [wrap(None, y._type) for y in outputs]
        cotangents = [Value(plain_type(y._type), name=f"cotangent{i}")
                      for i, y in enumerate(outputs)]  # fmt: skip
        self._values.update(zip((s._storage for s in seeds), cotangents, strict=True))
        try:
            with recording(), abstract_mode():
                found = grad(
                    outputs, [e.tensor for e in targets if e.tensor is not None], seeds,
                    retain_graph=True, allow_unused=True,
                )  # fmt: skip
        except Exception as error:
            self.give_up(f"returns a tensor whose backward cannot be recorded: {error}")
        if self.reason:
            return None
        grads = [None if g is None else self.value_of(g, "") for g in found]
        del found, seeds
        reverse = graph.nodes[forward:]
        del graph.nodes[forward:]
        backward, kept, places = split(reverse, cotangents, grads, f"{graph.name}_backward")
        inputs = {e.value: i for i, e in enumerate(self.entries)}
        sources: list[tuple[str, int]] = []
        for v in kept:
            entry = self.entries[inputs[v]] if v in inputs else None
            if entry is not None and self._values[entry.storage] is v:
                sources.append(("input", inputs[v]))
            else:  # made by the forward, or overwritten by it
                have = roots.values.index(v) if v in roots.values else roots.add_value(v)
                sources.append(("result", have))
        return Pair(
            backward, [e.source for e in targets], places, sources, [c.type for c in cotangents],
            [e.value for e in self.entries], list(graph.nodes), reverse, cotangents, grads,
            [self.entries.index(e) for e in targets],
        )  # fmt: skip

    def _targets(self, outputs: Sequence[Tensor]) -> list[Entry]:
        """The inputs that gradients of the outputs go to."""
        by_edge: dict[tuple[int, int], Entry] = {}
        for e in self.entries:
            if e.tensor is not None and e.tensor.requires_grad:
                edge, slot = edge_of(e.tensor)
                by_edge[id(edge), slot] = e
        found: dict[int, Entry] = {}
        seen: set[int] = set()
        stack: list[Any] = [edge_of(y) for y in outputs]
        while stack:
            edge, slot = stack.pop()
            entry = by_edge.get((id(edge), slot))
            if entry is not None:
                found[id(entry)] = entry
                hooked = edge._hooks if isinstance(edge, Tensor) else edge.hooks
                if hooked:
                    self.give_up("returns a tensor that depends on an input with hooks")
                continue
            if edge is None or id(edge) in seen:
                continue
            if isinstance(edge, Tensor) or edge.seq < self.first_node:
                self.give_up(
                    "returns a tensor that depends on a leaf which is neither an argument nor "
                    "captured state"
                )
                break
            seen.add(id(edge))
            stack.extend(zip(edge.edges, edge.slots, strict=True))
        return [e for e in self.entries if id(e) in found]

    def _trace(
        self, structure: Structure, results: Any, rebinds: Any, roots: _Roots, pair: Pair | None
    ) -> Trace:
        graph = self.graph
        in_results = {r.index for r in results if isinstance(r, FreshResult)}
        order = sorted(range(len(roots.values)), key=lambda i: (i not in in_results, i))
        place = {old: new for new, old in enumerate(order)}
        values = roots.distinct()
        for old in order:
            if old in in_results:
                graph.outputs.append(values[old])
            else:
                graph.rebinds.append(Rebind(f"slot:{old}", "value", values[old]))

        def placed(r: Any) -> Any:
            if isinstance(r, FreshResult):
                return replace(r, index=place[r.index])
            return r

        if pair is not None:
            pair.kept = [(k, place[i] if k == "result" else i) for k, i in pair.kept]

        for i, entry in enumerate(self.entries):
            value = self._values[entry.storage]
            entry.writes = self._counts.get(entry.storage, 0)
            entry.hidden_writes = self._hidden.get(entry.storage, 0)
            if value is not entry.value and not isinstance(entry.source, Constant):
                graph.writes.append(Write(i, value))
        return Trace(
            graph,
            self.entries,
            structure,
            [placed(r) for r in results],
            [(where, key, placed(r)) for where, key, r in rebinds],
            [(where, key, leaf_facts(grad)) for (_, key), (_, where, grad) in self._slots.items()],
            dict(self._draws),
            self.special,
            pair,
        )

    def _result(self, x: Any, roots: _Roots) -> Result:
        if isinstance(x, HostScalar):
            self.specialise(x)
            return ConstantResult(x.value)
        if not isinstance(x, Tensor):
            if not self.finder.is_known(x):
                self.give_up(
                    f"returns an object of class {type(x).__name__} that it made; return tensors "
                    "in tuples, lists, dicts or dataclasses, or register the class with "
                    "jitgrad.pytree.register"
                )
            return ConstantResult(x)
        where = self.finder.owner(x)
        if where is not None:
            return SameResult(where)
        grad = self._grads.get(x._storage)
        if grad is not None and grad[1] is x:
            return SameResult(grad[0])
        if type(x) is not Tensor:
            self.give_up(f"returns a {type(x).__name__} that it made")
        if x._hooks or x._grad is not None:
            self.give_up("returns a tensor that it made with hooks or a .grad")
        storage = x._storage
        if storage not in self._values:
            self.entry_of(x)
            if self.reason:
                return ConstantResult(None)
        entry = self._entry.get(storage)
        chain = self._suffix(x, "")
        requires_grad = x.requires_grad
        if entry is not None and entry.kind != "scalar" and not isinstance(entry.source, Constant):
            if requires_grad and x._node is not None and not self._is_view_of(x, entry):
                self.give_up("returns an input's memory, changed by operations on the tape")
            if isinstance(entry.source, Captured) and entry.source.item.kind == "array":
                self.give_up("returns a tensor on the memory of a NumPy array that it did not make")
            return AliasResult(entry.source, chain, requires_grad)
        number = roots.number(x)
        if x._node is None or not requires_grad:
            return FreshResult(roots.add(storage), chain, requires_grad, number)
        if chain:  # the compiled node makes what the view shows, on memory of its own
            index, chain = roots.add_value(self.value_of(x, "")), ()
            roots.apart.append(storage)
        else:
            index = roots.add(storage)
        return FreshResult(index, chain, False, number, roots.slot(x))

    def _is_view_of(self, x: Tensor, entry: Entry) -> bool:
        """Whether the same views of the input, made anew, have x's place on the tape."""
        base = entry.tensor
        return (
            base is not None
            and x._view is not None
            and x._view.base is (base if base._base is None else base._base)
            and x._view.tracked
            and not self._counts.get(entry.storage)
        )

    def _check_writes(self) -> None:
        written = [e for e in self.entries if self._values[e.storage] is not e.value]
        for e in self.entries:
            if e.tensor is None:
                continue
            if e.tensor._node is not e.node or e.tensor.requires_grad != e.requires_grad:
                self.give_up("writes values that require grad into a tensor that it did not make")
            if isinstance(e.source, Constant):
                continue
            for w in written:
                if w is not e and np.may_share_memory(w.array, e.array):
                    self.give_up(
                        f"writes to {self.graph.inputs[self.entries.index(w)].name!r}, which "
                        "overlaps another tensor's memory, but is another storage"
                    )
        for array, copy in self._copies:
            if array.tobytes() != copy.tobytes():
                self.give_up("changes a NumPy array after it was made a tensor")

    def _check_strangers(self) -> None:
        for ref, what in self._strangers:
            if ref() is not None:
                self.give_up(f"{what} a tensor that is reached in no way jit can follow")

    def escaped(self, result: Any) -> tuple[TensorType, str] | None:
        """A traced tensor that something outside still holds: its type and source line."""
        results = [*flatten(result)[0], *(v for _, _, v in self._rebinds.values())]
        keep = {id(x) for x in results}
        keep |= {id(x._base) for x in results if isinstance(x, Tensor)}  # views hold their base
        del results
        self._keep.clear()
        for attempt in range(2):
            alive = [
                (x._type, line)
                for ref, line in self._made
                if (x := ref()) is not None and id(x) not in keep
            ]
            if not alive:
                return None
            if attempt == 0:
                gc.collect()
        return alive[0]


class _Roots:
    """The storages of results that are new memory, each once; and other values to be kept.

    Attributes: `values`, what the run must give; `tensors`, the results on the tape, by slot;
    `apart`, storages whose results on the tape got memory of their own.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.values: list[Value] = []
        self.tensors: list[Tensor] = []
        self.apart: list[Storage] = []
        self._index: dict[Storage, int] = {}
        self._numbers: dict[int, tuple[int, Tensor]] = {}

    def add(self, storage: Storage) -> int:
        if storage not in self._index:
            self._index[storage] = self.add_value(self.recorder._values[storage])
        return self._index[storage]

    def add_value(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def number(self, x: Tensor) -> int:
        return self._numbers.setdefault(id(x), (len(self._numbers), x))[0]

    def slot(self, x: Tensor) -> int:
        for i, y in enumerate(self.tensors):
            if x is y:
                return i
        self.tensors.append(x)
        return len(self.tensors) - 1

    def shared(self) -> bool:
        """Whether a storage of `apart` has another result."""
        return len(set(self.apart)) < len(self.apart) or any(s in self._index for s in self.apart)

    def distinct(self) -> list[Value]:
        """The values, copied where one is an input or stands for two storages."""
        graph = self.recorder.graph
        taken = {item.value for item in graph.inputs}
        out = []
        for v in self.values:
            if v in taken:
                v = graph.add(OPS["clone"], v)
            taken.add(v)
            out.append(v)
        return out


_NOTHING = Value(TensorType((), dtypes.float32))


def leaves_of(scalar: HostScalar) -> list[HostScalar]:
    """The lifted numbers that an expression is made of."""
    found: dict[int, HostScalar] = {}
    stack = [scalar]
    while stack:
        x = stack.pop()
        if id(x) in found:
            continue
        found[id(x)] = x
        if x.expr is not None:
            stack.extend(o for o in x.expr[1] if isinstance(o, HostScalar))
    return [x for x in found.values() if x.expr is None]


def plain_type(t: TensorType) -> TensorType:
    """The type with a plain tuple and a plain str, as graphs have it."""
    return TensorType(tuple(t.shape), t.dtype, str.__str__(t.device))


def plain_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes with plain tuples and strs."""
    out = {}
    for name, value in attrs.items():
        if type(value) is Size or type(value) is list:
            value = tuple(value)
        elif isinstance(value, str) and type(value) is not str:
            value = str.__str__(value)
        out[name] = value
    return out


def _here() -> str:
    return user_line(3)
