"""Weight norm by a hook in front of forward (Salimans and Kingma 2016): PyTorch's older form.

nn.utils.parametrizations has the newer one, which computes the weight whenever it is read.
"""

from __future__ import annotations

from typing import Any

from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.nn.utils.parametrizations import norm_except_dim, normed
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor


class WeightNorm:
    """The hook: sets module.<name> to g v / |v| before each forward."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Tensor:
        """The weight from <name>_g and <name>_v."""
        g, v = (getattr(module, f"{self.name}_{part}") for part in "gv")
        return normed(v, g, self.dim)

    @staticmethod
    def apply(module: Module, name: str, dim: int | None) -> WeightNorm:
        """Replaces the parameter by its magnitude and direction, and adds the hook."""
        if find_hook(module, WeightNorm, name) is not None:
            raise RuntimeError(f"[weight_norm] expected one on {name!r}; it has one already")
        hook = WeightNorm(name, dim)
        weight = getattr(module, name)
        delattr(module, name)
        g = norm_except_dim(weight.detach(), hook.dim)
        module.register_parameter(f"{name}_g", Parameter(g))
        module.register_parameter(f"{name}_v", Parameter(weight.detach()))
        setattr(module, name, hook.compute_weight(module))
        module.register_forward_pre_hook(hook)
        return hook

    def remove(self, module: Module) -> None:
        weight = self.compute_weight(module)
        for name in (self.name, f"{self.name}_g", f"{self.name}_v"):
            delattr(module, name)
        setattr(module, self.name, Parameter(weight.detach()))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def find_hook(module: Module, kind: type, name: str) -> int | None:
    """The key of the forward pre-hook of a class, for a parameter's name; None without one."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, kind) and getattr(hook, "name", "") == name:
            return key
    return None


def remove_hook(function: str, module: Module, kind: type, name: str) -> None:
    """Undoes a norm by hook. Raises ValueError where there is none."""
    key = find_hook(module, kind, name)
    if key is None:
        raise ValueError(
            f"[{function}] expected a norm on {name!r} of {type(module).__name__}; it has none"
        )
    hook: Any = module._forward_pre_hooks.pop(key)
    hook.remove(module)


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Replaces parameter <name> by <name>_g and <name>_v: the weight is g v / |v|, the norm over
    all dims but `dim` (None: over all). Returns module.

    Raises RuntimeError for a second one on the same name.
    """
    warn(
        "[weight_norm] nn.utils.weight_norm is deprecated; use "
        "nn.utils.parametrizations.weight_norm",
        FutureWarning,
    )
    WeightNorm.apply(module, name, dim)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Makes <name> a parameter again. Raises ValueError where there is no weight norm."""
    remove_hook("remove_weight_norm", module, WeightNorm, name)
    return module
