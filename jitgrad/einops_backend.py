"""einops on jitgrad's tensors: rearrange, reduce, repeat, pack, einsum.

Owns the backend that einops finds by asking for subclasses of its own class, and the moment when it
is defined: when einops is imported, before or after jitgrad. Nothing is imported for its sake.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from jitgrad.creation import arange, from_numpy
from jitgrad.functions.linalg import einsum
from jitgrad.functions.shape import cat, stack
from jitgrad.tensor import Tensor

_BACKENDS = "einops._backends"


def define(module: ModuleType) -> None:
    """Defines the backend, as a subclass of the class in einops' module."""
    base: Any = module.AbstractBackend

    class JitgradBackend(base):
        framework_name = "jitgrad"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Tensor:
            return from_numpy(x)

        def to_numpy(self, x: Tensor) -> Any:
            return x.detach().numpy()

        def arange(self, start: int, stop: int) -> Tensor:
            return arange(start, stop)

        def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
            if operation in ("min", "max"):
                operation = "a" + operation
            if operation == "prod":  # along one axis at a time
                for axis in sorted(axes, reverse=True):
                    x = x.prod(axis)
                return x
            reduced: Tensor = getattr(x, operation)(tuple(axes))
            return reduced

        def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
            return x.permute(tuple(axes))

        def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
            return stack(tensors)

        def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
            sizes = [-1] * n_axes
            for position, size in pos2len.items():
                x = x.unsqueeze(position)
                sizes[position] = size
            return x.expand(tuple(sizes))

        def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
            return x.repeat(tuple(repeats))

        def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
            return cat(tensors, axis)

        def add_axis(self, x: Tensor, new_position: int) -> Tensor:
            return x.unsqueeze(new_position)

        def is_float_type(self, x: Tensor) -> bool:
            return x.is_floating_point()

        def einsum(self, pattern: str, *x: Tensor) -> Tensor:
            return einsum(pattern, *x)

    vars(module)["JitgradBackend"] = JitgradBackend  # einops holds its subclasses weakly


class _Loader:
    """Loads einops' module and defines the backend."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        define(module)


class _Finder:
    """Waits for einops to be imported, once."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != _BACKENDS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


def register() -> None:
    """Defines the backend now if einops is there, else when it is imported."""
    if _BACKENDS in sys.modules:
        define(sys.modules[_BACKENDS])
    else:
        sys.meta_path.insert(0, _Finder())
