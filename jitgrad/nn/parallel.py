"""torch.nn.parallel without devices to be parallel on: DataParallel calls its module."""

from __future__ import annotations

from typing import Any

from jitgrad.missing import names_module
from jitgrad.nn.module import Module


class DataParallel(Module):
    """Calls the module: there are no GPUs yet, and so PyTorch does without GPUs. State has the
    prefix "module." as PyTorch's."""

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        self.module = module
        self.device_ids: list[int] = []

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


class DistributedDataParallel(Module):
    """Not there yet (docs/limits.md): making one raises RuntimeError."""

    def __init__(self, module: Module, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            "[DistributedDataParallel] training in several processes is not supported yet "
            f"(docs/limits.md); use the {type(module).__name__} itself, in one process"
        )


data_parallel = names_module(
    f"{__name__}.data_parallel", {"DataParallel": DataParallel}, "A name of torch.nn.parallel."
)
distributed = names_module(
    f"{__name__}.distributed",
    {"DistributedDataParallel": DistributedDataParallel},
    "A name of torch.nn.parallel.",
)

__all__ = ["DataParallel", "DistributedDataParallel"]
