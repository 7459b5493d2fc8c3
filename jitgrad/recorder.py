"""Recorder: what dispatch reports while a function runs eagerly becomes a Graph.

Owns what each call of the protocol does to the graph: ops, writes through views, slots, draws; the
description of results, and recording their backward. Which value a storage has is values.py, what
Python looks at looks.py. It gives up (`reason`) where recording cannot say what a later call would
do; the function has then simply run eagerly. Python state: see watch.py.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np

from jitgrad.autograd.engine import grad
from jitgrad.compiler.graph_tensor import GraphTensor
from jitgrad.compiler.ir import Graph, Rebind, Value, Write
from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.compiler.types import TensorType
from jitgrad.effects import typed
from jitgrad.facts import place_facts
from jitgrad.hostscalar import Comparison, HostScalar, plain
from jitgrad.layouts import order_of_memory, root_order
from jitgrad.looks import Looks
from jitgrad.pair import Pair, follow_from, saved_values, split, without_hooks
from jitgrad.pytree import Structure, flatten
from jitgrad.random import draw_tensors
from jitgrad.replay_support import clash
from jitgrad.results import Roots
from jitgrad.settling import settle
from jitgrad.sizes import has_sizes, is_size, to_plain
from jitgrad.sources import (
    SPENT,
    AliasResult,
    Captured,
    Constant,
    ConstantResult,
    Draw,
    FreshResult,
    Grad,
    HostResult,
    NumberResult,
    Owner,
    Result,
    SameResult,
    Seed,
    SizeResult,
    Source,
    is_array,
)
from jitgrad.state import abstract_mode, state, unwatched
from jitgrad.storage import Storage
from jitgrad.stores import Store
from jitgrad.symbols import Symbols
from jitgrad.tape.node import edge_of, held_by_tape, next_seq, nodes_of
from jitgrad.tape.views import put_chain
from jitgrad.tensor import Tensor, wrap
from jitgrad.tree import Cut, Leaf
from jitgrad.values import (
    Counts,
    Entry,
    Finder,
    here,
    known_types,
    plain_attrs,
    plain_type,
)


@dataclass
class Trace:
    """What was recorded. `entries` are the graph's inputs, in order.

    rebinds: (owner, key, result or None). slots: (owner, key, facts of the tensor or None), read
    before they were set. draws: per generator. special: lifted numbers, by name, whose value (or,
    by a Truth, being zero) is guarded; comparisons: of such numbers, whose outcome is. places:
    tensors whose place in memory (place_facts) is.
    later: (owner, method), called in Python after each run; left: the objects whose attributes are
    then Python's, and the dicts that it changes.
    cuts: the values that Python looked at; leaf: the trace's place in the tree, then.
    stores: what Python state gets, beside tensors. backward_inside: whether the function ran the
    tape itself (so that hooks count). seconds: what the recorded call took. sized: whether the
    graph has symbolic sizes; those of the call may matter to Python alone. view_lines: where the
    steps of results' chains were made, by id.
    """

    graph: Graph
    entries: list[Entry]
    structure: Structure
    results: list[Result]
    rebinds: list[tuple[Owner, Any, Result | None]]
    slots: list[tuple[Owner, str, Any]]
    draws: dict[Any, int]
    special: dict[Any, Any]
    comparisons: list[Comparison]
    places: list[tuple[Owner, Any]]
    cuts: list[Cut]
    later: list[tuple[Owner, str]]
    left: tuple[list[Any], list[dict[str, Any]]]
    stores: list[Store]
    backward_inside: bool = False
    seconds: float = 0.0
    pair: Pair | None = None
    sized: bool = False
    view_lines: dict[int, str] = field(default_factory=dict)
    leaf: Leaf | None = None

    def items(self) -> set[int]:
        """The numbers of the items of Python state that replay reads."""
        found: list[Any] = [e.source for e in self.entries]
        found += [where for where, _, _ in [*self.rebinds, *self.slots]]
        found += [where for where, _ in self.places]
        found += [where for where, _ in self.later]
        found += [Captured(s.item) for s in self.stores]
        results = [*self.results, *(r for _, _, r in self.rebinds)]
        results += [r for s in self.stores for rs in s.results for r in rs]
        found += [r.source for r in results if isinstance(r, (SameResult, AliasResult))]
        found = [x.owner if isinstance(x, Grad) else x for x in found]
        return {x.item.number for x in found if isinstance(x, Captured)}


class Recorder(Looks):
    """Builds the Graph of one call. See jitgrad/dispatch.py for the protocol.

    Attributes: `reason`, why the recording was given up ("" while it is good), and `line`, where.
    """

    def __init__(self, name: str, finder: Finder, symbols: Symbols | None = None) -> None:
        super().__init__(name, finder)
        self.symbols = Symbols() if symbols is None else symbols
        self.graph.env = self.symbols.env
        self._hidden = Counts()  # writes through .data
        self._slots: dict[tuple[int, str], tuple[Any, Owner, Tensor | None]] = {}
        self._rebinds: dict[tuple[int, Any], tuple[Any, Owner, Any]] = {}
        self._flags: dict[int, tuple[Tensor, Owner, bool]] = {}  # requires_grad, as it was
        self._draws: dict[Any, int] = {}
        self._seeds: dict[int, Tensor] = {}
        self.casts: dict[Any, Any] = {}
        self._made: list[tuple[weakref.ref[Tensor], str]] = []
        self._strangers: list[tuple[weakref.ref[Tensor], str]] = []
        self._leaves: list[
            weakref.ref[Tensor]
        ] = []  # strangers that only the tape of results holds
        self._copies: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._guarded: dict[Any, tuple[Owner, Any]] = {}
        self.later: list[tuple[Owner, str]] = []
        self.first_node = next_seq()
        self._ran_backward = False

    # -- the protocol --------------------------------------------------------------------------
    def op(
        self, op: Any, operands: Sequence[Tensor], attrs: dict[str, Any], outputs: Any, line: str
    ) -> None:
        if self.reason:
            return
        if state.backward is not None:
            self._ran_backward = True
            forward = "" if state.backward.node is None else state.backward.node.line
            line = f"{forward} (backward)" if forward else line
        for y in outputs:
            self._made.append((weakref.ref(y), line))
        if op.view and outputs[0]._storage is operands[0]._storage:
            if outputs[0]._chain:
                self.view_lines[id(outputs[0]._chain[-1])] = line
            return  # derived from the storage's value whenever it is read
        inputs = [self.value_of(x, line) for x in operands]
        if self.reason:
            return
        types = known_types(operands, inputs, outputs)
        values = self.graph.add_node(op, inputs, plain_attrs(attrs), line, types)
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
        _, chain = self._place(target, line)
        if storage in self._parts:
            self.give_up(
                "writes to one of two tensors that show different parts of one storage", line
            )
            return
        if chain:
            assert old is not None
            update = GraphTensor(self.graph, new, line)
            try:
                new = put_chain(GraphTensor(self.graph, old, line), chain, update).value
            except RuntimeError as error:  # part of a view that shows elements twice
                self.give_up(str(error))
        if self.reason:
            return
        self._values[storage] = new
        self._counts.add(storage)
        if target._view is not None and target._view.hidden:
            self._hidden.add(storage)

    def rebind(self, owner: Any, key: Any, value: Any) -> None:
        if self.reason:
            return
        if key == "data" and value._storage is owner._storage and value._chain == owner._chain:
            return  # w.data -= step: the memory that it has, written in place
        where = self.finder.owner(owner)
        if where is None and not isinstance(owner, Tensor):
            self.give_up(f"sets {key!r} of an object that is reached in no way jit can follow")
            return
        if key == "requires_grad" or key == "data":
            if where is not None and key == "requires_grad":
                self._flags.setdefault(id(owner), (owner, where, owner._requires_grad))
            elif where is None and key == "requires_grad" and owner._storage in self._entry:
                self._stranger(owner, f"sets .{key} of")  # an alias made here (detach), else kept
            elif where is not None or owner._storage in self._entry:
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
        if grad is not None and isinstance(owner, Tensor):
            self.symbols.lend_grad(owner, grad)
        self._slots[id(owner), key] = (owner, where, grad)
        if grad is not None:
            self._grads[grad._storage] = (Grad(where), grad)

    def tape_read(self, node: Any) -> None:
        if node.seq < self.first_node:
            self.give_up("asks for the grad_fn of a tensor that it did not make", here())

    def layout_read(self) -> None:
        self.symbols.fix()

    def sizes_fixed(self, frame: FrameType) -> bool:
        return bool(self.symbols) and typed(frame)

    def memory_read(self, asked: Tensor | Storage, what: str) -> None:
        self.layout_read()
        storage = asked if isinstance(asked, Storage) else asked._storage
        if self.reason or (storage in self._values and storage not in self._entry):
            return  # made here: the same at each call
        line = here()
        found = self._grads.get(storage) or self.finder.storage(storage)
        if found is None and storage not in self._entry:
            self.give_up(f"asks a tensor that jit cannot follow for its {what}", line)
            return
        sources: list[tuple[Any, Tensor]] = [found] if found is not None else []
        if isinstance(asked, Tensor):
            owner = self.finder.owner(asked)
            if owner is not None:
                sources.append((owner, asked))
            else:
                if found is not None:
                    self.entry_of(found[1], line)
                entry, _ = self._place(asked, line)
                if entry is not None and entry.tensor is not None:
                    sources.append((entry.source, entry.tensor))
        for source, tensor in sources:
            if isinstance(source, Grad):
                self.give_up(f"asks a .grad for its {what}", line)
            elif isinstance(tensor, Tensor):
                self._guarded.setdefault(id(tensor), (source, place_facts(tensor)))

    def constant(self, tensor: Tensor, array: Any) -> None:
        if self.reason:
            return
        data = tensor._data
        source: Source | None = None
        if isinstance(array, np.ndarray):
            source = self.finder.array(array)
            if source is None:
                self._copies.append((data, data.copy()))
        self._made.append((weakref.ref(tensor), here()))
        if source is None:
            source = Constant(data.copy())
            self._add_entry("state", source, tensor, source.array)
        else:
            self._add_entry("state", source, tensor, data)

    def draw(self, generator: Any) -> tuple[Tensor, Tensor]:
        return self.draw_block(generator, 1)

    def draw_block(self, generator: Any, count: int) -> tuple[Tensor, Tensor]:
        """Seed and first of `count` draws, one after another."""
        seed, number = draw_tensors(generator._seed, generator.advance(count))
        if self.reason:
            return seed, number
        offset = self._draws.get(generator, 0)
        self._draws[generator] = offset + count
        known = self._seeds.get(id(generator))
        if known is None:
            self._seeds[id(generator)] = seed
            self._add_entry("scalar", Seed(generator), seed, seed._data)
        else:
            seed = known
        self._add_entry("scalar", Draw(generator, offset), number, number._data)
        return seed, number

    def call_later(
        self, owner: Any, method: str, objects: Sequence[Any], changes: Sequence[dict[str, Any]]
    ) -> bool:
        """Whether owner.method() can be left to Python, after each run; it is then called now, off
        the record. It may do nothing but change attributes of `objects`, and set numbers in the
        dicts `changes`, which the function must not read any more."""
        where = None if self.reason or state.abstract else self.finder.owner(owner)
        if where is None or any(isinstance(v, Tensor) for d in changes for v in dict.values(d)):
            return False
        self.finder.end_lending()  # Python computes with what it finds
        self.later.append((where, method))
        self._left[0].extend(objects)
        self._left[1].extend(changes)
        state.recorder = None
        try:
            unwatched(getattr(owner, method))
        finally:
            state.recorder = self
        return True

    def begin_before(self, state_of: dict[Any, Any], make: Callable[[], None]) -> None:
        """make() puts tensors into `state_of`, a dict of dicts of our own class, by types alone: it
        runs off the record, as if before the call, so that the trace is good for the next call."""
        if self.reason or state.abstract:
            return
        state.recorder = None
        try:
            unwatched(make)
        finally:
            state.recorder = self
        self.finder.begun(state_of)

    def postpone(self) -> None:
        self.postponed = True
        self.give_up("makes its state in the first call")

    def _stranger(self, owner: Tensor, what: str) -> None:
        self._strangers.append((weakref.ref(owner), what))

    # -- the end -------------------------------------------------------------------------------
    def finish(
        self, result: Any, recording: Callable[[], AbstractContextManager[Any]],
        stores: Sequence[Store] = (),
    ) -> Any:  # fmt: skip
        """The trace of a call that returned `result`; None when recording was given up.

        recording: a context in which this recorder is told of what runs. stores: what the call has
        left in Python state.
        """
        if self.reason:
            return None
        self.backward_inside = self._ran_backward
        leaves, structure = flatten(result)
        roots = Roots(self)
        stored = [[flatten(v) for v in s.values] for s in stores]
        numbers = [x for x in leaves if _is_seen(x)]
        numbers += [x for found in stored for xs, _ in found for x in xs if _is_seen(x)]
        if numbers or any(type(x) is slice for x in leaves):
            with recording():
                for x in numbers:
                    self.lift(x)
                leaves = [plain(x) if type(x) is slice else x for x in leaves]
        results = [self._result(x, roots) for x in leaves]
        rebinds: list[tuple[Owner, Any, Result | None]] = []
        for (_, key), (_, where, value) in self._rebinds.items():
            if isinstance(value, Tensor):
                if value._node is not None and key == "grad":
                    self.give_up("keeps a tensor that is on the tape (create_graph)")
                out = self._result(value, roots)
                if isinstance(out, SameResult) and self.finder.holds(where, key, out.source):
                    continue  # it holds what it held
                rebinds.append((where, key, out))
            else:
                rebinds.append((where, key, None))
        for store, found in zip(stores, stored, strict=True):
            store.structures = [s for _, s in found]
            store.results = [[self._result(x, roots) for x in xs] for xs, _ in found]
        del leaves, stored, numbers
        for owner, where, before in self._flags.values():
            if owner._requires_grad != before:
                rebinds.append((where, "requires_grad", ConstantResult(owner._requires_grad)))
            if not before and roots.tensors:  # the tape node is made before flags are set
                self.give_up("returns a tensor on the tape, and makes one that it got require grad")
        if self.reason:
            return None
        self._check_strangers(result)
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
        return self._trace(structure, results, rebinds, [*stores], roots, pair)

    def _differentiate(
        self, roots: Roots, recording: Callable[[], AbstractContextManager[Any]]
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
        for seed, cotangent in zip(seeds, cotangents, strict=True):
            self._values[seed._storage] = cotangent
        try:
            with recording(), abstract_mode(), without_hooks(e.tensor for e in targets):
                found = grad(
                    outputs, [e.tensor for e in targets if e.tensor is not None], seeds,
                    retain_graph=True, allow_unused=True,
                )  # fmt: skip
        except Exception as error:
            self.give_up(f"returns a tensor whose backward cannot be recorded: {error}")
        if self.reason:
            return None
        grads: list[Value | None] = [None if g is None else self.value_of(g, "") for g in found]
        del found, seeds
        reverse = graph.nodes[forward:]
        del graph.nodes[forward:]
        inputs = {e.value: i for i, e in enumerate(self.entries)}
        held = {e.value for e in self.entries if self._now(e) is e.value}
        backward, kept, places = split(
            graph.nodes, reverse, cotangents, grads, held, roots.values,
            f"{graph.name}_backward", graph.env,
        )  # fmt: skip
        saved = saved_values(v for n in reverse for v in n.inputs)
        sources: list[tuple[str, int]] = []
        for v in kept:
            if v in held and v in saved:
                sources.append(("input", inputs[v]))
            else:  # made by the forward, overwritten by it, or not to be kept as it is
                known = v in roots.values and v in saved
                have = roots.values.index(v) if known else roots.add_value(v)
                sources.append(("result", have))
        return Pair(
            backward, [e.source for e in targets], places, sources, [c.type for c in cotangents],
            [e.value for e in self.entries], list(graph.nodes), reverse, cotangents, grads,
            [self.entries.index(e) for e in targets], kept,
            follow_from(kept, {e.value for e in self.entries if isinstance(e.source, Constant)}),
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
        self, structure: Structure, results: Any, rebinds: Any, stores: list[Store], roots: Roots,
        pair: Pair | None,
    ) -> Trace:  # fmt: skip
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
            if isinstance(r, (FreshResult, NumberResult)):
                return replace(r, index=place[r.index])
            return r

        if pair is not None:
            pair.kept = [(k, place[i] if k == "result" else i) for k, i in pair.kept]

        sized = bool(graph.env.hints) and (
            _is_sized(graph) or (pair is not None and _is_sized(pair.backward))
        )
        if self.symbols and not sized:
            graph.env = ShapeEnv()
            if pair is not None:
                pair.backward.env = graph.env
        for store in stores:
            store.results = [[placed(r) for r in rs] for rs in store.results]
        for i, entry in enumerate(self.entries):
            value = self._now(entry)
            entry.writes = self._counts.of(entry.storage)
            entry.hidden_writes = self._hidden.of(entry.storage)
            if value is not entry.value and not isinstance(entry.source, Constant):
                graph.writes.append(Write(i, value))
        return Trace(
            graph,
            self.entries,
            structure,
            [placed(r) for r in results],
            [(where, key, placed(r)) for where, key, r in rebinds],
            [
                (where, key, self.symbols.facts(grad))
                for (_, key), (_, where, grad) in self._slots.items()
            ],
            dict(self._draws),
            self.special,
            list(self.comparisons.values()),
            list(self._guarded.values()),
            self.cuts,
            self.later,
            self._left,
            stores,
            self.backward_inside,
            0.0,
            pair,
            sized,
            self.view_lines,
        )

    def _result(self, x: Any, roots: Roots) -> Result:
        if isinstance(x, HostScalar):
            if x.seen:
                held = self.lift(x)
                return NumberResult(roots.add_value(self.value_of(held, "")))
            return HostResult(x)
        if is_size(x):
            return SizeResult(to_plain(x))
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
        entry, chain = self._place(x, "")
        requires_grad = x.requires_grad
        if entry is not None and entry.kind != "scalar" and not isinstance(entry.source, Constant):
            if requires_grad and x._node is not None and not self._is_view_of(x, entry):
                self.give_up("returns an input's memory, changed by operations on the tape")
            if self._is_array_twice(entry):
                self.give_up("returns a tensor on a NumPy array that it made a tensor twice")
            tracked = x._view is None or x._view.tracked
            return AliasResult(entry.source, chain, requires_grad, roots.number(x), tracked)
        number, version = roots.number(x), storage.version - storage.hidden
        order = root_order(storage)
        if x._node is None or not requires_grad:
            view = x._view is not None and x._view.base is not None
            index = roots.add(storage)
            return FreshResult(index, chain, requires_grad, number, -1, version, view, order)
        if self._is_spent(x):  # backward() ran inside: as in eager, it cannot run again
            index = roots.add(storage)
            return FreshResult(index, chain, True, number, SPENT, version, order=order)
        if chain:  # the compiled node makes what the view shows, on memory of its own
            index, order = roots.add_value(self.value_of(x, "")), order_of_memory(x._data)
            chain = ()
            roots.apart.append(storage)
        else:
            index = roots.add(storage)
        return FreshResult(index, chain, False, number, roots.slot(x), version, order=order)

    def _is_spent(self, x: Any) -> bool:
        """Whether a backward has freed a part of what x was computed by."""
        seen: set[int] = set()
        stack = [x._node]
        while stack:
            node = stack.pop()
            if node is None or isinstance(node, Tensor) or id(node) in seen:
                continue
            if node.seq < self.first_node:
                continue
            if node.operands is None:
                return True
            seen.add(id(node))
            stack.extend(node.edges)
        return False

    def _is_array_twice(self, entry: Entry) -> bool:
        """Whether another storage, too, is on the NumPy array that the entry is on."""
        return is_array(entry.source) and any(
            e is not entry and e.source == entry.source for e in self.entries
        )

    def _is_view_of(self, x: Tensor, entry: Entry) -> bool:
        """Whether the same views of the input, made anew, have x's place on the tape."""
        base = entry.tensor
        if base is None or x._view is None:
            return False
        root = None if base._view is None else base._view.base
        return (
            x._view.base is (base if root is None else root)
            and x._view.tracked
            and not self._counts.of(entry.storage)
            and self._made_here(x, base)
        )

    def _made_here(self, x: Tensor, base: Tensor) -> bool:
        """Whether all that lies between a view and its base on the tape was made in this call: not
        a node of another view, which may have hooks, or be freed."""
        start = edge_of(base)[0]
        node: Any = x._node
        while node is not start and node is not None and not isinstance(node, Tensor):
            if node.seq < self.first_node:
                return False
            node = node.edges[0]
        return node is start

    def _check_writes(self) -> None:
        written = [e for e in self.entries if self._now(e) is not e.value]
        arrays: tuple[list[Any], list[Any]] = [], []  # written, others; without data, none
        for e in self.entries:
            if e.array is not None:
                arrays[self._now(e) is e.value].append(e.array)
        if not clash(*arrays):
            written = []  # nothing to look for, pair by pair
        for e in self.entries:
            x = e.tensor  # None where the function made it, of a NumPy array
            if x is None:
                pass
            elif x._node is not e.node or (
                x.requires_grad != e.requires_grad and id(x) not in self._flags
            ):
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

    def _check_strangers(self, result: Any) -> None:
        """A tensor made here is the call's own affair, unless what shows it outlives the call. The
        tape of a result holds its leaves, but shows them to nobody."""
        if not any(ref() is not None for ref, _ in self._strangers):
            return
        gc.collect()
        results = [*flatten(result)[0], *(v for _, _, v in self._rebinds.values())]
        tape = nodes_of([x for x in results if isinstance(x, Tensor)])
        for ref, what in self._strangers:
            if ref() is None:
                continue
            if not _is_only_edge(ref, tape):
                self.give_up(f"{what} a tensor that is reached in no way jit can follow")
            self._leaves.append(ref)

    def settle(self, result: Any) -> None:
        """Called when recording is over: what outlives it shows the sizes of this call as ints."""
        self.symbols.take_back()
        for name in self.symbols.lost:
            self.give_up(f"changes {name}")
        if self.symbols:
            found = [x for ref, _ in self._made if (x := ref()) is not None]
            found += [x for x in flatten(result)[0] if isinstance(x, Tensor)]
            found += [v for _, _, v in self._rebinds.values() if isinstance(v, Tensor)]
            settle(found, self.first_node)

    def has_effects(self) -> bool:
        """Whether the function has done what cannot be done twice, as far as it was told."""
        told = (self._counts, self._rebinds, self._flags, self._draws, self.later)
        return bool(self.reason) or any(told)

    def let_go(self) -> None:
        """Called when nothing comes of the recording."""
        for entry in self.entries:
            entry.release()
        self.forget()

    def forget(self) -> None:
        """Called when the recording is over: numbers that Python has kept, and those of the trace,
        refer to it, and would to all that it has met."""
        for held in (
            self._entry, self._parts, self._counts, self._hidden, self._grads, self._views,
            self._slots, self._rebinds, self._flags, self._guarded, self._seeds,
        ):  # fmt: skip
            held.clear()
        self._keep.clear()
        self._copies.clear()

    def is_written(self, storage: Storage) -> bool:
        """Whether the function writes to a storage that it did not make."""
        return storage in self._counts

    def escaped(self, result: Any) -> tuple[TensorType, str] | None:
        """A traced tensor that something outside still holds: its type and source line."""
        results = [*flatten(result)[0], *(v for _, _, v in self._rebinds.values())]
        keep = {id(x) for x in results}
        tensors = [x for x in results if isinstance(x, Tensor)]
        keep |= {id(x._base) for x in tensors}  # views hold their base
        keep |= {id(x) for x in held_by_tape(tensors)}
        for ref in self._leaves:
            keep.add(id(ref()))
            if _has_own_grad(ref):
                keep.add(id(getattr(ref(), "_grad", None)))
        del tensors
        del results
        self._keep.clear()
        self._seen.clear()
        self._lifted.clear()
        self.casts.clear()
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


