"""What generated replay code calls at run time (see replay_code.py)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from jitgrad.compiler.fixed_sizes import concrete
from jitgrad.dispatch import apply
from jitgrad.effects import is_module
from jitgrad.facts import layout
from jitgrad.state import bump_epoch, state
from jitgrad.tensor import Tensor

MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()


def has_layout(x: Tensor, strides: tuple[int, ...] | None) -> bool:
    """Whether a tensor's memory layout is as recorded (None: dense row-major)."""
    return layout(x._data) == strides


def make_view(t: Tensor, chain: Sequence[tuple[Any, dict[str, Any]]]) -> Tensor:
    """View ops applied to a tensor."""
    for op, attrs in chain:
        t = apply(op, (t,), attrs)
    return t


def chain_at(chain: Any, names: Sequence[str], dims: Sequence[int]) -> Any:
    """View ops with the values of symbolic sizes put in."""
    values = dict(zip(names, dims, strict=True))
    return [
        (op, {k: concrete(v, values) for k, v in attrs.items()}) for op, attrs in chain
    ]  # fmt: skip


def make_alias(base: Tensor, chain: Any, requires_grad: bool, tracked: bool) -> Tensor:
    """A result on an input's storage; not tracked: by views that are made in no_grad mode."""
    if not chain or (base.requires_grad and not requires_grad):
        base = base.detach()
    before = state.grad_enabled
    state.grad_enabled = before and tracked
    try:
        out = make_view(base, chain)
    finally:
        state.grad_enabled = before
    if requires_grad and not out.requires_grad:
        out._requires_grad = True
    return out


def leaf(t: Tensor) -> Tensor:
    """The tensor, now a leaf that requires grad."""
    t._requires_grad = True
    return t


def set_slot(owner: Any, key: Any, value: Tensor | None) -> None:
    """A rebind of a Module's or another object's attribute, or of an item of a dict or list."""
    if is_module(owner):
        if key in owner._buffers:
            owner._buffers[key] = value
        else:
            owner.__dict__[key] = value
        bump_epoch()
    elif isinstance(owner, (dict, list)):
        owner[key] = value
    else:
        setattr(owner, key, value)


def overlap(array: np.ndarray[Any, Any], others: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether an array that is written (or may be) overlaps those of other storages."""
    may = np.may_share_memory
    return any(may(array, b) for b in others)


def clash(written: Sequence[np.ndarray[Any, Any]], read: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether one of the arrays that are written overlaps another of these arrays."""
    spans = [(*span(a), True) for a in written if a.size]
    spans += [(*span(a), False) for a in read if a.size]
    spans.sort()
    end = end_written = 0  # of what begins before
    for low, high, is_written in spans:
        if low < end_written or (is_written and low < end):
            return True
        end = max(end, high)
        end_written = max(end_written, high) if is_written else end_written
    return False


def span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """The addresses from which and below which an array's elements lie."""
    if array.flags.c_contiguous:
        start = array.__array_interface__["data"][0]
        return start, start + array.nbytes
    low, high = byte_bounds(array)
    return int(low), int(high)


def touches(array: np.ndarray[Any, Any], spans: tuple[list[int], list[int]]) -> bool:
    """Whether an array lies on one of these spans (sorted starts and ends, disjoint)."""
    low, high = span(array)
    k = bisect_left(spans[0], high)
    return k > 0 and spans[1][k - 1] > low and high > low


def signed(seed: int) -> int:
    """A seed's 64 bits as int64."""
    return seed - 2**64 if seed >= 2**63 else seed
