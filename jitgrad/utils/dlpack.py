"""torch.utils.dlpack: tensors as DLPack capsules, and back."""

from __future__ import annotations

from typing import Any

from jitgrad.creation import from_dlpack as from_dlpack
from jitgrad.missing import missing
from jitgrad.tensor import Tensor


def to_dlpack(tensor: Tensor) -> Any:
    """A capsule of the tensor's memory. Raises BufferError for a tensor that requires grad."""
    return tensor.__dlpack__(max_version=(1, 0))


__getattr__ = missing(__name__)
