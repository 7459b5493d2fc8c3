"""Constant tables along one dim: which elements each place of a result reads, with what weights.

What interpolation, adaptive pooling, unfold and fold are made of. Tables depend on sizes and
options only; the ops `pick` and `resample` read by them, and their derivatives read by the inverse,
so none scatters.
"""

from __future__ import annotations

import functools
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
    None for 1; and what the op `pick` takes: rows and index (k, m), inverse (r, n)."""

    places: Array
    weights: Array | None
    rows: Array
    inverse: Array
    index: Array

    @property
    def identity(self) -> bool:
        """Whether the result is the dim itself."""
        n = self.inverse.shape[1]
        return self.weights is None and np.array_equal(self.rows, np.arange(n)[None])

    @functools.cached_property
    def back(self) -> tuple[Array, Array]:
        """(which places read each element, with what weights), (r, n) each."""
        assert self.weights is not None
        at, some = self.inverse, self.inverse >= 0
        places, weights = np.full(at.shape, -1, np.int64), np.zeros(at.shape)
        places[some] = at[some] % max(1, len(self.places))
        weights[some] = np.ascontiguousarray(self.weights.T).reshape(-1)[at[some]]
        return places, weights


def table(n: int, places: Array, weights: Array | None = None) -> Table:
    """The table of a dim of size n, with its inverse."""
    places = np.asarray(places, np.int64)
    rows = np.ascontiguousarray(places.T)
    flat = rows.reshape(-1)
    read = np.flatnonzero(flat >= 0)
    read = read[np.argsort(flat[read], kind="stable")]  # by the element that they read
    column = flat[read]
    counts = np.bincount(column, minlength=n)
    turn = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    inverse = np.full((max(1, int(counts.max(initial=0))), n), -1, np.int64)
    inverse[turn, column] = read
    index = np.full(flat.shape, -1, np.int64)
    index[read] = turn * n + column
    return Table(places, weights, rows, inverse, index.reshape(rows.shape))


def picked(x: Tensor, dim: int, t: Table) -> Tensor:
    """What the table reads along a dim of x, which becomes two, (k, m)."""
    tables = tensor(t.rows), tensor(t.inverse), tensor(t.index)
    out: Tensor = OPS["pick"](x, *tables, axis=dim)
    return out


def weighted(x: Tensor, dim: int, t: Table) -> Tensor:
    """`picked` times the table's weights, in x's dtype."""
    parts = picked(x, dim, t)
    if t.weights is None:
        return parts
    weights = tensor(np.ascontiguousarray(t.weights.T), dtype=x.dtype)
    return parts * weights.reshape(tuple(weights.shape) + (1,) * (x.dim() - dim - 1))


def resampled(x: Tensor, dim: int, t: Table) -> Tensor:
    """x with a dim of size n replaced by the weighted sums of the table's rows, m of them."""
    if t.identity:
        return x
    if t.weights is None:
        parts = picked(x, dim, t)
        return parts.squeeze(dim) if t.places.shape[1] == 1 else parts.sum(dim)
    back, back_weights = t.back
    weights = [tensor(np.ascontiguousarray(w), dtype=x.dtype) for w in (t.weights.T, back_weights)]
    out: Tensor = OPS["resample"](x, tensor(t.rows), weights[0], tensor(back), weights[1], axis=dim)
    return out


def spread(x: Tensor, dim: int, t: Table) -> Tensor:
    """`picked` transposed: a dim of size k m, added up where the table reads, of size n."""
    tables = tensor(t.inverse), tensor(t.index.reshape(1, -1)), tensor(t.inverse)
    out: Tensor = OPS["pick"](x, *tables, axis=dim)
    return out.sum(dim)


def merged(places: Array, weights: Array) -> tuple[Array, Array]:
    """Places and weights with each element once in a row: what is read again is added up."""
    places, weights = places.copy(), weights.copy()
    for b in range(1, places.shape[1]):
        for a in range(b):
            again = (places[:, a] == places[:, b]) & (places[:, b] >= 0)
            weights[:, a] += np.where(again, weights[:, b], 0.0)
            places[again, b] = -1
    weights[places < 0] = 0.0
    return places, weights


def fixed_point(t: Table) -> tuple[Table, int]:
    """(the table with whole weights, how many bits of them are a fraction): as many as keep the
    largest weight below 2^15, 22 at most."""
    weights = np.ones(t.places.shape) if t.weights is None else t.weights
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    whole = np.trunc(weights * (1 << bits) + np.where(weights < 0, -0.5, 0.5))
    return table(t.inverse.shape[1], t.places, whole), bits
