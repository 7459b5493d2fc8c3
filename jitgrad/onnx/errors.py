"""The errors of jitgrad.onnx, with PyTorch's names where it has one."""

from __future__ import annotations

import importlib.util

from jitgrad.runtime.errors import CompileError


class OnnxExporterError(CompileError):
    """A function that cannot become an ONNX model."""


class UnsupportedOperatorError(OnnxExporterError):
    """Ops without an ONNX form at the opset asked for; the message lists them all."""


class OnnxLoadError(ValueError):
    """A file that is no sound ONNX model, or one that holds what cannot be loaded."""


class OnnxUnsupportedError(OnnxLoadError, NotImplementedError):
    """A sound model that uses an op, a mode or an element type that is not there."""


class OnnxNodeError(RuntimeError):
    """A node of a loaded model that cannot run on its operands."""


def expect_package() -> None:
    """Raises ImportError, with what to do, where the package `onnx` is not installed."""
    if importlib.util.find_spec("onnx") is None:
        raise ImportError(
            "[onnx] expected the package onnx, which is not installed; pip install 'jitgrad[onnx]'"
        )
