"""Padding of the last dims: with a constant, or with the input's own elements."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jitgrad import functions as ops
from jitgrad.casting import wide
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.symbolic import Sym
from jitgrad.creation import arange
from jitgrad.nn.functional.args import expect_tensors
from jitgrad.runtime import dtypes
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor

_MODES = ("constant", "reflect", "replicate", "circular")


def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Pads the last dims: (last low, last high, second to last low, ...).

    mode 'constant' pads with `value` (0 by default) and crops where an amount is negative.
    'reflect' mirrors without the edge, 'replicate' repeats the edge, 'circular' wraps around; they
    leave the first dims as they are: 1 or 2 of them. Raises RuntimeError for amounts that do not
    fit the input's sizes.
    """
    expect_tensors("pad", input=input)
    if mode not in _MODES:
        raise NotImplementedError(f"[pad] expected mode to be one of {_MODES}; got {mode!r}")
    if mode == "constant":
        return ops.pad_constant(input, pad, 0.0 if value is None else float(value))
    if value is not None and value != 0:
        raise RuntimeError(f"[pad] expected no value with mode {mode!r}; got value={value}")
    amounts = [int(p) for p in pad]
    if mode != "circular" and input.dtype is dtypes.bool_:
        raise NotImplementedError(f"[pad] mode {mode!r} is not for bools; got {input._type}")
    if not amounts or len(amounts) % 2 or not 1 <= input.dim() - len(amounts) // 2 <= 2:
        raise NotImplementedError(
            f"[pad] mode {mode!r} pads all dims but the first 1 or 2; got pad {tuple(amounts)} "
            f"for input {tuple(input.shape)}"
        )
    if mode == "circular":
        return _by_index(input, amounts, mode)
    in_float32 = mode == "replicate" or len(amounts) <= 4
    out = (_in_float32 if in_float32 else _by_index)(input, amounts, mode)
    kind = "Reflection" if mode == "reflect" else "Replication"
    return called(out, f"{kind}Pad{len(amounts) // 2}DBackward0")


def _by_index(input: Tensor, amounts: Sequence[int], mode: str) -> Tensor:
    """Each padded dim, of the input's elements at the places that the mode says."""
    stretches: list[tuple[tuple[int, int, int], ...]] = [()] * input.dim()
    padded = input
    for k in range(len(amounts) // 2):
        low, high = amounts[2 * k : 2 * k + 2]
        dim = input.dim() - 1 - k
        size = input.shape[dim]
        if (low or high) and isinstance(size, Sym):
            padded = padded.index_select(dim, _places(size, low, high, mode, input.device))
        elif low or high:
            stretches[dim] = _runs(int(size), low, high, mode)
    if padded is not input and not any(stretches):
        return padded
    out: Tensor = OPS["take_stretches"](padded, stretches=tuple(stretches))
    return out


def _places(size: Any, low: int, high: int, mode: str, device: Any) -> Tensor:
    """`_order` of a dim whose size may differ from call to call."""
    _check_amounts(size, low, high, mode)
    places = arange(-low, size + high, device=device)
    if mode == "circular":  # what is left after cropping repeats
        first = max(-low, 0)
        return (places - first) % (size - max(-high, 0) - first) + first
    if mode == "replicate":
        return places.clamp(0, size - 1)
    return size - 1 - (size - 1 - places.abs()).abs()


def _check_amounts(size: Any, low: int, high: int, mode: str) -> None:
    limit = {"reflect": size - 1, "circular": size}.get(mode)
    if size == 0 or (limit is not None and max(low, high) > limit):
        raise RuntimeError(
            f"[pad] expected padding of at most {limit or 0} for mode {mode!r} and a dim of size "
            f"{size}; got ({low}, {high})"
        )
    if size + high + low <= 0:
        raise RuntimeError(f"[pad] padding ({low}, {high}) leaves nothing of a dim of size {size}")


@functools.lru_cache(maxsize=256)
def _runs(size: int, low: int, high: int, mode: str) -> tuple[tuple[int, int, int], ...]:
    """The padded dim as stretches of the input: (first index, step of 1, -1 or 0, elements)."""
    runs: list[tuple[int, int, int]] = []
    for index in _order(size, low, high, mode):
        if runs:
            start, step, count = runs[-1]
            if count == 1 and abs(index - start) <= 1:
                runs[-1] = (start, index - start, 2)
                continue
            if count > 1 and index == start + step * count:
                runs[-1] = (start, step, count + 1)
                continue
        runs.append((index, 1, 1))
    return tuple(runs)


_in_float32 = wide(_by_index)  # under autocast: those that are primitive in PyTorch


def _order(size: int, low: int, high: int, mode: str) -> list[int]:
    """The index of the input's element at each place of the padded dim."""
    _check_amounts(size, low, high, mode)
    places = range(-low, size + high)
    if mode == "circular":  # what is left after cropping repeats
        kept = range(max(-low, 0), size - max(-high, 0))
        return [kept[(i - kept.start) % len(kept)] for i in places]
    if mode == "replicate":
        return [min(max(i, 0), size - 1) for i in places]
    return [size - 1 - abs(size - 1 - abs(i)) for i in places]
