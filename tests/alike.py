"""What compiled code gives beside what Python gives: `assert_same`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg


def assert_same(found: Any, wanted: Any, rtol: float = 2e-5, atol: float = 1e-5) -> None:
    """The same types, lengths, shapes and dtypes; floats within rounding, other values equal."""
    assert type(found) is type(wanted)
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert_same(a, b, rtol, atol)
    elif isinstance(wanted, jg.Tensor):
        assert found.dtype is wanted.dtype and found.shape == wanted.shape
        assert all(type(d) is int for d in found.shape)
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol, atol)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    else:
        assert found == wanted
