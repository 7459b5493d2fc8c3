"""ONNX, both ways: `export` writes models, `load` reads them. PyTorch's names where it has them.

The packages `onnx` (and `onnxruntime`, to run models elsewhere) are the extra "onnx"; they are
imported when a function here first needs them. What can be written and read: docs/onnx.md.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from jitgrad.missing import no_such
from jitgrad.onnx import errors as errors
from jitgrad.onnx.errors import OnnxExporterError as OnnxExporterError
from jitgrad.onnx.errors import OnnxLoadError as OnnxLoadError
from jitgrad.onnx.errors import UnsupportedOperatorError as UnsupportedOperatorError
from jitgrad.onnx.symbolic import SymbolicGraph as SymbolicGraph
from jitgrad.onnx.symbolic import register_custom_op_symbolic as register_custom_op_symbolic
from jitgrad.onnx.symbolic import unregister_custom_op_symbolic as unregister_custom_op_symbolic

if TYPE_CHECKING:
    from jitgrad.export import Exported
    from jitgrad.onnx.exporter import Missing
    from jitgrad.onnx.importing.module import OnnxModule
    from jitgrad.onnx.program import ONNXProgram as ONNXProgram
    from jitgrad.onnx.program import TrainingMode as TrainingMode
    from jitgrad.onnx.program import export as export
    from jitgrad.onnx.program import is_in_onnx_export as is_in_onnx_export


class OperatorExportTypes(IntEnum):
    """PyTorch's kinds of export; there is one here: ONNX."""

    ONNX = 0
    ONNX_ATEN = 1
    ONNX_ATEN_FALLBACK = 2
    ONNX_FALLTHROUGH = 3


def load(path: str | os.PathLike[str] | bytes) -> OnnxModule:
    """Reads an ONNX model, from a file or bytes, as a Module.

    Its parameters are the model's floating initializers, its `forward` takes the model's inputs in
    order and gives its outputs: a tensor, or a tuple of them. It compiles under @jit like any
    other.

    Raises OnnxLoadError for a file that is damaged or no sound model, and for ops that are not
    there (all of them, with their nodes); ImportError without the package `onnx`.
    """
    errors.expect_package()
    from jitgrad.onnx.importing.module import load_model

    return load_model(path)


def unsupported(
    exported: Exported, *, opset: int = 18, custom: Mapping[str, Any] | None = None
) -> list[Missing]:
    """The nodes of an exported graph that have no ONNX form at this opset: for each its op, the
    user's line and the reason. [] if `exported.onnx` can write it."""
    errors.expect_package()
    from jitgrad.onnx.exporter import unsupported

    return unsupported(exported, opset=opset, custom=custom)


_OF_PROGRAM = ("ONNXProgram", "TrainingMode", "export", "is_in_onnx_export")


def __getattr__(name: str) -> Any:
    """What needs `jitgrad.export` is imported when it is first named."""
    if name in _OF_PROGRAM:
        return getattr(importlib.import_module("jitgrad.onnx.program"), name)
    raise no_such(__name__, name)
