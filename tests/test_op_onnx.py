"""The ONNX form of every op record that has one, run by ONNX Runtime, with fixed and symbolic dims.

Samples of dtypes that ONNX does not take for an op are skipped, with the reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_cases import assert_close, cases, is_float, run

from jitgrad.compiler.ir import Graph
from jitgrad.compiler.ops import OPS, Op
from jitgrad.compiler.ops.record import Sample
from jitgrad.compiler.types import TensorType
from jitgrad.export import Exported
from jitgrad.onnx import errors
from jitgrad.pytree import LEAF
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import from_numpy

onnx = pytest.importorskip("onnx")
evaluation = pytest.importorskip("onnx.reference")
runtime = pytest.importorskip("onnxruntime")
runtime_errors = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
exporter = pytest.importorskip("jitgrad.onnx.exporter")
OPSET = 21
HALVES = (dtypes.float16, dtypes.bfloat16)


KNOWN = {
    ("scatter_amax", "special float32"): "ONNX Runtime's ScatterElements loses NaN",
    ("scatter_amax", "special float64"): "ONNX Runtime's ScatterElements loses NaN",
    ("scatter_amin", "special float32"): "ONNX Runtime's ScatterElements loses NaN",
    ("scatter_amin", "special float64"): "ONNX Runtime's ScatterElements loses NaN",
    ("max_pool", "NaN and infinity"): "ONNX Runtime's MaxPool loses NaN",
    ("argpool", "several NaN"): "ONNX's ArgMax takes the first",
    ("log_softmax", "large and special float64"): "ONNX Runtime's float64 LogSoftmax loses NaN",
}


def model(op: Op, s: Sample, symbolic: bool = False) -> Any:
    """The ONNX model of one op on one sample; skips where there is none."""
    graph = Graph(name=op.name)
    dims: dict[int, Any] = {}
    for i, a in enumerate(s.args):
        shape = tuple(
            dims.setdefault(d, graph.env.dim(f"n{d}", d)) if symbolic and d > 1 else d
            for d in a.shape
        )
        graph.add_input(TensorType(shape, from_numpy(a.dtype)), "arg", f"x{i}")
    graph.outputs = list(graph.add_node(op, [i.value for i in graph.inputs], s.attrs))
    if graph.env.guards:
        pytest.skip("the op itself asks for fixed sizes")
    names = [f"y{k}" for k in range(len(graph.outputs))]
    exported = Exported(graph, {}, [i.name for i in graph.inputs], names, LEAF)
    try:
        return exporter.to_model(exported, opset=OPSET)
    except errors.UnsupportedOperatorError as e:
        pytest.skip(str(e))


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


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize(("op", "s"), cases())
def test_onnx(op: Op, s: Sample, symbolic: bool) -> None:
    """A valid model (full check, with type inference), whose result is the reference's."""
    proto = model(op, s, symbolic)
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


WITH_FORM = """
abs acos acosh add all amax amin any argmax argmin as_strided asin asinh atan atan2 atanh avg_pool
avg_pool_grad bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
bitwise_xor cast ceil clone concatenate cond conv conv_input_grad conv_weight_grad copysign cos
cosh cummax cummin cumprod cumsum det detach diagonal diagonal_update div eq erf erfc exp exp2
expand expect_range expm1 flip floor floor_divide fmod fold full gather ge gt index index_put iota
isfinite isinf isnan le log log10 log1p log2 log_softmax logical_and logical_not logical_or
logical_xor logsumexp lt matmul max_pool max_pool_grad maximum minimum mul ne neg pad permute pick
place_at pow prod reciprocal relu remainder reshape round rsqrt scan scatter scatter_add
scatter_amax scatter_amin scatter_prod select_at sigmoid sign sin sinc sinh slice slice_update
softmax sort spherical_bessel_j0 sqrt sub sum tan tanh trunc unfold where while_loop
"""


def test_no_op_loses_its_form() -> None:
    """Of these, at least one sample can be written."""
    lost = [n for n in WITH_FORM.split() if all(_has_no_form(OPS[n], s) for s in OPS[n].samples())]
    assert not lost


def _has_no_form(op: Op, s: Sample) -> bool:
    try:
        model(op, s)
    except pytest.skip.Exception:
        return True
    return False
