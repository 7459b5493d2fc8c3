"""Functions that PyTorch has for its own use, in both libraries."""

from __future__ import annotations

import numpy as np
from parity.compare import check

RNG = np.random.default_rng(0)


def test_native_layer_norm() -> None:
    x, w, b = RNG.standard_normal((2, 3, 4)), RNG.standard_normal(4), RNG.standard_normal(4)
    check(lambda lib, x, w, b: lib.t.native_layer_norm(x, (4,), w, b, 1e-5), x, w, b, scale=10)
    check(lambda lib, x: lib.t.native_layer_norm(x, (3, 4), None, None, 1e-3), x, scale=10)


def test_native_group_norm() -> None:
    x, w, b = RNG.standard_normal((2, 6, 5)), RNG.standard_normal(6), RNG.standard_normal(6)

    def code(lib, x, w, b):
        return lib.t.native_group_norm(x, w, b, 2, 6, 5, 3, 1e-5)

    check(code, x, w, b, scale=10)


def test_embedding_with_weight_first() -> None:
    weight, place = RNG.standard_normal((5, 3)), np.array([[0, 4], [2, 2]])
    check(lambda lib, w, i: lib.t.embedding(w, i), weight, place)
    check(lambda lib, w, i: lib.t.embedding(w, i, 2, True), weight, place)
