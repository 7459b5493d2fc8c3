"""LazyRecorder: a call whose Python runs, on tensors whose data is computed when it is wanted.

Owns one call that runs in segments: dispatch is in abstract mode and tells this recorder of every
op and write; it walks the steps that earlier calls left (segments.py). Where a value is wanted, and
when the call ends, `flush` runs what was walked as one program: tensors and saved tensors that
still exist get their data, storages that were written get their new contents, all at once. Values
that nothing holds any more are never made.

Which value a storage holds is kept by storage (never by tensor). Views made without data are
derived where they are read, from the value that their storage holds then.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any
from weakref import ref

import numpy as np

from jitgrad.compiler.types import TensorType
from jitgrad.dispatch import Plan, plan_of, settle_attrs
from jitgrad.facts import layout
from jitgrad.hostscalar import HostScalar
from jitgrad.layouts import in_order, root_order
from jitgrad.outside import is_shared
from jitgrad.pending import fetch, recorders
from jitgrad.promotion import constant
from jitgrad.random import draw_tensors
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import BY_NAME
from jitgrad.runtime.userline import user_line
from jitgrad.segments import Program, Segments, Step
from jitgrad.state import state
from jitgrad.storage import Storage
from jitgrad.tape.views import put_chain
from jitgrad.tensor import Tensor, intern_type, wrap
from jitgrad.try_blocks import in_try_block

MAX_SEGMENT = 4000
"""Operations after which a segment ends in any case: compile time grows with its length."""


class LazyValue:
    """A value of a segment with the face that records call (`_bind`, shape, dtype, device)."""

    __slots__ = ("_type", "number", "recorder")

    def __init__(self, recorder: LazyRecorder, number: int, type: TensorType) -> None:
        self.recorder, self.number, self._type = recorder, number, type

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self._type.shape)

    @property
    def dtype(self) -> Any:
        return self._type.dtype

    @property
    def device(self) -> Any:
        return self._type.device

    @property
    def ndim(self) -> int:
        return len(self._type.shape)

    def _bind(self, op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        recorder = self.recorder
        values = [
            x if isinstance(x, LazyValue) else recorder._number_value(x, self.dtype)
            for x in operands
        ]
        made = recorder._node(op, values, attrs)
        return made[0] if op.nout == 1 else tuple(made)


class LazyRecorder:
    """One call that runs in segments. See dispatch.py for the recorder's protocol.

    code: of the function that makes the call.
    """

    outer = None

    def __init__(self, segments: Segments, code: CodeType) -> None:
        self.segments, self.code = segments, code
        self.casts: dict[Any, Any] = {}
        self.lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        """A new segment: nothing is known."""
        self.step = self.segments.root
        self.count = 0
        self.steps = 0
        self.numbers: dict[Storage, int] = {}
        self.writes: dict[Storage, int] = {}  # to storages that have data: their input's number
        self.counts: dict[Storage, int] = {}
        self.views: dict[int, tuple[Any, int, int]] = {}
        self.derived: dict[tuple[int, int], tuple[Any, LazyValue]] = {}
        self.parts: set[Storage] = set()
        self.seen: dict[Storage, Any] = {}
        self.arrays: list[Any] = []
        self.made: list[ref[Tensor]] = []
        self.lines: dict[int, str] = {}

    # -- what dispatch tells ---------------------------------------------------------------------
    def apply(self, op: Any, operands: Sequence[Tensor], attrs: Any, plan: Plan, out: Any) -> None:
        """An op was applied; `out` is its result, or the tuple of them."""
        with self.lock:
            if op.view and out._storage is operands[0]._storage:
                if out._data is None:
                    self.made.append(ref(out))
                return
            if self.steps > MAX_SEGMENT:
                self.flush("it is long")
            numbers = self.numbers
            key: list[Any] = [plan]
            for x in operands:
                n = self._shown(x) if x._chain else numbers.get(x._storage)
                key.append(self._enter(x) if n is None else n)
            first = self._advance(key, op, attrs, plan)
            if op.nout == 1:
                numbers[out._storage] = first
                self.made.append(ref(out))
            else:
                for i, y in enumerate(out):
                    numbers[y._storage] = first + i
                    self.made.append(ref(y))
            if first in self.lines and in_try_block(self.code):
                self.flush("an operation in a try block may fail")

    def op(self, op: Any, operands: Any, attrs: Any, outputs: Any, line: str) -> None:
        """`apply`, from what recorders of levels pass on."""
        plan = plan_of(op, tuple(operands), attrs)
        self.apply(op, operands, attrs, plan, outputs[0] if op.nout == 1 else outputs)

    def write(self, target: Tensor, value: Tensor, line: str) -> None:
        storage = target._storage
        with self.lock:
            if storage.array is not None and storage not in self.writes:
                if storage in self.parts:
                    self.flush("it writes to a tensor of which it has read a part")
                if self._is_shared(storage, target):
                    if self.holds(value._storage):
                        self.flush("it writes to memory that a NumPy array shares")
                    _write_now(target, value)
                    return
                self.segments.written.add(storage)
                self.writes[storage] = self._root(storage)
            new = self._value_of(value)
            if target._chain:
                base = LazyValue(self, self._root(storage), intern_type(storage.type))
                try:
                    new = put_chain(base, target._chain, new)
                except RuntimeError:  # part of a view that shows elements twice
                    self.flush("it writes to a part of windows that overlap")
                    _write_now(target, value)
                    return
            self.numbers[storage] = new.number
            self.counts[storage] = self.counts.get(storage, 0) + 1

    def rebind(self, owner: Any, key: Any, value: Any) -> None:
        if key == "data":
            self.follow(owner)

    def follow(self, x: Tensor) -> None:
        """Notes a tensor that lies on a storage without data, to get its data with it."""
        self.made.append(ref(x))

    def _ignore(self, *what: Any) -> None:
        """Python runs each time: what it reads needs no guard."""

    def layout_read(self) -> None:
        """Sizes are fixed."""

    def sizes_fixed(self, frame: Any) -> bool:
        return False

    slot_read = tape_read = truth = specialise = constant = postpone = number_of = _ignore
    begin_before = _ignore

    def raw_read(self, x: Any, what: str) -> None:
        storage = x if isinstance(x, Storage) else x._storage
        if self.holds(storage):
            self.flush(f"it reads a tensor's value in Python ({what})")

    def memory_read(self, x: Any, what: str) -> None:
        storage = x if isinstance(x, Storage) else x._storage
        if storage.array is None and storage in self.numbers:
            self.flush(f"it asks where a tensor lies ({what})")
        if isinstance(x, Tensor) and x._data is None:
            fetch(x)

    def export(self, storage: Storage) -> None:
        """Others get to see the memory of a storage: what was read of it was read before."""
        if storage in self.numbers:
            self.flush("it hands out a tensor's memory")

    def draw(self, generator: Any) -> tuple[Tensor, Tensor]:
        return self.draw_block(generator, 1)

    def draw_block(self, generator: Any, count: int) -> tuple[Tensor, Tensor]:
        return draw_tensors(generator._seed, generator.advance(count))

    def lift(self, scalar: HostScalar) -> Tensor:
        return constant(scalar.value, dtypes.float64)

    def lift_number(self, value: float, owner: Any, key: Any) -> Any:
        return value

    # -- values --------------------------------------------------------------------------------
    def holds(self, storage: Storage) -> bool:
        """Whether a storage waits for what this call has yet to compute."""
        if storage.array is None:
            return storage in self.numbers
        return storage in self.writes

    def _advance(self, key: list[Any], op: Any, attrs: Any, plan: Plan) -> int:
        """Takes a step, made if it is new; the number of its first value. key: the plan and the
        numbers of the operands."""
        count = len(key)
        if plan.zeros:
            key += [math.copysign(1.0, attrs[name]) for name in plan.zeros]
        whole = tuple(key)
        step = self.step.next.get(whole)
        if step is None:
            types = (plan.types,) if op.nout == 1 else plan.types
            step = self._grow("op", types)
            settle_attrs(attrs)
            step.op, step.attrs, step.kernel = op, attrs, plan.kernel
            step.inputs = whole[1:count]
            self.step.next[whole] = step
        first = self.count
        if op.checked or op.host:
            self.lines[first] = user_line()
        self.step = step
        self.count = first + len(step.types)
        self.steps += 1
        return first

    def _grow(self, kind: str, types: Any) -> Step:
        step = Step(self.step, kind, self.count, types)
        step.line = user_line()
        self.segments.made(step)
        return step

    def _node(self, op: Any, values: Sequence[LazyValue], attrs: Any) -> list[LazyValue]:
        plan = plan_of(op, tuple(values), attrs)
        first = self._advance([plan, *[x.number for x in values]], op, attrs, plan)
        out = (plan.types,) if op.nout == 1 else plan.types
        return [LazyValue(self, first + i, t) for i, t in enumerate(out)]

    def _input(self, array: Any, type_: TensorType) -> int:
        """The number of an array that becomes an input."""
        strides = None if array.flags.c_contiguous else layout(array)
        key = (type_, strides)
        step = self.step.next.get(key)
        if step is None:
            step = self._grow("input", (type_,))
            step.strides = strides
            self.step.next[key] = step
        self.step = step
        self.arrays.append(array)
        self.count += 1
        return self.count - 1

    def _enter(self, x: Tensor) -> int:
        """The number of a root that is read, and is not known in this segment (or can change)."""
        storage = x._storage
        if storage.array is None and not fetch(x):
            raise RuntimeError(
                f"[jit] expected a tensor with data; {x._type} has none: computing it failed"
            )
        if is_shared(storage, x._data):
            return self._exported(storage, x)
        array = storage.array
        assert array is not None
        if not array.shape and not array.flags.writeable:
            number = self._constant(array, x._type)
        else:
            number = self._input(array, x._type)
        self.numbers[storage] = number
        return number

    def _is_shared(self, storage: Storage, x: Tensor) -> bool:
        """Whether others see or change the memory of a storage. What is an input of this segment
        they do not: its memory was its own when it was read, and `export` ends the segment. (The
        inputs refer to the array, as others might.)"""
        return storage not in self.numbers and is_shared(storage, x._data)

    def _exported(self, storage: Storage, x: Tensor) -> int:
        """The number of memory that others can write: of a copy, as it is now."""
        array = x._data
        known = self.seen.get(storage)
        if known is not None and known[0] is x._chain and _equal(known[1], array):
            return int(known[2])
        copy = array.copy(order="C")
        number = self._input(copy, x._type)
        self.seen[storage] = (x._chain, copy, number)
        return number

    def _constant(self, array: Any, type_: TensorType) -> int:
        """The number of a Python number: part of the program until another one comes in its place;
        from then on an input."""
        at, dtype = self.step, type_.dtype
        step = at.lifted.get(dtype)
        if step is None:
            text = array.tobytes()
            known = at.numbers.get(dtype)
            if known is None:
                step = self._grow("number", (type_,))
                step.data = array
                at.numbers[dtype] = (text, step)
            elif known[0] == text:
                step = known[1]
            else:
                step = at.lifted[dtype] = self._grow("input", (type_,))
        if step.kind == "input":
            self.arrays.append(array)
        self.step = step
        self.count += 1
        return self.count - 1

    def _number_value(self, value: Any, dtype: Any) -> LazyValue:
        x = constant(value, dtype)
        return LazyValue(self, self._number_of(x), x._type)

    def _root(self, storage: Storage) -> int:
        """The number of what a storage holds now."""
        number = self.numbers.get(storage)
        if number is None:
            number = self.numbers[storage] = self._input(storage.array, intern_type(storage.type))
        return number

    def _number_of(self, x: Tensor) -> int:
        if x._chain:
            return self._shown(x)
        number = self.numbers.get(x._storage)
        return self._enter(x) if number is None else number

    def _value_of(self, x: Tensor) -> LazyValue:
        return LazyValue(self, self._number_of(x), x._type)

    def _shown(self, x: Tensor) -> int:
        """The number of what a view shows now."""
        storage, chain = x._storage, x._chain
        if storage.array is None and storage not in self.numbers:
            fetch(x)  # of another thread's call
        if storage.array is not None and self._is_shared(storage, x):
            return self._exported(storage, x)
        count = self.counts.get(storage, 0)
        known = self.views.get(id(chain))
        if known is not None and known[0] is chain and known[1] == count:
            return known[2]
        if storage.array is not None and not count and self._is_part(x):
            number = self._input(x._data, x._type)
            self.parts.add(storage)
        else:
            value = LazyValue(self, self._root(storage), intern_type(storage.type))
            for link in chain:
                found = self.derived.get((value.number, id(link)))
                if found is None:
                    op, attrs = link
                    (made,) = self._node(op, [value], attrs)
                    found = self.derived[value.number, id(link)] = (link, made)
                value = found[1]
            number = value.number
        self.views[id(chain)] = (chain, count, number)
        return number

    def _is_part(self, x: Tensor) -> bool:
        """Whether a view of a storage with data is an input by itself: it shows a part of what the
        function has not written yet. (Where it lies may then change from call to call.)"""
        storage = x._storage
        return storage not in self.segments.written and (
            x._type.numel < storage.type.numel or x._type.dtype is not storage.type.dtype
        )

    # -- the end of a segment --------------------------------------------------------------------
    def flush(self, why: str) -> None:
        """Computes what waits, and ends the segment."""
        with self.lock:
            numbers, written = self.numbers, self.writes
            step, arrays, lines, made = self.step, self.arrays, self.lines, self.made
            self._begin()  # first: it lets go of storages, and what fails is not tried again
            live = [s for s in numbers if _refs(s) > _HELD and s.array is None]
            if not live and not written and not lines:  # (ops that may fail run in any case)
                return
            wanted = tuple([numbers[s] for s in live])
            writes = tuple([(i, numbers[s]) for s, i in written.items()])
            key = (tuple(dict.fromkeys(wanted)), writes)
            program = step.ends.get(key)
            if program is None:
                program = step.ends[key] = Program(self.segments, step, key, why, user_line())
                self.segments.programs.append(program)
            results = program.run(arrays, lines)
            given: set[int] = set()
            for storage, n in zip(live, wanted, strict=True):
                array = results[n].copy() if n in given else results[n]
                storage.array = in_order(array, root_order(storage))
                given.add(n)
            for lazy in made:
                x = lazy()
                if x is not None and x._data is None and x._storage.array is not None:
                    fetch(x)


def _equal(a: Any, b: Any) -> bool:
    """Whether two arrays of one type hold the same bits; `a` is dense."""
    if not b.flags.c_contiguous or not b.size:
        return bool(a.tobytes() == b.tobytes())
    return bool(np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)))


def _refs(storage: Storage) -> int:
    return sys.getrefcount(storage)


def _count_held() -> int:
    """_refs of a storage that only a recorder's dict refers to, as in flush."""
    numbers = {wrap(None, TensorType((), BY_NAME["float32"]))._storage: 0}
    return [_refs(s) for s in numbers][0]


_HELD = _count_held()


def _write_now(target: Tensor, value: Tensor) -> None:
    """Writes at once: memory that others see, and what no program can write."""
    for x in (value, target):
        if x._data is None:
            fetch(x)
    np.copyto(target._data, value._data)


@contextmanager
def paused(why: str) -> Iterator[None]:
    """Runs a block eagerly, in a call that runs in segments."""
    lazy = state.lazy
    if lazy is None:
        yield
        return
    lazy.flush(why)
    before = (state.recorder, state.abstract)
    state.recorder, state.lazy, state.abstract = None, None, False
    try:
        yield
    finally:
        state.recorder, state.lazy, state.abstract = before[0], lazy, before[1]


def open_call(recorder: LazyRecorder) -> None:
    """Notes a call that begins: others find what waits for it."""
    recorders[id(recorder)] = recorder


def close_call(recorder: LazyRecorder) -> None:
    """The call is over."""
    del recorders[id(recorder)]
