"""Which saved values each gradient of an op reads, found by running its vjp without data.

A record says what its vjp reads in all (`saves`). Here each operand's gradient is asked for alone:
`y = x * 2` with a constant 2 then saves nothing of x, so x may be changed in place, and backward
does not compute the constant's gradient: what is not saved reaches the vjp as an absent tensor, and
any op on an absent tensor gives an absent tensor.
"""

from __future__ import annotations

from typing import Any

from jitgrad.compiler.types import TensorType
from jitgrad.state import state
from jitgrad.tape.node import EVERY
from jitgrad.tensor import Tensor, wrap

Key = int | str
"""An operand's position, or "out0", "out1", ... for a result."""


class _Taint:
    """A recorder that follows which saved values each tensor was computed from."""

    def __init__(self) -> None:
        self.sources: dict[int, frozenset[Key]] = {}
        self.keep: list[Any] = []

    def mark(self, x: Tensor, source: frozenset[Key]) -> None:
        self.keep.append(x._storage)
        self.sources[id(x._storage)] = source

    def of(self, x: Any) -> frozenset[Key]:
        return self.sources.get(id(x._storage), frozenset()) if isinstance(x, Tensor) else _NONE

    def op(self, op: Any, operands: Any, attrs: Any, outputs: Any, line: str) -> None:
        found: frozenset[Key] = frozenset()
        for x in operands:
            found = found | self.of(x)
        for y in outputs:
            self.mark(y, found)


_NONE: frozenset[Key] = frozenset()


def saved_keys(op: Any, count: int, nout: int) -> frozenset[Key]:
    """What the record's vjp reads in all."""
    keys: set[Key] = {i for i in range(count) if EVERY in op.saves or i in op.saves}
    keys |= {f"out{i}" for i in range(nout) if "out" in op.saves or f"out{i}" in op.saves}
    return frozenset(keys)


def reads_of_gradients(
    op: Any, operand_types: tuple[TensorType, ...], out_types: Any, attrs: dict[str, Any]
) -> tuple[frozenset[Key], ...]:
    """For each operand, the saved values that its gradient is computed from.

    A vjp that cannot run here (there is none, say) is taken to read all; it raises in backward.
    """
    nout = 1 if op.nout == 1 else len(out_types)
    keys = saved_keys(op, len(operand_types), nout)
    whole = (keys,) * len(operand_types)
    if len(keys) == 0 or (len(operand_types) == 1 and EVERY not in op.saves):
        return whole
    taint = _Taint()

    def stand_in(key: Key, type_: TensorType) -> Any:
        if key not in keys:
            return type_
        x = wrap(None, type_)
        taint.mark(x, frozenset((key,)))
        return x

    before = (state.abstract, state.recorder, state.lazy, state.grad_enabled)
    state.abstract, state.recorder, state.lazy, state.grad_enabled = True, taint, None, False
    try:
        operands = [stand_in(i, t) for i, t in enumerate(operand_types)]
        if op.nout == 1:
            g: Any = wrap(None, out_types)
            found = op.vjp(g, stand_in("out0", out_types), *operands, **attrs)
        else:
            g = tuple(wrap(None, t) if t.dtype.category >= 2 else None for t in out_types)
            outs = tuple(stand_in(f"out{i}", t) for i, t in enumerate(out_types))
            found = op.vjp(g, outs, *operands, **attrs)
    except (RuntimeError, TypeError, AttributeError, ValueError, IndexError):
        return whole
    finally:
        state.abstract, state.recorder, state.lazy, state.grad_enabled = before
    return tuple(taint.of(x) for x in found)
