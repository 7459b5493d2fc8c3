"""Parametrizations: weight norm, spectral norm; orthogonal matrices are orthogonal.py's."""

from __future__ import annotations

from typing import Any

import jitgrad.functions as ops
from jitgrad.autograd.modes import no_grad
from jitgrad.nn import functional as F
from jitgrad.nn.module import Module
from jitgrad.nn.utils.orthogonal import orthogonal as orthogonal
from jitgrad.nn.utils.parametrize import named_tensor, register_parametrization
from jitgrad.tensor import Tensor


def norm_except_dim(v: Tensor, dim: int) -> Tensor:
    """The 2-norm over all dims but one, which broadcasts against v; dim -1: over all, 0-d."""
    if dim == -1:
        return ops.norm(v)
    others = tuple(d for d in range(v.dim()) if d != dim % v.dim())
    return ops.norm(v, 2, others, keepdim=True) if others else v.abs()


def normed(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """g v / |v|, the norm over all dims but one."""
    return v * (g / norm_except_dim(v, dim))


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return normed(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except_dim(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Makes a weight g v / |v| (Salimans and Kingma 2016), the norm over all dims but `dim` (None:
    over all). The magnitude g and direction v are parametrizations.<name>.original0 and 1; state
    dicts of the older form, with <name>_g and <name>_v, load too."""
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def rename(state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
        old = [f"{prefix}{name}_{part}" for part in "gv"]
        if all(key in state_dict for key in old):
            for i, key in enumerate(old):
                new = f"{prefix}parametrizations.{name}.original{i}"
                state_dict[new] = state_dict.pop(key)

    module._register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        if not -weight.dim() <= dim < weight.dim():
            raise IndexError(
                f"[spectral_norm] expected dim of a weight {tuple(weight.shape)}; got {dim}"
            )
        expect_iterations(n_power_iterations)
        self.dim, self.eps = dim % weight.dim(), eps
        if weight.dim() > 1:
            self.n_power_iterations = n_power_iterations
            matrix = weight_matrix(weight.detach(), self.dim)
            for buffer, size in (("_u", matrix.shape[0]), ("_v", matrix.shape[1])):
                start = matrix.new_empty(size).normal_(0, 1)
                self.register_buffer(buffer, F.normalize(start, dim=0, eps=eps))
            power_method(matrix, self._u, self._v, 15, eps, u_first=True)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.dim() == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = weight_matrix(weight, self.dim)
        if self.training:
            count = self.n_power_iterations
            power_method(matrix, self._u, self._v, count, self.eps, u_first=True)
        return weight / sigma(matrix, self._u, self._v)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def expect_iterations(count: int) -> None:
    if count <= 0:
        raise ValueError(f"[spectral_norm] expected n_power_iterations of at least 1; got {count}")


def weight_matrix(weight: Tensor, dim: int) -> Tensor:
    """The weight as a matrix whose rows are along dim."""
    return weight.movedim(dim, 0).flatten(1)


@no_grad()
def power_method(
    matrix: Tensor, u: Tensor, v: Tensor, count: int, eps: float, u_first: bool
) -> None:
    """Moves u and v, in place, towards the singular vectors of the largest singular value."""
    for _ in range(count):
        if u_first:
            u.copy_(F.normalize(matrix.mv(v), dim=0, eps=eps))
        v.copy_(F.normalize(matrix.t().mv(u), dim=0, eps=eps))
        if not u_first:
            u.copy_(F.normalize(matrix.mv(v), dim=0, eps=eps))


def sigma(matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """u^T W v. On copies of u and v: the next call changes them before backward may have run."""
    return u.clone().dot(matrix.mv(v.clone()))


def output_dim(module: Module) -> int:
    """The dim of the weight that counts outputs: 1 of transposed convolutions, else 0."""
    return int(any(c.__name__.startswith("ConvTranspose") for c in type(module).__mro__))


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Module:  # fmt: skip
    """Divides a weight by its largest singular value (Miyato et al. 2018).

    The value is estimated by n_power_iterations of the power method each time the weight is read
    in training; the singular vectors are buffers. dim: the one that counts outputs.
    """
    weight = named_tensor("spectral_norm", module, name)
    made = _SpectralNorm(
        weight, n_power_iterations, output_dim(module) if dim is None else dim, eps
    )
    return register_parametrization(module, name, made)
