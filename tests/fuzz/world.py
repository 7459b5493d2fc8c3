"""What generated programs find in their namespace: deterministic tensors, a small Module."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.compiler.ops.record import OPS
from jitgrad.runtime import dtypes


def array(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Numbers of moderate size that depend on the arguments only."""
    key = zlib.crc32(repr((dtype, shape, seed)).encode())
    rng = np.random.default_rng(key)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    if dtype.startswith("int"):
        return np.asarray(rng.integers(-5, 9, shape).astype(dtype))
    values = np.round(rng.uniform(-2.0, 2.0, shape), 3)
    return np.asarray(values).astype(getattr(dtypes, dtype).np)


def tensor(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """A tensor of array(...)."""
    return jg.from_numpy(array(dtype, shape, seed))


def parameter(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """A leaf that requires grad."""
    return tensor(dtype, shape, seed).requires_grad_()


def index(shape: tuple[int, ...], below: int, seed: int) -> Any:
    """int64 indices in [0, below)."""
    key = zlib.crc32(repr((shape, below, seed)).encode())
    return jg.from_numpy(np.asarray(np.random.default_rng(key).integers(0, below, shape)))


def sample(name: str, number: int, which: int) -> Any:
    """An operand of a record's sample."""
    given = list(OPS[name].samples())[number].args[which]
    return jg.from_numpy(np.array(given))


class Net(nn.Module):
    """Parameters, buffers, and layers that hold state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor("float32", (size, size), 11))
        self.bias = nn.Parameter(tensor("float32", (size,), 12))
        self.norm = nn.BatchNorm1d(size)
        self.drop = nn.Dropout(0.25)
        self.count = nn.Buffer(tensor("float32", (), 13))
        self.scale = 0.5


def namespace() -> dict[str, Any]:
    """A fresh namespace for one run of a program."""
    found = {
        "jg": jg, "F": F, "nn": nn, "np": np, "array": array, "tensor": tensor,
        "parameter": parameter, "index": index, "sample": sample, "Net": Net, "OPS": OPS,
    }  # fmt: skip
    found["__name__"] = "generated"
    return found
