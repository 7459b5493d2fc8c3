"""Whole models written as ONNX: the checker's full check, and ONNX Runtime's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import MODELS

import jitgrad
from jitgrad.pytree import flatten

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def example(name: str, batch: int, seed: int = 0) -> Any:
    _, shape, dtype = MODELS[name]
    jitgrad.manual_seed(seed)
    if dtype is jitgrad.int64:
        return jitgrad.randint(0, 20, (batch, *shape))
    return jitgrad.randn(batch, *shape)


def built(name: str) -> Any:
    jitgrad.manual_seed(1)
    return MODELS[name][0]().eval()


def assert_same(path: Any, model: Any, *inputs: Any) -> None:
    """What ONNX Runtime computes from the file is what the model computes."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    found = session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})
    with jitgrad.no_grad():
        wanted = [x.numpy() for x in flatten(model(*inputs))[0]]
    assert len(found) == len(wanted)
    for f, w in zip(found, wanted, strict=True):
        assert (f.shape, f.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(f, w, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("opset", [17, 18, 21, 24])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, opset: int, tmp_path: Any) -> None:
    model, x = built(name), example(name, 3)
    written = jitgrad.export(model, x).onnx(tmp_path / "m.onnx", opset=opset)
    proto = onnx.load(written.path)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", opset)]
    assert {w.name for w in proto.graph.initializer} >= {n for n, _ in model.named_parameters()} - {
        "wte.weight"
    }
    assert_same(written.path, model, x)


@pytest.mark.parametrize("name", [n for n in MODELS if n != "lstm"])
def test_dynamic_batch(name: str, tmp_path: Any) -> None:
    """One file for every batch size, 0 and 1 too."""
    model, x = built(name), example(name, 3)
    exported = jitgrad.export(model, x, names=["x"], dynamic_shapes={"x": {0: "batch"}})
    exported.onnx(tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx")
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    for batch in (1, 2, 5) if name in ("unet", "vit") else (0, 1, 2, 5):
        assert_same(tmp_path / "m.onnx", model, example(name, batch, batch))
