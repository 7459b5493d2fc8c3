"""What differs between the ONNX opsets that we write: from 17 to the newest that `onnx` knows.

The records' ONNX forms (`Op.onnx`) are for opset 18 and later. Owns their translation to opset 17,
and the check of a node against the op's schema at an opset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from jitgrad.compiler.types import TensorType
from jitgrad.onnx.errors import UnsupportedOperatorError
from jitgrad.onnx.types import text_of

OLDEST = 17
NEWEST: int = onnx.defs.onnx_opset_version()
# Their axes are an attribute before opset 18, and an operand from there on.
_AXES_ATTRIBUTE = {
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSumSquare",
}  # fmt: skip
# IR versions that readers of an opset know (ONNX's page on versioning).
_IR_VERSIONS = ((17, 8), (19, 9), (21, 10), (23, 11), (24, 12), (25, 13))


def ir_version(opset: int) -> int:
    """The oldest format version that goes with an opset."""
    found = [ir for first, ir in _IR_VERSIONS if opset >= first]
    return min(found[-1], int(onnx.IR_VERSION))


def adapt(
    op_type: str, inputs: list[str], attributes: dict[str, Any], opset: int,
    constants: dict[str, np.ndarray[Any, Any]],
) -> tuple[str, list[str], dict[str, Any]]:  # fmt: skip
    """A node of opset 18 as this opset has it."""
    if opset < 18 and op_type in _AXES_ATTRIBUTE and len(inputs) == 2:
        axes = constants[inputs[1]].tolist()
        if not axes and attributes.get("noop_with_empty_axes"):
            return "Identity", inputs[:1], {}
        rest = {k: v for k, v in attributes.items() if k != "noop_with_empty_axes"}
        return op_type, inputs[:1], {**rest, "axes": axes}
    return op_type, inputs, attributes


def check_node(
    op_type: str, types: Sequence[TensorType | None], attributes: dict[str, Any], opset: int
) -> None:
    """Raises UnsupportedOperatorError where this opset's op is not there, or takes no such node.

    types: of the operands, None where they are not known.
    """
    if not onnx.defs.has(op_type):
        raise UnsupportedOperatorError(f"ONNX has no op {op_type}")
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        since = min(s.since_version for s in _versions(op_type))
        raise UnsupportedOperatorError(f"ONNX has {op_type} from opset {since}") from None
    missing = [k for k in attributes if k not in schema.attributes]
    if missing or len(types) > schema.max_input:
        raise UnsupportedOperatorError(
            f"ONNX's {op_type} at opset {opset} has no such form "
            f"({', '.join(missing) or f'{len(types)} operands'}); a later opset may have it"
        )
    for k, t in enumerate(types):
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        if t is not None and text_of(t.dtype) not in formal.types:
            raise UnsupportedOperatorError(
                f"ONNX's {op_type} at opset {opset} takes no {t.dtype.name} operand"
            )


def _versions(op_type: str) -> list[Any]:
    return [s for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type]
