"""How reductions, scans and scatters combine values, as Python text.

Owns the state of an accumulator (a value; for argmax and argmin an index too), its start, one step,
and the combination of the states of a block's threads. Neutral values are the CPU's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitgrad.compiler.codegen.accumulate import neutral
from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.writer import KernelWriter
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_OPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
_SHUFFLED = ("float32", "float64", "int32", "int64")
"""Dtypes that warps exchange; others go through shared memory only."""


@dataclass
class Combine:
    """One accumulator: `combine` is a name in loops.COMBINES, `dtype` that of its values."""

    combine: str
    dtype: DType

    @property
    def is_arg(self) -> bool:
        return self.combine.startswith("arg")

    def start(self, w: KernelWriter) -> list[str]:
        """Names of the state before the first element."""
        state = [w.let(scalar.constant(neutral(self.combine, self.dtype), self.dtype), "acc")]
        if self.is_arg:
            state.append(w.let("NO_INDEX", "at"))
        return state

    def reset(self, w: KernelWriter, state: Sequence[str]) -> None:
        w.line(f"{state[0]} = {scalar.constant(neutral(self.combine, self.dtype), self.dtype)}")
        if self.is_arg:
            w.line(f"{state[1]} = NO_INDEX")

    def joined(self, a: str, b: str) -> str:
        """The text of a and then b (not of argmax, argmin)."""
        return scalar.arithmetic(_OPS[self.combine], self.dtype, [a, b])

    def add(self, w: KernelWriter, state: Sequence[str], new: Sequence[str]) -> None:
        """state takes one more value (and its index)."""
        if not self.is_arg:
            w.line(f"{state[0]} = {self.joined(state[0], new[0])}")
            return
        with w.block(f"if {self.combine}_takes({', '.join([*new, *state])}):"):
            w.line(f"{state[0]} = {new[0]}")
            w.line(f"{state[1]} = {new[1]}")

    def block(self, w: KernelWriter, state: Sequence[str]) -> str:
        """The result of the whole block, in every thread of it."""
        if self.is_arg:
            shared = [w.exchange(w.threads, self.dtype), w.exchange(w.threads, dtypes.int64, "at")]
            text = f"block_{self.combine}({', '.join([*state, *shared])}, {w.threads})"
            return w.let(text)
        halves = self.dtype in scalar.HALVES
        exchanged = halves or self.dtype.name in _SHUFFLED
        name = f"{'warps' if exchanged else 'block'}_{self.combine}"
        places = max(w.threads // 32, 1) if exchanged else w.threads
        value = state[0]
        if self.dtype is dtypes.bool_:
            value = f"u8({value})"
        text = f"{name}({value}, {w.exchange(places, self.dtype)}, {w.threads})"
        if self.dtype is dtypes.bool_:
            return w.let(f"({text} != 0)")
        if halves:
            return w.let(scalar.rounded(text, self.dtype))
        if not self.dtype.is_floating_point:
            text = f"{scalar.CONVERT[self.dtype.name]}({text})"
        return w.let(text)
