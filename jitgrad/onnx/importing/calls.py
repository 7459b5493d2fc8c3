"""One call of a node: what handlers of ops get, and the registry of handlers.

Values are Tensors; NumPy arrays, where a value is known when the graph is (integer initializers,
constants, shapes, and all that is computed of such: so sizes stay numbers under @jit); lists
(sequences); None (absent).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

import jitgrad
from jitgrad.onnx.errors import OnnxUnsupportedError
from jitgrad.onnx.importing.reader import Array, Graph, Node
from jitgrad.onnx.types import DTYPES
from jitgrad.runtime.dtypes import DType
from jitgrad.state import state
from jitgrad.tensor import Tensor

if TYPE_CHECKING:
    from jitgrad.onnx.importing.module import Run

Handler = Callable[["Call"], Any]
_REQUIRED: Any = object()


class Registered:
    """A handler. folds: on known operands it gives a known result."""

    __slots__ = ("folds", "run")

    def __init__(self, run: Handler, folds: bool) -> None:
        self.run, self.folds = run, folds


HANDLERS: dict[tuple[str, str], Registered] = {}


def handler(*names: str, domain: str = "", folds: bool = True) -> Callable[[Handler], Handler]:
    """Registers a function for ops of ONNX, or of another domain."""

    def register(run: Handler) -> Handler:
        for name in names:
            HANDLERS[domain, name] = Registered(run, folds)
        return run

    return register


class Call:
    """A node and its operands' values.

    Attributes: node; values; opset (of the node's domain); run, for ops that hold graphs.
    """

    def __init__(self, node: Node, values: list[Any], opset: int, run: Run) -> None:
        self.node, self.values, self.opset, self.run = node, values, opset, run
        self.read: set[str] = set()

    # -- operands ------------------------------------------------------------------------------
    def has(self, i: int) -> bool:
        """Whether operand i is there."""
        return i < len(self.values) and self.values[i] is not None

    def value(self, i: int) -> Any:
        """Operand i as it is. Raises where it is absent."""
        if not self.has(i):
            raise ValueError(f"operand {i} is missing")
        return self.values[i]

    def tensor(self, i: int = 0) -> Tensor:
        """Operand i as a tensor."""
        return as_tensor(self.value(i))

    def optional(self, i: int) -> Tensor | None:
        """Operand i as a tensor; None where it is absent."""
        return as_tensor(self.values[i]) if self.has(i) else None

    def tensors(self) -> list[Tensor]:
        """All operands as tensors."""
        return [as_tensor(x) for x in self.values]

    def array(self, i: int) -> Array:
        """Operand i as an array, whose numbers Python needs."""
        return as_array(self.value(i))

    def ints(self, i: int) -> list[int]:
        """Operand i, a vector of integers that Python needs."""
        found = self.array(i)
        whole = found.dtype.kind in "iu" or (found.dtype.kind == "f" and (found % 1 == 0).all())
        if not whole:
            raise ValueError(f"expected operand {i} to be integers; got {found.dtype}")
        return [int(v) for v in found.reshape(-1)]

    # -- attributes ----------------------------------------------------------------------------
    def attr(self, name: str, default: Any = _REQUIRED) -> Any:
        """An attribute; of the default's type where there is one."""
        self.read.add(name)
        found = self.node.attributes.get(name, default)
        if found is _REQUIRED:
            raise ValueError(f"attribute {name!r} is missing")
        kind = type(default)
        if default is not _REQUIRED and default is not None and type(found) is not kind:
            raise ValueError(f"attribute {name!r} is {found!r}; expected a {kind.__name__}")
        return found

    def given(self, name: str) -> bool:
        """Whether the node has the attribute."""
        return name in self.node.attributes

    def ignore(self, *names: str) -> None:
        """Says of attributes that they change nothing here. Others that no one reads are refused:
        a later opset may have given them a meaning."""
        self.read.update(names)

    def graph(self, name: str) -> Graph:
        """An attribute that holds a graph."""
        found = self.attr(name)
        if not isinstance(found, Graph):
            raise ValueError(f"attribute {name!r} is no graph")
        return found

    def dtype(self, name: str, default: int | None = None) -> DType:
        """An attribute that numbers an element type."""
        return dtype_of(self.attr(name, _REQUIRED if default is None else default))

    def axes(self, i: int = 1) -> list[int] | None:
        """Operand i or, in older opsets, the attribute: axes; None where they are not given."""
        if self.has(i):
            return self.ints(i)
        found = self.attr("axes", None)
        return None if found is None else [int(a) for a in found]

    @property
    def outputs(self) -> int:
        """How many results the node names."""
        return len(self.node.outputs)

    def unsupported(self, what: str) -> NoReturn:
        raise OnnxUnsupportedError(f"[onnx] {self.node}: {what} is not supported")


def dtype_of(number: int) -> DType:
    """Our dtype for ONNX's number of an element type."""
    found = DTYPES.get(number)
    if found is None:
        raise OnnxUnsupportedError(f"[onnx] element type {number} is not supported")
    return found


def as_tensor(x: Any) -> Tensor:
    """A value as a tensor."""
    if isinstance(x, Tensor):
        return x
    if not isinstance(x, np.ndarray):
        raise ValueError(f"expected a tensor; got a {type(x).__name__}")
    try:
        return jitgrad.from_numpy(np.array(x, order="C"))
    except TypeError as error:
        raise OnnxUnsupportedError(f"[onnx] {error}") from None


def as_array(x: Any) -> Array:
    """A value as an array: reads a tensor's data (compiled code runs in segments there)."""
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, Tensor):
        return np.asarray(x.detach().numpy())
    raise ValueError(f"expected a tensor; got a {type(x).__name__}")


def is_known(x: Any) -> bool:
    """Whether a value is known when the graph is."""
    return x is None or isinstance(x, np.ndarray)


@contextmanager
def apart() -> Iterator[None]:
    """What runs inside is plain computing: not recorded, not on the tape, with data."""
    names = ("recorder", "grad_enabled", "abstract")
    before = [getattr(state, name) for name in names]
    for name, value in zip(names, (None, False, False), strict=True):
        setattr(state, name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(state, name, value)


def check_size(shape: Sequence[int], itemsize: int = 4) -> tuple[int, ...]:
    """A shape that the machine's memory can hold. Raises ValueError otherwise."""
    sizes = tuple(int(d) for d in shape)
    if any(d < 0 for d in sizes):
        raise ValueError(f"expected sizes of at least 0; got {list(sizes)}")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if _HAS_SYSCONF else 1 << 40
    if math.prod(sizes) * itemsize > total:
        raise ValueError(f"a tensor of shape {list(sizes)} is larger than this machine's memory")
    return sizes


_HAS_SYSCONF = hasattr(os, "sysconf")


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front. Raises IndexError where there is none."""
    if not -rank <= axis < max(rank, 1):
        raise IndexError(f"expected an axis of {rank} dims; got {axis}")
    return axis % rank if rank else 0
