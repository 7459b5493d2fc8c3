"""The ONNX form of every op record that has one, run by ONNX Runtime, with fixed and symbolic dims.

Samples of dtypes that ONNX does not take for an op are skipped, with the reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_cases import ALL_OPS, assert_close, cases, is_float, run

from jitgrad.compiler.ir import Graph
from jitgrad.compiler.ops import Op
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


WITHOUT_FORM = """
bitcast cholesky cholesky_ex cofactor complex cond conj eig eigh eigvalsh erfcx
erfinv fft gcd geqrf i0 i0e i1 i1e imag inverse irfft lgamma lu matrix_exp ndtri nextafter
normal permutation polygamma pseudoinverse qr qr_r random_bits real rfft scan slogdet solve
solve_triangular svd svdvals uniform view_as_complex view_as_real while_loop zeta
"""


def test_which_ops_have_no_form() -> None:
    """All of whose samples ONNX has no form for; docs/onnx.md names them."""
    found = set()
    for op in ALL_OPS:
        samples = list(op.samples())
        if all(_has_no_form(op, s) for s in samples):
            found.add(op.name)
    assert sorted(found) == WITHOUT_FORM.split()


def _has_no_form(op: Op, s: Sample) -> bool:
    try:
        model(op, s)
    except pytest.skip.Exception:
        return True
    return False
