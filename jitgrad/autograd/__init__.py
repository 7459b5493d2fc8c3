"""Automatic differentiation: the public names of `torch.autograd`."""

from __future__ import annotations

from jitgrad.autograd.engine import backward, grad
from jitgrad.autograd.forward import jvp
from jitgrad.autograd.function import Function, FunctionCtx, once_differentiable
from jitgrad.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from jitgrad.autograd.modes import (
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_detect_anomaly,
    set_grad_enabled,
)
from jitgrad.tape.node import Node

__all__ = [
    "Function",
    "FunctionCtx",
    "GradcheckError",
    "Node",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "jvp",
    "no_grad",
    "once_differentiable",
    "set_detect_anomaly",
    "set_grad_enabled",
]
