"""Forward mode: derivatives along a direction, by each op's jvp.

Owns `Tangents`, the level of `state.levels` that pushes tangents forward as ops are recorded, and
`jvp`. The public faces are func.jvp and autograd.forward_ad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitgrad.autograd import given
from jitgrad.levels import lifted_to_current
from jitgrad.relay import Relay
from jitgrad.state import state
from jitgrad.tape.node import zeros_of
from jitgrad.tape.views import put_chain
from jitgrad.tensor import Tensor

Tangent = Tensor | None


class Tangents(Relay):
    """A recorder that pushes tangents forward.

    Tangents are held by storage, for the storage's root; a view's is its chain applied to that. So
    tensors that the tape saved have theirs, too: forward over reverse needs nothing more.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.number = 0
        self.roots: dict[int, Tangent] = {}
        self.keep: list[Any] = []

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Pushes tangents through what the block does."""
        before = (state.recorder, state.levels)
        self.outer = before[0]
        self.number = 1 + max((level.number for level in before[1]), default=0)
        state.recorder, state.levels = self, (*before[1], self)
        try:
            yield
        finally:
            state.recorder, state.levels = before

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Runs a block that this level does not see."""
        before = (state.recorder, state.levels)
        state.recorder = self.outer
        if self in before[1]:
            state.levels = before[1][: before[1].index(self)]
        try:
            yield
        finally:
            state.recorder, state.levels = before

    def get(self, x: Tensor) -> Tangent:
        """The tangent of a tensor; None where it is zero."""
        root = self.roots.get(id(x._storage))
        if root is None:
            return None
        for op, attrs in x._chain:
            if not op.differentiable:
                return None
            root = op(root, **attrs)
        return root

    def set(self, x: Tensor, tangent: Tangent) -> None:
        """Sets the tangent of the root of x's storage."""
        self.keep.append(x._storage)
        self.roots[id(x._storage)] = tangent

    def replace(self, x: Tensor, tangent: Tangent) -> None:
        """Sets the tangent of x, which may be a view; None: zero."""
        if not x._chain:
            self.set(x, tangent)
            return
        root = self.roots.get(id(x._storage))
        if root is None:
            root = zeros_of(x._storage.type)
        part = zeros_of(x._type) if tangent is None else tangent
        self.set(x, put_chain(root, x._chain, part))

    def start(self, x: Tensor, tangent: Tensor) -> Tensor:
        """x with a tangent: on a storage of its own, on the tape where x is."""
        if x._type.shape != tangent._type.shape:
            raise RuntimeError(f"[jvp] expected a tangent of type {x._type}; got {tangent._type}")
        tangent = given.like(tangent, x._type, "[jvp] invalid tangent")
        out: Tensor = lifted_to_current(x).clone()
        self.set(out, tangent)
        return out

    # The recorder's protocol.
    def op(self, op: Any, operands: Any, attrs: Any, outputs: Any, line: str) -> None:
        super().op(op, operands, attrs, outputs, line)
        if not op.differentiable or all(
            y._storage is x._storage for x in operands[:1] for y in outputs
        ):
            return
        with self.outside():
            tangents = tuple(self.get(x) for x in operands)
            if all(t is None for t in tangents):
                return
            out = outputs if op.nout > 1 else outputs[0]
            found = op.jvp(tangents, out, *operands, **attrs)
            for y, t in zip(outputs, found if op.nout > 1 else (found,), strict=True):
                self.set(y, t)

    def write(self, target: Tensor, value: Tensor, line: str) -> None:
        super().write(target, value, line)
        with self.outside():
            root = self.roots.get(id(target._storage))
            tangent = self.get(value)
            if root is None and tangent is None:
                return
            if any(not op.differentiable for op, _ in target._chain):
                if tangent is not None:
                    raise RuntimeError(
                        "[jvp] expected a target that is not detached for values with a tangent; "
                        f"got {target._type}, from detach() or .data; write to a clone() of it"
                    )
                return  # what was detached is no longer this tensor's value, its tangent stays
            self.replace(target, zeros_of(value._type) if tangent is None else tangent)


def jvp(
    function: Callable[..., Any],
    primals: Sequence[Tensor] | Tensor,
    tangents: Sequence[Tensor] | Tensor,
) -> tuple[Any, Any]:
    """(function(*primals), its derivative along tangents), in one forward run.

    The derivative is on the tape, so it can be differentiated. Outputs that do not depend on the
    primals have zeros. Raises RuntimeError for tangents of other shapes than the primals.
    """
    xs = [primals] if isinstance(primals, Tensor) else list(primals)
    ts = [tangents] if isinstance(tangents, Tensor) else list(tangents)
    if len(xs) != len(ts):
        raise RuntimeError(f"[jvp] expected a tangent for each primal; got {len(xs)} and {len(ts)}")
    level = Tangents()
    starts = [level.start(x, t) for x, t in zip(xs, ts, strict=True)]
    with level.inside():
        out = function(*starts)
    many = out if isinstance(out, (tuple, list)) else (out,)
    found = [tangent_of(level, y) if isinstance(y, Tensor) else None for y in many]
    return (out, tuple(found)) if isinstance(out, (tuple, list)) else (out, found[0])


def tangent_of(level: Tangents, y: Tensor) -> Tensor:
    """The tangent of an output; zeros where it has none."""
    along = level.get(y)
    return zeros_of(y._type) if along is None else along
