"""Automatic differentiation: the public names of `torch.autograd`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jitgrad.autograd.engine import backward, grad
from jitgrad.autograd.forward import jvp
from jitgrad.autograd.function import Function, FunctionCtx, once_differentiable
from jitgrad.autograd.function_levels import VmapInfo
from jitgrad.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from jitgrad.autograd.modes import (
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_anomaly_enabled,
    set_detect_anomaly,
    set_grad_enabled,
)
from jitgrad.autograd.variable import Variable
from jitgrad.missing import no_such
from jitgrad.tape.node import Node

if TYPE_CHECKING:
    from jitgrad.autograd import forward_ad as forward_ad
    from jitgrad.autograd import functional as functional
    from jitgrad.autograd import graph as graph
    from jitgrad.autograd.report import graph_report as graph_report


def __getattr__(name: str) -> Any:
    """Imports what not every program needs at its first use."""
    if name in ("forward_ad", "functional", "graph", "profiler"):
        return importlib.import_module(f"jitgrad.autograd.{name}")
    if name == "graph_report":
        return importlib.import_module("jitgrad.autograd.report").graph_report
    raise no_such(__name__, name)


__all__ = [
    "Function",
    "FunctionCtx",
    "GradcheckError",
    "Node",
    "Variable",
    "VmapInfo",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "jvp",
    "no_grad",
    "once_differentiable",
    "set_anomaly_enabled",
    "set_detect_anomaly",
    "set_grad_enabled",
]
