"""Orthogonal weights by Householder reflections: nn.utils.parametrizations.orthogonal.

The other two maps of PyTorch's, by matrix exponential and by Cayley transform, are not there
(docs/limits.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.autograd.modes import no_grad
from jitgrad.creation import eye, from_numpy, placed, randn
from jitgrad.functions.shape import cat
from jitgrad.nn.module import Module
from jitgrad.nn.utils.parametrize import named_tensor, register_parametrization
from jitgrad.tensor import Tensor


def householder_product(v: Tensor, tau: Tensor) -> Tensor:
    """The first K columns of (1 - tau_1 v_1 v_1^T) ... (1 - tau_K v_K v_K^T).

    Shapes: v (..., N, K), the vectors below the diagonal, which counts as ones; tau (..., K).
    """
    rows, columns = v.shape[-2:]
    identity = eye(rows, columns, dtype=v.dtype, device=v.device)
    v = v.tril(-1) + identity
    q = identity
    for k in reversed(range(columns)):
        vector = v[..., k : k + 1]
        q = q - tau[..., k : k + 1, None] * (vector @ (vector.mT @ q))
    return q


def _factors(a: Tensor) -> tuple[Tensor, Tensor]:
    """LAPACK's form of the QR decomposition of tall matrices (..., N, K): R and, below its
    diagonal, the vectors of the reflections; and tau (..., K)."""
    raw, tau = np.linalg.qr(a.detach().cpu().numpy(), mode="raw")
    there = a._type.device
    factors = placed(from_numpy(np.swapaxes(raw, -1, -2).copy()), there)
    return factors, placed(from_numpy(tau), there)


def _orthonormal(a: Tensor) -> Tensor:
    """Q of the QR decomposition with a diagonal of R that is not negative."""
    factors, tau = _factors(a)
    signs = factors.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)
    return householder_product(factors, tau) * signs


class _Orthogonal(Module):
    base: Tensor

    def __init__(self, weight: Tensor, use_trivialization: bool) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        self.use_trivialization = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.shape[-2] < x.shape[-1]
        x = x.mT if wide else x
        vectors = x.tril(-1)
        tau = 2.0 / (1.0 + (vectors * vectors).sum(-2))
        signs = x.detach().diagonal(dim1=-2, dim2=-1).trunc().unsqueeze(-2)
        q = householder_product(vectors, tau) * signs
        if self.use_trivialization:
            q = self.base @ q
        return q.mT if wide else q

    @no_grad()
    def right_inverse(self, value: Tensor) -> Tensor:
        if tuple(value.shape) != self.shape:
            raise ValueError(
                f"[orthogonal] expected a value of shape {self.shape}; got {tuple(value.shape)}"
            )
        wide = value.shape[-2] < value.shape[-1]
        tall = value.mT if wide else value
        rows, columns = tall.shape[-2:]
        if not self.use_trivialization:
            factors, tau = _factors(tall)
            signs = factors.diagonal(dim1=-2, dim2=-1).sign()
            signs = signs * (1 - 2 * (tau == 0).to(signs.dtype))
            units = eye(rows, columns, dtype=value.dtype, device=value.device)
            made = factors.tril(-1) + signs.unsqueeze(-2) * units
            return made.mT if wide else made
        if rows != columns:
            size = (*tall.shape[:-2], rows, rows - columns)
            more = randn(*size, dtype=value.dtype, device=value.device)
            tall = cat([tall, more], -1)
        self.base = _orthonormal(tall)
        units = eye(*value.shape[-2:], dtype=value.dtype, device=value.device)
        return -units.expand(self.shape).clone()


def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *,
    use_trivialization: bool = True,
) -> Module:  # fmt: skip
    """Makes a weight (..., M, N) orthogonal: orthonormal columns, or rows where M < N.

    The weight starts as itself, orthogonalised. It is a product of Householder reflections of the
    original; with use_trivialization, times a fixed orthogonal matrix, the buffer `base`
    (Lezcano-Casado 2019). orthogonal_map: "householder", or None, which here chooses it always.

    Raises ValueError for a tensor that is no matrix and for another map's name,
    NotImplementedError for "matrix_exp" and "cayley".
    """
    weight = named_tensor("orthogonal", module, name)
    if weight.dim() < 2:
        raise ValueError(
            f"[orthogonal] expected a matrix or a batch of them; got {tuple(weight.shape)}"
        )
    if orthogonal_map not in (None, "householder", "matrix_exp", "cayley"):
        raise ValueError(
            "[orthogonal] expected orthogonal_map 'householder', 'matrix_exp' or 'cayley'; got "
            f"{orthogonal_map!r}"
        )
    if orthogonal_map in ("matrix_exp", "cayley"):
        raise NotImplementedError(
            f"[orthogonal] orthogonal_map={orthogonal_map!r} is not there yet (docs/limits.md); "
            "use 'householder'"
        )
    made: Any = _Orthogonal(weight, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)
