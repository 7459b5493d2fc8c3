"""Relay: a recorder that stands between dispatch and another recorder.

Owns what is told on; what a level (levels.py), forward mode (autograd/forward.py) or a body of
control flow (body_recorder.py) hears itself, is theirs.
"""

from __future__ import annotations

from typing import Any

from jitgrad.random import draw_tensors
from jitgrad.state import recording
from jitgrad.tensor import Tensor


class Relay:
    """A recorder that passes all it is told on to the recorder outside it (or None)."""

    def __init__(self, outer: Any) -> None:
        self.outer = outer

    def op(self, op: Any, operands: Any, attrs: Any, outputs: Any, line: str) -> None:
        if self.outer is not None:
            with recording(self.outer):
                self.outer.op(op, operands, attrs, outputs, line)

    def write(self, target: Tensor, value: Tensor, line: str) -> None:
        if self.outer is not None:
            with recording(self.outer):
                self.outer.write(target, value, line)

    def raw_read(self, tensor: Any, what: str) -> None:
        if self.outer is not None:
            self.outer.raw_read(tensor, what)

    def number_of(self, tensor: Any) -> Any:
        return None

    def sizes_fixed(self, frame: Any) -> bool:
        return self.outer is not None and bool(self.outer.sizes_fixed(frame))

    def layout_read(self) -> None:
        if self.outer is not None:
            self.outer.layout_read()

    def memory_read(self, asked: Any, what: str) -> None:
        if self.outer is not None:
            self.outer.memory_read(asked, what)

    def tape_read(self, node: Any) -> None:
        if self.outer is not None:
            self.outer.tape_read(node)

    def rebind(self, owner: Any, key: str, value: Any) -> None:
        if self.outer is not None:
            self.outer.rebind(owner, key, value)

    def slot_read(self, owner: Any, key: str) -> None:
        if self.outer is not None:
            self.outer.slot_read(owner, key)

    def constant(self, tensor: Tensor, source: Any) -> None:
        if self.outer is not None:
            self.outer.constant(tensor, source)

    def draw(self, generator: Any) -> Any:
        if self.outer is not None:
            return self.outer.draw(generator)
        return draw_tensors(generator._seed, generator.advance())

    def draw_block(self, generator: Any, count: int) -> Any:
        if self.outer is not None:
            return self.outer.draw_block(generator, count)
        return draw_tensors(generator._seed, generator.advance(count))

    def lift(self, scalar: Any) -> Any:
        return self.outer.lift(scalar)

    def plain_tensor(self, value: float) -> Any:
        return self.outer.plain_tensor(value)

    def lift_number(self, value: Any, owner: Any, key: Any) -> Any:
        return value if self.outer is None else self.outer.lift_number(value, owner, key)

    def specialise(self, scalar: Any) -> None:
        if self.outer is not None:
            self.outer.specialise(scalar)

    def truth(self, scalar: Any) -> None:
        if self.outer is not None:
            self.outer.truth(scalar)

    def compare(self, name: str, a: Any, b: Any) -> bool:
        return self.outer is not None and self.outer.compare(name, a, b)

    def give_up(self, reason: str, line: str = "") -> None:
        outer = getattr(self.outer, "give_up", None)  # in segments, Python runs anyway
        if outer is not None:
            outer(reason, line)

    def begin_before(self, state_of: Any, make: Any) -> None:
        """State begins where it is asked for."""

    def postpone(self) -> None:
        if self.outer is not None:
            self.outer.postpone()
