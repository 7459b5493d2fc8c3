"""What Python looks at while a function is recorded: tensors' values, and numbers.

Owns what becomes a branch of the tree of traces (tree.py) and what the trace is given up for;
numbers that stand for floats that may change (hostscalar.py): arguments, numbers of optimizers'
groups, and x.item(). All else that dispatch reports is recorder.py's.
"""

from __future__ import annotations

import gc
import operator
import weakref
from typing import Any

import numpy as np

from jitgrad.autograd.modes import no_grad
from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply
from jitgrad.effects import typed_caller
from jitgrad.hostscalar import Comparison, HostScalar, Numbering, Truth
from jitgrad.promotion import cast
from jitgrad.promotion import constant as number_tensor
from jitgrad.referrers import replace_everywhere
from jitgrad.runtime import dtypes
from jitgrad.sources import Number
from jitgrad.state import state
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor, static_type, wrap
from jitgrad.tree import MAX_CUTS, Cut, branches_on
from jitgrad.tree_code import outcome_of
from jitgrad.values import Finder, ValueMap, here

_SAME_BITS = {"add", "sub", "mul", "div", "neg", "abs"}
"""What Python computes with floats as kernels do."""


class Looks(ValueMap):
    """The part of the recorder's protocol by which Python learns values.

    Attributes: `cuts`, the values that Python went on by; `special`, lifted numbers by name whose
    value (or, by a Truth, being zero) is to be guarded; `comparisons`, of lifted numbers, whose
    outcome is; `segments_reason`, why the trace was given
    up, if that is a reason for running Python at each call.
    """

    def __init__(self, name: str, finder: Finder) -> None:
        super().__init__(name, finder)
        self.cuts: list[Cut] = []
        self.special: dict[Any, Any] = {}
        self.comparisons: dict[Any, Comparison] = {}
        self.segments_reason = ""
        self._lifted: dict[int, Tensor] = {}
        self._numbering = Numbering()
        self._numbers: dict[tuple[int, Any], HostScalar] = {}
        self._seen: list[Tensor] = []
        self._handed: list[weakref.ref[HostScalar]] = []
        self._keep: list[Any] = []  # what must not be freed while the function is recorded
        self._left: tuple[list[Any], list[dict[str, Any]]] = ([], [])

    def raw_read(self, tensor: Tensor | Storage, what: str) -> None:
        if self.reason:
            return
        line = here()
        if isinstance(tensor, Storage):
            self.give_up(f"reads a tensor's memory in Python ({what} of a storage)", line)
            return
        data = tensor._data
        if data is not None and branches_on(what, data):
            self._cut(tensor, data, what, line)
            return
        kind = {"item": "a number", "float": "a number", "bool": "a bool"}.get(what, "an array")
        self.to_segments(
            f"reads a tensor's value in Python ({what}, {kind} of {tensor._type})", line
        )

    def _cut(self, tensor: Tensor, data: np.ndarray[Any, Any], how: str, line: str) -> None:
        """Python goes on by a value: later calls compute it first, then what fits (tree.py)."""
        value = self.value_of(tensor, line)
        if self.reason:
            return
        if len(self.cuts) >= MAX_CUTS:
            self.to_segments(f"looks at tensors' values more than {MAX_CUTS} times", line)
            return
        try:
            outcome = outcome_of(how, data)
        except (ValueError, OverflowError):  # int() of NaN, of infinity: raised at the read itself
            self.give_up("looks at a value that is no number", line)
            return
        nodes, guards = len(self.graph.nodes), len(self.graph.env.guards)
        self.cuts.append(Cut(nodes, guards, value, how, outcome, line))

    # -- numbers -----------------------------------------------------------------------------------
    def number_of(self, tensor: Tensor) -> HostScalar | None:
        """What x.item() of a floating tensor gives while recording: a number that may become a
        tensor again, be compared, or be returned. None where Python shall get the float."""
        if self.reason or state.abstract or tensor._type.numel != 1 or typed_caller():
            return None
        with no_grad():
            held = cast(tensor.detach().reshape(()), dtypes.float64)
        scalar = HostScalar(held._data.item(), ("seen", len(self._seen)), self, None, True)
        self._seen.append(held)
        self.hand_out(scalar)
        return scalar

    def hand_out(self, scalar: HostScalar) -> None:
        """Notes a number that code may keep, where it must find a float later."""
        self._handed.append(weakref.ref(scalar))

    def plain_tensor(self, value: float) -> Tensor:
        """A number as lift() gives it, but told to nobody."""
        return wrap(np.array(value, np.float64), static_type((), dtypes.float64))

    def _computed(self, scalar: HostScalar) -> Tensor | None:
        """A number that is made of tensors' values, computed by ops of the same bits as Python's;
        None where there are none."""
        done: dict[int, Tensor] = {}
        stack = [scalar]
        while stack:
            x = stack[-1]
            number = self._numbering.of(x)
            known = self._lifted.get(number)
            if known is not None or x.expr is None or not x.seen:
                if known is None:
                    known = self._seen[x.name[1]] if x.seen else self.lift(x)
                done[id(x)] = known
                stack.pop()
                continue
            op, operands = x.expr
            waiting = [y for y in operands if isinstance(y, HostScalar) and id(y) not in done]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            divisor = operands[-1]
            if op == "div" and (isinstance(divisor, HostScalar) or not divisor):
                return None  # Python raises for zero
            found = [done[id(y)] if isinstance(y, HostScalar) else self._exact(y) for y in operands]
            exact = [t for t in found if t is not None]
            if op not in _SAME_BITS or len(exact) < len(found):
                return None
            made: Tensor = apply(OPS[op], tuple(exact), {})
            done[id(x)] = self._lifted[number] = made
        return done[id(scalar)]

    def _exact(self, x: Any) -> Tensor | None:
        """A plain number as a 0-d float64 tensor, if it is one."""
        try:
            same = type(x) in (bool, int, float) and (x != x or float(x) == x)
        except OverflowError:
            same = False
        return number_tensor(float(x), dtypes.float64) if same else None

    def compare(self, name: str, a: Any, b: Any) -> bool:
        """Makes a comparison of numbers a branch, or (where none is a tensor's) a guard on how it
        comes out. False where it can be neither."""
        if self.reason:
            return False
        numbers = [x for x in (a, b) if isinstance(x, HostScalar)]
        if not any(x.seen for x in numbers):
            return self._compare_lifted(name, a, b, numbers)
        with no_grad():
            x, y = (
                self._computed(v) if isinstance(v, HostScalar) else self._exact(v) for v in (a, b)
            )
            if x is None or y is None:
                return False
            found = apply(OPS[name], (x, y), {})
        self._cut(found, found._data, "bool", here())
        return not self.reason

    def _compare_lifted(self, name: str, a: Any, b: Any, numbers: list[HostScalar]) -> bool:
        sizes = any(leaf.name[0] == "size" for x in numbers for leaf in leaves_of(x))
        plain = all(isinstance(x, HostScalar) or type(x) in (bool, int, float) for x in (a, b))
        if sizes or not plain or len(self.comparisons) >= MAX_CUTS:
            return False
        key = (name, *(self._numbering.of(x) if isinstance(x, HostScalar) else repr(x)
                       for x in (a, b)))  # fmt: skip
        self.comparisons.setdefault(key, Comparison(name, a, b))
        return True

    def decide(self, scalar: HostScalar, how: str) -> None:
        """Makes what Python asks of a number (as in tree_code.py) a branch; else it is seen."""
        if self.reason:
            return
        with no_grad():
            held = self._computed(scalar)
        if held is None:
            self.specialise(scalar)
        else:
            self._cut(held, held._data, how, here())

    def kept_number(self) -> bool:
        """Whether code kept a number that it was handed out, beyond the call. What holds it holds a
        float now."""
        self._numbering = Numbering()  # which keeps what it has numbered
        kept = [x for ref in self._handed if (x := ref()) is not None]
        self._handed.clear()
        while kept:
            x = kept.pop()
            replace_everywhere(x, x.value)
            del x
            if not kept:
                return True
        return False

    def put_back_numbers(self) -> None:
        """Called when nothing comes of the recording, nor is held of it: what code keeps of numbers
        that it was lent are floats from here on."""
        self._numbers.clear()
        self._lifted.clear()
        kept = [x for x in gc.get_objects() if type(x) is HostScalar and x.recorder is self]
        while kept:
            x = kept.pop()
            replace_everywhere(x, x.value)
            del x

    def to_segments(self, reason: str, line: str) -> None:
        """Gives up a trace that Python cannot be left out of."""
        self.give_up(reason, line)
        self.segments_reason = reason

    def lift(self, scalar: HostScalar) -> Tensor:
        number = self._numbering.of(scalar)
        known = self._lifted.get(number)
        if known is not None:
            return known
        if scalar.seen and not self.reason:
            with no_grad():
                found = self._computed(scalar)
            if found is not None:
                return found
            self.specialise(scalar)
        out = self.plain_tensor(scalar.value)
        if not self.reason:
            self._lifted[number] = out
            self._add_entry("scalar", Number(scalar), out, out._data)
        return out

    def specialise(self, scalar: HostScalar) -> None:
        if scalar.seen and not self.reason:
            self.to_segments("reads a tensor's value in Python (item, a number)", here())
        for leaf in leaves_of(scalar):
            if leaf.name is not None and leaf.name[0] == "size":
                operator.index(leaf.name[1])
            elif not leaf.seen:
                self.special[leaf.name] = leaf.value

    def truth(self, scalar: HostScalar) -> None:
        if scalar.name[0] == "size":
            self.specialise(scalar)
        else:
            self.special.setdefault(scalar.name, Truth(bool(scalar.value)))

    def lift_number(self, value: float, owner: Any, key: Any) -> Any:
        if self.reason:
            return value
        if any(owner is d for d in self._left[1]):
            self.give_up(f"reads {key!r} of a group after the step of its scheduler", here())
            return value
        name = (id(owner), key)
        known = self._numbers.get(name)
        if known is not None and known.value != value:
            return value  # set by the function itself, which ends the recording
        if known is None:
            if not self.finder.number(owner, key):
                return value
            self._keep.append(owner)
            known = self._numbers[name] = HostScalar(value, name, self)
        return known


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
