"""TensorType: what infer computes with. Shape (ints or symbolic dims), dtype, device; no data."""

from __future__ import annotations

from dataclasses import dataclass

from jitgrad.compiler.symbolic import Dim, Sym, prod
from jitgrad.runtime.dtypes import DType


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor value: `shape`, `dtype`, `device` ("cpu", "cuda:0")."""

    shape: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        return prod(self.shape)

    def with_shape(self, shape: tuple[Dim, ...]) -> TensorType:
        return TensorType(tuple(shape), self.dtype, self.device)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype, self.device)

    def __str__(self) -> str:
        dims = ", ".join(d.label() if isinstance(d, Sym) else str(d) for d in self.shape)
        suffix = "" if self.device == "cpu" else f"@{self.device}"
        return f"{self.dtype.name}[{dims}]{suffix}"


def broadcast_shapes(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The NumPy broadcast of shapes. Raises ValueError (without op's name) on a mismatch."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = []
    for axis in range(rank):
        size: Dim = 1
        for s in shapes:
            k = axis - (rank - len(s))
            if k < 0 or _is_one(s[k]):
                continue
            if _is_one(size):
                size = s[k]
            elif size != s[k]:
                raise ValueError(f"sizes {size} and {s[k]} at dim {axis - rank} do not broadcast")
        out.append(size)
    return tuple(out)


def _is_one(d: Dim) -> bool:
    return not isinstance(d, Sym) and d == 1
