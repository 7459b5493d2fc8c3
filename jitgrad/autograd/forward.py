"""Forward mode: derivatives along a direction, by each op's jvp.

Owns `jvp`. A function is run with every op recorded; each op's tangent follows from its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.random import draw_tensors
from jitgrad.state import recording, state
from jitgrad.tape.node import zeros_of
from jitgrad.tensor import Tensor

Tangent = Tensor | None


class _Tangents:
    """A recorder that pushes tangents forward. Passes all it is told on to the recorder before it.

    Tangents are held by storage, for the storage's root; a view's is its chain applied to that.
    """

    def __init__(self, outer: Any) -> None:
        self.outer = outer
        self.roots: dict[int, Tangent] = {}
        self.keep: list[Any] = []

    def get(self, x: Tensor) -> Tangent:
        root = self.roots.get(id(x._storage))
        if root is None:
            return None
        for op, attrs in x._chain:
            root = op(root, **attrs)
        return root

    def set(self, x: Tensor, tangent: Tangent) -> None:
        self.keep.append(x._storage)
        self.roots[id(x._storage)] = tangent

    # The recorder's protocol.
    def op(self, op: Any, operands: Any, attrs: Any, outputs: Any, line: str) -> None:
        with recording(self.outer):
            if self.outer is not None:
                self.outer.op(op, operands, attrs, outputs, line)
            if not op.differentiable or all(
                y._storage is x._storage for x in operands[:1] for y in outputs
            ):
                return
            tangents = tuple(self.get(x) for x in operands)
            if all(t is None for t in tangents):
                return
            out = outputs if op.nout > 1 else outputs[0]
            found = op.jvp(tangents, out, *operands, **attrs)
            for y, t in zip(outputs, found if op.nout > 1 else (found,), strict=True):
                self.set(y, t)

    def write(self, target: Tensor, value: Tensor, line: str) -> None:
        with recording(self.outer):
            if self.outer is not None:
                self.outer.write(target, value, line)
            root = self.roots.get(id(target._storage))
            tangent = self.get(value)
            if root is None and tangent is None:
                return
            if tangent is None:
                tangent = zeros_of(value._type)
            if not target._chain:
                self.set(target, tangent)
                return
            if root is None:
                root = zeros_of(target._storage.type)
            steps = [root]
            for op, attrs in target._chain[:-1]:
                steps.append(op(steps[-1], **attrs))
            for (op, attrs), step in zip(reversed(target._chain), reversed(steps), strict=True):
                tangent = op.put(step, tangent, **attrs)
            self.set(target, tangent)

    def raw_read(self, tensor: Tensor, what: str) -> None:
        if self.outer is not None:
            self.outer.raw_read(tensor, what)

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
        return draw_tensors(generator.initial_seed(), generator.advance())

    def lift(self, scalar: Any) -> Any:
        return self.outer.lift(scalar)

    def lift_number(self, value: Any, owner: Any, key: Any) -> Any:
        return value if self.outer is None else self.outer.lift_number(value, owner, key)

    def specialise(self, scalar: Any) -> None:
        if self.outer is not None:
            self.outer.specialise(scalar)


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
    outer = state.recorder
    tape = _Tangents(outer)
    fresh = []
    for x, t in zip(xs, ts, strict=True):
        if x._type != t._type:
            raise RuntimeError(f"[jvp] expected a tangent of type {x._type}; got {t._type}")
        # A clone is the root of a storage of its own.
        y = x.clone()
        tape.set(y, t)
        fresh.append(y)
    with recording(tape):
        out = function(*fresh)
    many = out if isinstance(out, (tuple, list)) else (out,)
    found = []
    for y in many:
        along = tape.get(y) if isinstance(y, Tensor) else None
        if along is None and isinstance(y, Tensor):
            along = zeros_of(y._type)
        found.append(along)
    return (out, tuple(found)) if isinstance(out, (tuple, list)) else (out, found[0])
