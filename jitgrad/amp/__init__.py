"""Mixed precision, by torch.amp's names: autocast, and GradScaler for float16."""

from jitgrad.amp import autocast_mode, grad_scaler
from jitgrad.amp.autocast_mode import (
    autocast,
    custom_bwd,
    custom_fwd,
    get_autocast_dtype,
    is_autocast_available,
    is_autocast_enabled,
)
from jitgrad.amp.grad_scaler import GradScaler
from jitgrad.missing import missing

__getattr__ = missing(__name__)

__all__ = [
    "GradScaler", "autocast", "autocast_mode", "custom_bwd", "custom_fwd", "get_autocast_dtype",
    "grad_scaler", "is_autocast_available", "is_autocast_enabled",
]  # fmt: skip
