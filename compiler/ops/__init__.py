"""All op records: importing this package fills `OPS`."""

from jitgrad.compiler.ops import (
    arithmetic,
    create,
    elementwise,
    reduce,
)
from jitgrad.compiler.ops.record import OPS, Op, op

__all__ = [
    "OPS",
    "Op",
    "arithmetic",
    "create",
    "elementwise",
    "op",
    "reduce",
]
