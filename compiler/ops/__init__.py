"""All op records: importing this package fills `OPS`."""

from jitgrad.compiler.ops import (
    arithmetic,
    conv,
    create,
    elementwise,
    indexing,
    linalg,
    movement,
    random,
    reduce,
    scan,
    slicing,
    softmax,
)
from jitgrad.compiler.ops.record import OPS, Op, op

__all__ = [
    "OPS",
    "Op",
    "arithmetic",
    "conv",
    "create",
    "elementwise",
    "indexing",
    "linalg",
    "movement",
    "op",
    "random",
    "reduce",
    "scan",
    "slicing",
    "softmax",
]