def _is_only_edge(ref: weakref.ref[Tensor], tape: set[int]) -> bool:
    """Whether nothing refers to a tensor but nodes of a tape (their ids), as one of their edges."""
    holders = gc.get_referrers(ref())
    for holder in holders:
        if type(holder) is not tuple:
            return False
        for node in gc.get_referrers(holder):
            if node is holders or isinstance(node, FrameType):  # this function
                continue
            if id(node) not in tape or node.edges is not holder:
                return False
    return True


def _has_own_grad(ref: weakref.ref[Tensor]) -> bool:
    """Whether nothing refers to a tensor's .grad but the tensor."""
    holders = gc.get_referrers(getattr(ref(), "_grad", None))
    return len(holders) == 1 and holders[0] is ref()


def _is_sized(graph: Graph) -> bool:
    """Whether a graph has symbolic sizes, in types or attributes."""
    types = [item.value.type for item in graph.inputs]
    types += [v.type for node in graph.nodes for v in node.outputs]
    return any(has_sizes(tuple(t.shape)) for t in types) or any(
        has_sizes(x) for node in graph.nodes for _, x in node.attrs
    )


def _is_seen(x: Any) -> bool:
    """Whether it is a tensor's value as a number (x.item())."""
    return isinstance(x, HostScalar) and x.seen
