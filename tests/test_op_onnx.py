"""The ONNX form of every op record that has one, run by ONNX Runtime.

Owns a minimal export context (one op to one model). Samples of dtypes that ONNX does not take for
an op are skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from op_cases import assert_close, cases, is_float, outputs, run

from jitgrad.compiler.ops import Op
from jitgrad.compiler.ops.record import Sample
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType, from_numpy

onnx = pytest.importorskip("onnx")
evaluation = pytest.importorskip("onnx.reference")
runtime = pytest.importorskip("onnxruntime")
runtime_errors = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
OPSET = 21
HALVES = (dtypes.float16, dtypes.bfloat16)


KNOWN = {
    ("max_pool", "NaN and infinity"): "ONNX Runtime's MaxPool loses NaN",
    ("log_softmax", "large and special float64"): "ONNX Runtime's float64 LogSoftmax loses NaN",
}


class Context:
    """Collects the nodes and initializers of one model."""

    def __init__(self, types: dict[str, TensorType]) -> None:
        self.types = dict(types)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, op_type: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> Any:
        names = tuple(f"v{len(self.nodes)}_{k}" for k in range(outputs))
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), list(names), **attributes))
        return names if outputs > 1 else names[0]

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def shape(self, dims: Sequence[Any]) -> str:
        return self.constant(np.array([int(d) for d in dims], np.int64))

    def type(self, name: str) -> TensorType:
        return self.types[name]

    def onnx_dtype(self, dtype: DType) -> int:
        return int(getattr(onnx.TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(
            dtype.name, dtype.name.upper())))  # fmt: skip


def model(op: Op, s: Sample) -> Any:
    """The ONNX model of one op on one sample; skips where the record has no form."""
    names = [f"x{i}" for i in range(len(s.args))]
    types = [TensorType(a.shape, from_numpy(a.dtype)) for a in s.args]
    context = Context(dict(zip(names, types, strict=True)))
    try:
        made = op.onnx(context, names, **s.attrs)
    except RuntimeError as e:
        if not str(e).startswith(f"[{op.name}]"):
            raise
        pytest.skip(str(e))

    def info(name: str, t: TensorType) -> Any:
        return onnx.helper.make_tensor_value_info(name, context.onnx_dtype(t.dtype), t.shape)

    results = list(made) if isinstance(made, tuple) else [made]
    declared = outputs(op.infer(*types, **s.attrs))
    graph = onnx.helper.make_graph(
        context.nodes,
        op.name,
        [info(n, t) for n, t in zip(names, types, strict=True)],
        [info(n, t) for n, t in zip(results, declared, strict=True)],
        context.constants,
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10
    )


def evaluate(proto: Any, feeds: dict[str, np.ndarray]) -> list[Any]:
    """By ONNX Runtime where it has kernels for the types, else by ONNX's reference evaluator.

    Integers go to the evaluator: the runtime dies of a trap where the minimum is divided by -1.
    """
    if any(is_float(a) for a in feeds.values()):
        try:
            session = runtime.InferenceSession(
                proto.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            return list(session.run(None, feeds))
        except (runtime_errors.NotImplemented, runtime_errors.InvalidGraph, runtime_errors.Fail):
            if any(a.dtype == np.float64 for a in feeds.values()):
                pytest.skip("no float64 kernel, and the evaluator computes some ops in float32")
    with np.errstate(all="ignore"):
        return list(evaluation.ReferenceEvaluator(proto).run(None, feeds))


@pytest.mark.parametrize(("op", "s"), cases())
def test_onnx(op: Op, s: Sample) -> None:
    """A valid model (full check, with type inference), whose result is the reference's."""
    proto = model(op, s)
    if (op.name, s.note) in KNOWN:
        pytest.skip(KNOWN[op.name, s.note])
    used = [from_numpy(a.dtype) for a in s.args]
    if any(d in HALVES for d in used) or s.attrs.get("dtype") in HALVES:
        pytest.skip("ONNX's evaluator rounds halves between the nodes of a composed form")
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as e:
        if "typestr" in str(e) or "unsupported type" in str(e):
            pytest.skip(f"ONNX's {op.name} does not take {used}")
        raise
    found = evaluate(proto, {f"x{i}": a for i, a in enumerate(s.args)})
    for f, wanted in zip(found, run(op, s), strict=True):
        assert_close(np.asarray(f), wanted)
