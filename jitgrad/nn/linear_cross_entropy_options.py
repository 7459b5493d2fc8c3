"""LinearCrossEntropyOptions: how nn.functional.linear_cross_entropy cuts its work in pieces."""

from __future__ import annotations

from dataclasses import dataclass

from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_POLICIES = ("auto", "accurate", "balanced", "compact")
_ACCUMULATORS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)


@dataclass(slots=True, frozen=True)
class LinearCrossEntropyOptions:
    """How linear_cross_entropy cuts the rows of its input in pieces.

    batch_chunk_size: rows of a piece. chunking_method: chooses it where it is None: "aspect_ratio",
    as many rows as make a piece's scores about as large as the input, "aspect_ratio:N", N times
    fewer, "auto" (one of these, by dtype), or None: one piece.

    acc_policy ("auto", "accurate", "balanced", "compact") and acc_dtype are checked and choose
    nothing: sums accumulate in float32 at least. allow_retain_graph chooses nothing: gradients can
    be taken again, and of any order. Raises ValueError for other values.
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: DType | None = None

    def __post_init__(self) -> None:
        if self.acc_policy not in _POLICIES:
            raise ValueError(f"invalid acc_policy: {self.acc_policy!r}; use one of {_POLICIES}")
        if self.chunking_method not in (None, "auto"):
            name, colon, factor = str(self.chunking_method).partition(":")
            if name != "aspect_ratio" or (colon and not (factor.isdigit() and int(factor) > 0)):
                raise ValueError(f"invalid chunking_method: {self.chunking_method!r}")
        size = self.batch_chunk_size
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ValueError(f"batch_chunk_size must be positive int or None, got {size!r}")
        if self.acc_dtype is not None and self.acc_dtype not in _ACCUMULATORS:
            raise ValueError(
                f"acc_dtype must be None or one of {_ACCUMULATORS}; got {self.acc_dtype!r}"
            )

    def rows(self, count: int, features: int, classes: int, dtype: DType) -> int:
        """How many of `count` rows of `features` elements are a piece, with `classes` scores each.

        Raises ValueError where batch_chunk_size and chunking_method disagree.
        """
        method = self.chunking_method
        if method == "auto":
            small = dtype in (dtypes.float16, dtypes.bfloat16)
            method = None if self.batch_chunk_size else "aspect_ratio" + ("" if small else ":2")
        size = self.batch_chunk_size
        if method is not None:
            factor = int(method.partition(":")[2] or 1)
            target = -(-count // max(-(-classes // max(features, 1)), 1))
            found = min((1 << max(target - 1, 0).bit_length()) // factor, count)
            if size is not None and size != found:
                raise ValueError(
                    f"batch_chunk_size={size} and chunking_method={method!r}, which gives {found}, "
                    "disagree; set one of them to None"
                )
            size = found
        return max(count if size is None else size, 1)
