"""Constant tables along one dim: which elements each place of a result reads, with what weights.

What interpolation, adaptive pooling and padding are made of. Tables depend on sizes and options
only; the op `pick` reads by them, and its derivative reads by their inverse, so neither scatters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad.compiler.ops import OPS
from jitgrad.creation import tensor
from jitgrad.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """For a dim of size n: places (m, k), each in [0, n), or -1 for nothing; weights (m, k), or
    None for 1; and what the op `pick` takes, index (m, k) and inverse (n, r)."""

    places: Array
    weights: Array | None
    index: Array
    inverse: Array

    @property
    def identity(self) -> bool:
        """Whether the result is the dim itself."""
        n = len(self.inverse)
        return self.weights is None and np.array_equal(self.places, np.arange(n)[:, None])


def table(n: int, places: Array, weights: Array | None = None) -> Table:
    """The table of a dim of size n, with its inverse."""
    places = np.asarray(places, np.int64)
    flat = places.reshape(-1)
    read = np.flatnonzero(flat >= 0)
    read = read[np.argsort(flat[read], kind="stable")]  # by the element that they read
    rows = flat[read]
    counts = np.bincount(rows, minlength=n)
    turn = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(1, int(counts.max(initial=0)))
    inverse = np.full((n, width), -1, np.int64)
    inverse[rows, turn] = read
    index = np.full(flat.shape, -1, np.int64)
    index[read] = rows * width + turn
    return Table(places, weights, index.reshape(places.shape), inverse)


def picked(x: Tensor, dim: int, t: Table) -> Tensor:
    """What the table reads along a dim of x, which becomes two, (m, k)."""
    out: Tensor = OPS["pick"](x, tensor(t.index), tensor(t.inverse), axis=dim)
    return out


def resampled(x: Tensor, dim: int, t: Table) -> Tensor:
    """x with a dim of size n replaced by the weighted sums of the table's rows, m of them. A table
    without weights has one element in each row."""
    if t.identity:
        return x
    parts = picked(x, dim, t)
    if t.weights is None:
        return parts.squeeze(dim + 1)
    weights = tensor(t.weights, dtype=x.dtype)
    return (parts * weights.reshape(t.weights.shape + (1,) * (x.dim() - dim - 1))).sum(dim + 1)


def fixed_point(t: Table) -> tuple[Table, int]:
    """(the table with whole weights, how many bits of them are a fraction): as many as keep the
    largest weight below 2^15, 22 at most. Each element is read once in a row."""
    places = t.places.copy()
    weights = np.ones(places.shape) if t.weights is None else t.weights.copy()
    for b in range(1, places.shape[1]):
        for a in range(b):
            again = (places[:, a] == places[:, b]) & (places[:, b] >= 0)
            weights[:, a] += np.where(again, weights[:, b], 0.0)
            places[again, b] = -1
    weights[places < 0] = 0.0
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    whole = np.trunc(weights * (1 << bits) + np.where(weights < 0, -0.5, 0.5))
    return table(len(t.inverse), places, whole), bits
