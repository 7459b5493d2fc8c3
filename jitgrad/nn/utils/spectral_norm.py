"""Spectral norm by a hook in front of forward (Miyato et al. 2018): PyTorch's older form.

nn.utils.parametrizations has the newer one.
"""

from __future__ import annotations

from typing import Any

from jitgrad.autograd.modes import no_grad
from jitgrad.nn import functional as F
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.nn.utils.parametrizations import (
    expect_iterations,
    output_dim,
    power_method,
    sigma,
    weight_matrix,
)
from jitgrad.nn.utils.weight_norm import find_hook, remove_hook
from jitgrad.tensor import Tensor


class SpectralNorm:
    """The hook: sets module.<name> to <name>_orig over its largest singular value."""

    def __init__(
        self, name: str = "weight", n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        expect_iterations(n_power_iterations)
        self.name, self.dim, self.eps = name, dim, eps
        self.n_power_iterations = n_power_iterations

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        matrix = weight_matrix(weight, self.dim)
        if do_power_iteration:
            power_method(matrix, u, v, self.n_power_iterations, self.eps, u_first=False)
        return weight / sigma(matrix, u, v)

    @staticmethod
    def apply(
        module: Module, name: str, n_power_iterations: int, dim: int, eps: float
    ) -> SpectralNorm:
        """Renames the parameter to <name>_orig, adds singular vectors as buffers, and the hook."""
        if find_hook(module, SpectralNorm, name) is not None:
            raise RuntimeError(f"[spectral_norm] expected one on {name!r}; it has one already")
        hook = SpectralNorm(name, n_power_iterations, dim, eps)
        weight = module._parameters[name]
        if weight is None:
            raise ValueError(f"[spectral_norm] expected a parameter {name!r}; it is None")
        with no_grad():
            matrix = weight_matrix(weight, dim)
            starts = [weight.new_empty(n).normal_(0, 1) for n in matrix.shape]
        delattr(module, name)
        module.register_parameter(f"{name}_orig", weight)
        setattr(module, name, weight.detach())
        for part, start in zip("uv", starts, strict=True):
            module.register_buffer(f"{name}_{part}", F.normalize(start, dim=0, eps=eps))
        module.register_forward_pre_hook(hook)
        return hook

    def remove(self, module: Module) -> None:
        with no_grad():
            weight = self.compute_weight(module, do_power_iteration=False)
        for part in ("", "_u", "_v", "_orig"):
            delattr(module, self.name + part)
        module.register_parameter(self.name, Parameter(weight.detach()))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Module:  # fmt: skip
    """Divides a weight by its largest singular value, estimated by n_power_iterations of the power
    method before each forward in training. Returns module.

    dim: the one that counts outputs. Raises RuntimeError for a second one on the same name.
    """
    SpectralNorm.apply(
        module, name, n_power_iterations, output_dim(module) if dim is None else dim, eps
    )
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Makes <name> a parameter again. Raises ValueError where there is no spectral norm."""
    remove_hook("remove_spectral_norm", module, SpectralNorm, name)
    return module
