"""Updates of parameters as straight code: what `step` runs, on arrays, of updates met before.

An optimizer's rule applies the same records to each parameter of one type, in each step, whatever
the numbers of its group. So it is run once on tensors without data, by a recorder that notes what
is applied and written, and becomes a function of arrays that calls the kernels one after another
and writes in place. Floats of the group are lifted, as for jit: a schedule changes an input; what
the rule asked of a number (whether it is zero) is asked again when numbers change.

Owns the recorder and the table of functions. Only of jitgrad's own optimizers: a subclass may do in
its rule what no recorder sees. All else runs as it is written, and so does the first step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import getrefcount
from typing import Any

import numpy as np

from jitgrad import dispatch
from jitgrad.autograd.straight import Code, NotStraight
from jitgrad.compiler.ops.quiet import hush, unhush
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.types import TensorType
from jitgrad.hostscalar import Comparison, HostScalar
from jitgrad.nn.parameter import Parameter
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import user_frame
from jitgrad.state import state as thread
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor, static_type, wrap

STRAIGHT = 3
"""The update of a type, without state to be made, that is made straight code."""


class _Notes:
    """The recorder of one update: steps, numbers that they read, and what was asked of numbers."""

    def __init__(self) -> None:
        self.code = Code()
        self.names: dict[Storage, str] = {}
        self.lifted: dict[Storage, HostScalar] = {}
        self.numbers: dict[tuple[int, Any], tuple[str, HostScalar, Any]] = {}
        self.asked: list[tuple[HostScalar, bool] | Comparison] = []
        self.written: list[Storage] = []

    def stand_in(self, name: str, type_: TensorType) -> Tensor:
        x = wrap(None, type_)
        self.names[x._storage] = name
        return x

    def op(self, op: Any, operands: Any, attrs: Any, outputs: Any, line: str) -> None:
        if op.random or op.view:
            raise NotStraight
        if not operands:  # the same at each call
            self.names[outputs[0]._storage] = self.code.name(op.reference(**attrs))
            return
        plan = dispatch.plan_of(op, operands, attrs)
        if not plan.lasts:
            raise NotStraight
        if op is OPS["cast"] and operands[0]._storage in self.lifted:
            scalar = self.lifted[operands[0]._storage]
            self.names[outputs[0]._storage] = self._number(scalar, attrs["dtype"])
            return
        names = []
        for x in operands:
            storage = x._storage
            if storage in self.lifted:
                names.append(self._number(self.lifted[storage], dtypes.float64))
            elif storage in self.names:
                names.append(self.names[storage])
            else:
                raise NotStraight
        targets = self.code.add(op, attrs, plan, tuple(names))
        for x, name in zip(outputs, targets, strict=True):
            self.names[x._storage] = name

    def _number(self, scalar: HostScalar, dtype: Any) -> str:
        """The argument that is a lifted number, as a 0-d array of a dtype."""
        key = (id(scalar), dtype)
        if key not in self.numbers:
            self.numbers[key] = (f"n{len(self.numbers)}", scalar, dtype)
        return self.numbers[key][0]

    def write(self, target: Tensor, value: Tensor, line: str) -> None:
        if target._storage not in self.names or value._storage not in self.names:
            raise NotStraight
        self.code.write(self.names[target._storage], self.names[value._storage])
        self.written.append(target._storage)

    def lift(self, scalar: HostScalar) -> Tensor:
        x = wrap(None, static_type((), dtypes.float64))
        self.lifted[x._storage] = scalar
        return x

    def truth(self, scalar: HostScalar) -> None:
        self.asked.append((scalar, bool(scalar.value)))

    def compare(self, name: str, a: Any, b: Any) -> bool:
        self.asked.append(Comparison(name, a, b))
        return True

    def specialise(self, scalar: HostScalar) -> None:
        raise NotStraight


@contextmanager
def _noting(notes: _Notes) -> Iterator[None]:
    before = (thread.abstract, thread.recorder, thread.grad_enabled)
    thread.abstract, thread.recorder, thread.grad_enabled = True, notes, False
    try:
        yield
    finally:
        thread.abstract, thread.recorder, thread.grad_enabled = before


class Update:
    """The update of parameters of one type, with state of these types, as a function of arrays:
    run(p, grad, *state, *numbers).

    Attributes:
        state: the keys of state, with types. written: for each write, which of (p, grad, *state).
        numbers: what makes each number of the group's. asked: what must be so of them.
    """

    __slots__ = ("_arrays", "_packed", "asked", "numbers", "run", "state", "types", "written")

    def __init__(
        self, rule: Callable[..., None], p: Tensor, grad: Tensor, state: dict[str, Any],
        h: dict[str, Any], leaves: tuple[float, ...],
    ) -> None:  # fmt: skip
        notes = _Notes()
        self.types = (p._type, grad._type)
        self.state = tuple([(key, x._type) for key, x in state.items()])
        with _noting(notes):
            parts = [notes.stand_in("p", p._type), notes.stand_in("g", grad._type)]
            parts += [notes.stand_in(f"s{i}", t) for i, (_, t) in enumerate(self.state)]
            held = {key: x for (key, _), x in zip(self.state, parts[2:], strict=True)}
            rule(parts[0], parts[1], dict(held), _lifted(h, leaves, notes))
        storages = [x._storage for x in parts]
        self.written = tuple([storages.index(s) for s in notes.written])
        arguments = [notes.names[s] for s in storages]
        arguments += [name for name, _, _ in notes.numbers.values()]
        self.run = notes.code.function(arguments, [])
        self.numbers = tuple([(scalar, dtype) for _, scalar, dtype in notes.numbers.values()])
        self.asked = tuple(notes.asked)
        self._packed = b""
        self._arrays: list[Any] | None = None

    def arrays(self, packed: bytes, leaves: tuple[float, ...]) -> list[Any] | None:
        """The numbers as arrays; None where something asked of them is not as it was."""
        if packed != self._packed:
            self._packed, self._arrays = packed, self._made(dict(enumerate(leaves)))
        return self._arrays

    def _made(self, leaves: dict[Any, float]) -> list[Any] | None:
        def value(x: Any) -> Any:
            return x.evaluate(leaves) if type(x) is HostScalar else x

        try:
            for ask in self.asked:
                if isinstance(ask, Comparison):
                    now = Comparison(ask.name, value(ask.a), value(ask.b)).outcome
                    if now is not ask.outcome:
                        return None
                elif bool(value(ask[0])) is not ask[1]:
                    return None
            cast = OPS["cast"].reference
            numbers = [(np.asarray(float(value(x))), dtype) for x, dtype in self.numbers]
            return [cast(x, dtype=dtype) for x, dtype in numbers]
        except ArithmeticError:
            return None


def _lifted(h: dict[str, Any], leaves: tuple[float, ...], notes: Any) -> dict[str, Any]:
    """h with its floats lifted, in the order of `leaves`."""
    numbers = iter([HostScalar(x, i, notes) for i, x in enumerate(leaves)])
    return {
        key: next(numbers) if type(value) is float
        else tuple([next(numbers) for _ in value])
        if type(value) is tuple
        else value
        for key, value in h.items()
    }  # fmt: skip


def numbers_only(h: dict[str, Any]) -> bool:
    """Whether what a rule reads of its group are numbers, flags and None, or tuples of numbers."""
    for value in h.values():
        if type(value) not in _PLAIN and not (
            type(value) is tuple and all(type(x) is float for x in value)
        ):
            return False
    return True


_PLAIN = frozenset([float, int, bool, str, type(None)])


class Updates:
    """The updates of one group's parameters in one step, of a group with `numbers_only`.

    known: of all steps: the Update by types and by what of the group is no float; or how often such
    a parameter was met; False where there is none.
    """

    def __init__(self, known: dict[Any, Any], h: dict[str, Any], rule: Callable[..., None]) -> None:
        leaves: list[float] = []
        rest: list[Any] = []
        for key, value in h.items():
            kind = type(value)
            if kind is float:
                leaves.append(value)
                value = None
            elif kind is tuple:
                leaves += value
                value = len(value)
            rest.append((key, kind, value))
        self.leaves, self.rest = tuple(leaves), tuple(rest)
        self.packed = struct.pack(f"{len(leaves)}d", *leaves)
        self.known, self.h, self.rule = known.setdefault(self.rest, {}), h, rule

    def run(self, p: Tensor, grad: Tensor, state: dict[str, Any]) -> bool:
        """Updates p, where its update is straight code; else False, and nothing is done."""
        if type(p) is not Parameter and type(p) is not Tensor or type(grad) is not Tensor:
            return False
        key = (id(p._type), id(grad._type), len(state))
        found = self.known.get(key)
        if found is False:
            return False
        if found is None or type(found) is int:
            count = 1 if found is None else found + 1
            self.known[key] = self._make(p, grad, state) if count >= STRAIGHT else count
            return False
        if found.types[0] is not p._type or found.types[1] is not grad._type:
            return False
        parts = [p, grad]
        for name, type_ in found.state:
            x = state.get(name)
            if type(x) is not Tensor or x._type is not type_:
                return False
            parts.append(x)
        arrays = [x._data for x in parts]
        for k in found.written:
            x, array = parts[k], arrays[k]
            if array is None or x._chain or not array.flags.carray:
                return False
        if arrays[1] is None:
            return False
        numbers = found.arrays(self.packed, self.leaves)
        if numbers is None:
            return False
        token = hush()
        try:
            found.run(*arrays, *numbers)
        finally:
            unhush(token)
        for k in found.written:
            storage = parts[k]._storage
            storage.version += 1
            if getrefcount(storage) > _ALONE:  # the tape may have saved it, and complain
                frame = user_frame()
                if frame is not None:
                    storage.writer = (storage.version, frame.f_code, frame.f_lasti, "step")
        return True

    def _make(self, p: Tensor, grad: Tensor, state: dict[str, Any]) -> Any:
        for x in (p, grad, *state.values()):
            if not isinstance(x, Tensor) or x._type.device != "cpu" or x._type.dtype.is_complex:
                return False
        try:
            return Update(self.rule, p, grad, state, self.h, self.leaves)
        except Exception:  # the same error comes, with its line, where the rule is run itself
            return False


_ALONE = 3  # references to a storage that one tensor has and nothing else, seen in Updates.run
