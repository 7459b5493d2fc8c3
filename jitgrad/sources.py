"""Sources: where the inputs, owners and results of a recorded function are found at each call.

Owns the descriptions only. What finds tensors while recording is watch.py (`Watch`); what turns
sources into Python code for replay is replay_code.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Chain = Sequence[tuple[Any, dict[str, Any]]]


@dataclass(frozen=True)
class Arg:
    """Leaf `index` of the arguments."""

    index: int


@dataclass(frozen=True)
class Captured:
    """What a watched item of Python state holds now (guards.Item)."""

    item: Any


def is_array(source: Any) -> bool:
    """Whether a source is a NumPy array that the function makes a tensor of."""
    return isinstance(source, Captured) and source.item.kind == "array"


@dataclass(frozen=True)
class Grad:
    """`.grad` of a tensor, read afresh at each call."""

    owner: Arg | Captured


@dataclass(frozen=True, eq=False)
class Constant:
    """An array that the function made from guarded host values."""

    array: np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Number:
    """A lifted host number: a HostScalar, evaluated in double at each call."""

    scalar: Any


@dataclass(frozen=True, eq=False)
class Seed:
    """The seed of a generator, as int64."""

    generator: Any


@dataclass(frozen=True, eq=False)
class Draw:
    """The generator's next draw number plus `offset`."""

    generator: Any
    offset: int


Source = Arg | Captured | Grad | Constant | Number | Seed | Draw
Owner = Arg | Captured


@dataclass(frozen=True, eq=False)
class ConstantResult:
    """A result that is no tensor: the same at each call that the guards admit."""

    value: Any


@dataclass(frozen=True, eq=False)
class SizeResult:
    """A result that is a symbolic size."""

    size: Any


@dataclass(frozen=True, eq=False)
class SameResult:
    """A result that is the very object found at a source."""

    source: Source


@dataclass(frozen=True, eq=False)
class AliasResult:
    """A result on the storage of an input: `source`'s tensor, then these view ops.

    An empty chain is a new tensor on the same storage, off the tape (detach). number: which tensor
    it is (results that are one tensor have one number). tracked: its views were made in grad mode.
    """

    source: Source
    chain: Chain
    requires_grad: bool
    number: int
    tracked: bool


@dataclass(frozen=True, eq=False)
class HostResult:
    """A result that is a lifted host number: a HostScalar, evaluated at each call."""

    scalar: Any


@dataclass(frozen=True, eq=False)
class NumberResult:
    """A result that is a Python float: the element of array `index` of the run (0-d, float64)."""

    index: int


SPENT = -2


@dataclass(frozen=True, eq=False)
class FreshResult:
    """A result on new memory: array `index` of the run, then these view ops.

    number: which tensor it is (results that are one tensor have one number). slot: which output
    of the compiled tape node it is, or -1; SPENT when backward() ran inside the function and
    freed its graph. version: how often its storage was written in place. view: it is a view of
    another tensor. order: the array's dims from the slowest to the fastest in memory, as they are
    to be (None: row-major).
    """

    index: int
    chain: Chain
    requires_grad: bool
    number: int
    slot: int = -1
    version: int = 0
    view: bool = True
    order: tuple[int, ...] | None = None


Result = (
    ConstantResult | SizeResult | SameResult | AliasResult | HostResult | NumberResult | FreshResult
)
