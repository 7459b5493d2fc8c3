"""What two runs of a program have in common: a picture of one step, and where two differ.

Owns `picture` (everything observable of a step, copied) and `differences`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

import jitgrad as jg
from fuzz.program import Step
from jitgrad.pytree import flatten
from jitgrad.runtime.dtypes import from_numpy

QUICK_ULPS = 4
PRECISION = {
    "float16": (2.0**-10, 2.0**-24),
    "bfloat16": (2.0**-7, 2.0**-133),
    "float32": (2.0**-23, 2.0**-149),
    "float64": (2.0**-52, 2.0**-1074),
}
"""Of each dtype, the relative size of a unit in the last place, and the least positive number."""


@dataclass
class Shown:
    """A tensor, as far as it can be seen."""

    array: np.ndarray[Any, Any]
    facts: tuple[Any, ...]


@dataclass
class Picture:
    """values: path -> Shown or plain value. aliases: pairs of paths, one object or one memory."""

    values: dict[str, Any]
    aliases: set[tuple[str, str, str]]
    error: Exception | None


def _tensors(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, jg.nn.Module):
            for kind in (value.named_parameters(), value.named_buffers()):
                for name, t in kind:
                    add(f"{path}.{name}", t)
            return
        leaves = [value] if isinstance(value, jg.Tensor) else flatten(value)[0]
        for i, leaf in enumerate(leaves):
            here = path if leaf is value else f"{path}[{i}]"
            found[here] = leaf
            if isinstance(leaf, jg.Tensor) and leaf.is_leaf and leaf.grad is not None:
                found[here + ".grad"] = leaf.grad

    for name, value in step.state.items():
        add(name, value)
    if step.error is None:
        add("result", step.results)
    return found


def picture(step: Step) -> Picture:
    """Copies everything that can be seen after a step."""
    tensors = _tensors(step)
    values: dict[str, Any] = {"draws": step.draws}
    memory: list[tuple[str, Any, np.ndarray[Any, Any]]] = []
    for path, x in tensors.items():
        if isinstance(x, jg.Tensor):
            data = x._data
            assert data is not None
            facts = (
                str(x.dtype), tuple(x.shape), x.requires_grad, x.is_leaf, x.grad is None
                if x.is_leaf else True, type(x).__name__,
            )  # fmt: skip
            values[path] = Shown(np.array(data), (*facts, x._version))
            memory.append((path, x, data))
        elif isinstance(x, np.ndarray):
            values[path] = Shown(x.copy(), ())
            memory.append((path, x, x))
        elif isinstance(x, (bool, int, float, str, type(None))):
            values[path] = x
    aliases = set()
    for i, (a, x, m) in enumerate(memory):
        for b, y, n in memory[:i]:
            if x is y:
                aliases.add((a, b, "same object"))
            elif m.size and n.size and np.shares_memory(m, n):
                aliases.add((a, b, f"one memory, elements {_shared(m, n)}"))
    return Picture(values, aliases, step.error)


def _addresses(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    place = np.full(x.shape, x.__array_interface__["data"][0], np.int64)
    for axis, step in enumerate(x.strides):
        place += step * np.arange(x.shape[axis]).reshape(-1, *[1] * (x.ndim - axis - 1))
    return place.ravel()


def _shared(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str:
    """Which elements of two arrays are one, as a short text. (Layouts may differ.)"""
    p, q = _addresses(a), _addresses(b)
    pairs = [(int(i), int(j)) for i in range(p.size) for j in np.flatnonzero(q == p[i])[:2]]
    return f"{len(pairs)}: {pairs[:6]} {zlib.crc32(repr(pairs).encode())}"


def parts(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Complex numbers as pairs of floats along a new last axis; other arrays as they are."""
    return np.stack([x.real, x.imag], axis=-1) if x.dtype.kind == "c" else x


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], exact: bool) -> bool:
    """Equal; or, unless `exact`, floats within a few ulp everywhere. NaNs are equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = parts(a), parts(b)
    if not from_numpy(a.dtype).is_floating_point:
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    if exact or bool(np.all(equal)):
        return bool(np.all(equal))
    eps, least = PRECISION[from_numpy(a.dtype).name]
    ulps = QUICK_ULPS if a.dtype.itemsize > 2 else 1
    with np.errstate(all="ignore"):
        near = np.abs(x - y) <= ulps * (eps * np.minimum(np.abs(x), np.abs(y)) + least)
    return bool(np.all(equal | near))


def differences(a: Picture, b: Picture, exact: bool) -> list[tuple[str, str]]:
    """(path, what differs) for everything that does; path is "" where no noise explains it."""
    if (a.error is None) != (b.error is None) or type(a.error) is not type(b.error):
        return [("", f"raised {a.error!r} against {b.error!r}")]
    if a.error is not None:
        return []
    if set(a.values) != set(b.values):
        return [("", f"{sorted(set(a.values) ^ set(b.values))} on one side only")]
    out = []
    for path, x in a.values.items():
        y = b.values[path]
        if isinstance(x, Shown) and isinstance(y, Shown):
            if x.facts != y.facts:
                out.append(("", f"{path}: {x.facts} against {y.facts}"))
            elif not close(x.array, y.array, exact):
                out.append((path, f"{path}: {_short(x.array, y.array)}"))
        elif type(x) is not type(y) or not (x == y or x != x):
            out.append(("", f"{path}: {x!r} against {y!r}"))
    shared = a.aliases ^ b.aliases
    if shared:
        out.append(("", f"aliases: {sorted(shared)}"))
    return out


def _short(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> str:
    p, q = parts(x).astype(np.float64).ravel(), parts(y).astype(np.float64).ravel()
    bad = np.flatnonzero(~((p == q) | (np.isnan(p) & np.isnan(q))))
    i = int(bad[np.argmax(np.nan_to_num(np.abs(p[bad] - q[bad]), nan=np.inf))])
    return f"{x.dtype}{list(x.shape)} differs at {len(bad)}, at {i}: {p[i]!r} against {q[i]!r}"


def explained(
    eager: np.ndarray[Any, Any], found: np.ndarray[Any, Any], noisy: list[np.ndarray[Any, Any]]
) -> bool:
    """Whether noise moves each element of eager as far as to `found`."""
    eager, found, *noisy = (parts(a) for a in (eager, found, *noisy))
    x, y = eager.astype(np.float64), found.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    stack = np.stack([n.astype(np.float64) for n in noisy])
    with np.errstate(all="ignore"):
        moved = ~((stack == x) | (np.isnan(stack) & np.isnan(x)))
        if not from_numpy(eager.dtype).is_floating_point:
            return bool(np.all(same | np.any(moved, axis=0)))
        broken = np.any(np.isfinite(stack) != np.isfinite(x), axis=0)
        spread = np.max(np.abs(np.where(moved, stack - x, 0.0)), axis=0)
        within = np.abs(x - y) <= 3.0 * spread
    return bool(np.all(same | broken | within))
