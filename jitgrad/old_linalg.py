"""The functions of matrices and spectra that torch has at its top: most are torch.linalg's, under
older names. jitgrad imports this at their first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.functions import decompositions, reduce, solvers, spectrograms
from jitgrad.methods import LATER
from jitgrad.missing import missing
from jitgrad.public import with_out
from jitgrad.tensor import Tensor


def frobenius_norm(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The square root of the sum of squares over dims."""
    return reduce.vector_norm(input, 2, dim, keepdim)


_MODULES = {"decompositions": decompositions, "solvers": solvers, "spectrograms": spectrograms}
_ALL: dict[str, Callable[..., Any]] = {
    **{name: with_out(getattr(_MODULES[home], inner)) for name, (home, inner) in LATER.items()},
    "frobenius_norm": with_out(frobenius_norm),
    "lu_unpack": with_out(decompositions.lu_unpack),
    "nuclear_norm": with_out(reduce.nuclear_norm),
}
globals().update(_ALL)
__all__ = sorted(_ALL)


__getattr__ = missing(__name__)
