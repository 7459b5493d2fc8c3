"""ONNX files that are damaged, or made to harm: every one is an error in words, never a crash, a
read outside of the folder, or memory without bounds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_onnx_import import control_flow, made

import jitgrad
from jitgrad.onnx.errors import OnnxLoadError, OnnxNodeError
from jitgrad.onnx.importing import control

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def sound() -> Any:
    """A small model with weights, a constant, and a convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["y"]),
    ]
    return onnx.load_from_string(
        made(
            nodes,
            [("x", FLOAT, ["n", 1, 4, 4])],
            [("y", FLOAT, None)],
            {
                "w": np.ones((2, 1, 3, 3), np.float32),
                "b": np.ones(2, np.float32),
                "shape": np.array([0, -1], np.int64),
            },
        )
    )


def refused(model: Any, match: str, **more: Any) -> None:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    with pytest.raises(OnnxLoadError, match=match):
        jitgrad.onnx.load(data, **more)


def test_the_sound_model() -> None:
    model = jitgrad.onnx.load(sound().SerializeToString())
    assert model(jitgrad.ones(3, 1, 4, 4)).shape == (3, 32)


@pytest.mark.parametrize("data", [b"", b"\x00", b"ONNX", b"\xff" * 100, b"PK\x03\x04" + bytes(60)])
def test_no_model(data: bytes, tmp_path: Any) -> None:
    refused(data, "expected an ONNX model")
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(OnnxLoadError, match="m.onnx"):
        jitgrad.onnx.load(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        jitgrad.onnx.load(tmp_path / "none.onnx")


def test_truncated_anywhere() -> None:
    """What can still be loaded lacks nothing but the last field, an opset that no node uses."""
    data = sound().SerializeToString()
    x = jitgrad.randn(1, 1, 4, 4)
    wanted = jitgrad.onnx.load(data)(x).tolist()
    loaded = []
    for end in range(len(data)):
        try:
            model = jitgrad.onnx.load(data[:end])
        except OnnxLoadError:
            continue
        loaded.append(end)
        assert model(x).tolist() == wanted
    assert len(loaded) == 1


def test_versions() -> None:
    model = sound()
    model.ir_version = 1000
    refused(model, "format version of at most .*has 1000")
    model = sound()
    model.opset_import[0].version = 1000
    refused(model, "an opset from 1 to .*has 1000")
    model.opset_import[0].version = -3
    refused(model, "an opset from 1 to .*has -3")
    del model.opset_import[:]
    refused(model, "no graph or no opset")


# -- graphs ---------------------------------------------------------------------------------------
def test_cycles_and_parts_that_lack() -> None:
    model = sound()
    model.graph.node[0].input[0] = "r"
    refused(model, "Conv takes 'r', which no initializer, input or earlier node gives: .* cycle")
    model = sound()
    del model.graph.initializer[0]
    refused(model, "Conv takes 'w', which no initializer")
    model = sound()
    model.graph.output[0].name = "z"
    refused(model, "the output 'z' is given by no node")
    model = sound()
    model.graph.node[2].output[0] = "r"
    refused(model, "gives 'r', which is there already")
    model = sound()
    model.graph.initializer.append(model.graph.initializer[0])
    refused(model, "an initializer's name, 'w', is not unique")
    model = sound()
    model.graph.input.append(model.graph.input[0])
    refused(model, "an input's name, 'x', is not unique")


def test_a_subgraph_that_takes_what_is_not_there() -> None:
    model = onnx.load_from_string(control_flow())
    body = model.graph.node[0].attribute[0].g
    body.node[2].attribute[0].g.node[0].input[0] = "later"
    refused(model, "takes 'later', which no")


def functions_that(calls: dict[str, list[str]]) -> Any:
    """A model whose functions call each other as told."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    functions = []
    for name, inner in calls.items():
        nodes, last = [], "x"
        for k, callee in enumerate(inner):
            nodes.append(
                helper.make_node(
                    callee, [last], [f"v{k}"], domain="" if callee == "Relu" else "mine"
                )
            )
            last = f"v{k}"
        functions.append(helper.make_function("mine", name, ["x"], [last], nodes, opsets))
    first = next(iter(calls))
    return made(
        [helper.make_node(first, ["x"], ["y"], domain="mine")],
        [("x", FLOAT, [1])], [("y", FLOAT, [1])], functions=functions,
    )  # fmt: skip


def test_functions_in_a_circle_and_a_bomb() -> None:
    refused(functions_that({"A": ["B"], "B": ["C"], "C": ["A"]}), "in a circle: A -> B -> C -> A")
    refused(functions_that({"A": ["A"]}), "in a circle: A -> A")
    doubling = {f"F{k}": [f"F{k + 1}"] * 10 for k in range(12)}
    refused(functions_that({**doubling, "F12": ["Relu"]}), "more than 1,000,000 nodes")
    deep = {f"F{k}": [f"F{k + 1}"] for k in range(1000)}
    refused(functions_that({**deep, "F1000": ["Relu"]}), "too deeply")


def test_graphs_nested_deeply() -> None:
    graph = helper.make_graph([], "g", [], [])
    graph = onnx.GraphProto(name="g")
    for _ in range(40):
        outer = onnx.GraphProto(name="g")
        node = outer.node.add(op_type="If")
        node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(graph)
        graph = outer
    model = sound()
    model.graph.node.add(op_type="If").attribute.add(
        name="then_branch", type=onnx.AttributeProto.GRAPH
    ).g.CopyFrom(graph)
    with pytest.raises((OnnxLoadError, OnnxNodeError)):
        jitgrad.onnx.load(model.SerializeToString())(jitgrad.ones(1, 1, 4, 4))


# -- tensors --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dims", [[2**40, 2**40], [2, 1, 3, 4], [-1, 18], [0], [2**63 - 1, 2], [18, 0, 5]]
)
def test_shapes_that_do_not_fit_the_data(dims: list[int]) -> None:
    model = sound()
    w = model.graph.initializer[0]
    assert w.name == "w"
    del w.dims[:]
    w.dims.extend(dims)
    refused(model, "tensor 'w'")


def test_element_types() -> None:
    model = sound()
    model.graph.initializer[0].data_type = 99
    refused(model, "element type 99")
    model = sound()
    model.graph.initializer[0].data_type = onnx.TensorProto.STRING
    refused(model, "tensor 'w'")


@pytest.mark.parametrize(
    ("op", "shape"),
    [("ConstantOfShape", [2**40, 2**10]), ("ConstantOfShape", [-1]), ("Expand", [2**50, 1]),
     ("Tile", [2**50]), ("Resize", [2**50])],
)  # fmt: skip
def test_absurd_shapes_at_run_time(op: str, shape: list[int]) -> None:
    numbers = np.array(shape, np.int64)
    inputs = {"ConstantOfShape": ["s"], "Expand": ["x", "s"], "Tile": ["x", "s"],
              "Resize": ["x", "", "", "s"]}[op]  # fmt: skip
    data = made(
        [helper.make_node(op, inputs, ["y"])], [("x", FLOAT, [1])], [("y", FLOAT, None)],
        {"s": numbers},
    )  # fmt: skip
    model = jitgrad.onnx.load(data)
    with pytest.raises(OnnxNodeError, match="larger than this machine's memory|at least 0"):
        model(jitgrad.ones(1))


def test_attributes_of_the_wrong_kind() -> None:
    wrong = [("pads", 3), ("pads", "abc"), ("strides", [1]), ("strides", [0, 0]), ("group", [2]),
             ("group", 0), ("dilations", [-1, 1]), ("auto_pad", 7)]  # fmt: skip
    for name, value in wrong:
        model = sound()
        del model.graph.node[0].attribute[:]
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
        loaded = jitgrad.onnx.load(model.SerializeToString())
        with pytest.raises(OnnxNodeError, match="Conv failed"):
            loaded(jitgrad.ones(1, 1, 4, 4))


# -- external data --------------------------------------------------------------------------------
def external(location: str, offset: Any = 0, length: Any = 72) -> Any:
    model = sound()
    w = model.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        w.external_data.add(key=key, value=str(value))
    return model


def test_external_data(tmp_path: Any) -> None:
    folder = tmp_path / "model"
    (folder / "parts").mkdir(parents=True)
    weights = np.arange(18, dtype=np.float32)
    (folder / "parts" / "w.bin").write_bytes(bytes(8) + weights.tobytes())
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(1000))
    os.symlink(secret, folder / "link.bin")
    os.symlink(tmp_path, folder / "up")

    def write(model: Any) -> Any:
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        return folder / "m.onnx"

    loaded = jitgrad.onnx.load(write(external("parts/w.bin", 8)))
    np.testing.assert_array_equal(loaded.w.detach().numpy().reshape(-1), weights)
    for location in ("../secret.bin", str(secret), "parts/../../secret.bin", "link.bin",
                     "up/secret.bin", "", ".", "parts\0/w.bin"):  # fmt: skip
        with pytest.raises(OnnxLoadError, match="outside of the model's folder"):
            jitgrad.onnx.load(write(external(location)))
    for model, message in (
        (external("parts/none.bin"), "cannot be read: No such file"),
        (external("parts"), "cannot be read|the file has"),
        (external("parts/w.bin", 9), "bytes 9 to 81; the file has 80"),
        (external("parts/w.bin", -8), "bytes -8 to 64; the file has 80"),
        (external("parts/w.bin", 2**62), "the file has 80"),
        (external("parts/w.bin", 8, 76), "needs 72 bytes; the entry has 76"),
        (external("parts/w.bin", "eight"), "offset or length that is no number"),
    ):
        with pytest.raises(OnnxLoadError, match=message):
            jitgrad.onnx.load(write(model))
    refused(external("parts/w.bin", 8), "load the model by its path")


@pytest.fixture(autouse=True)
def _short_loops(monkeypatch: Any) -> None:
    monkeypatch.setattr(control, "MAX_ROUNDS", 1000)


# -- anything -------------------------------------------------------------------------------------
SEEDS = [sound().SerializeToString(), control_flow()]
ALLOWED = (OnnxLoadError, OnnxNodeError, TypeError, ValueError, jitgrad.runtime.errors.CompileError)


def attempt(data: bytes) -> None:
    """Loading gives a model or OnnxLoadError; running it, a result or an error in words."""
    try:
        model = jitgrad.onnx.load(data)
    except OnnxLoadError:
        return
    inputs = [jitgrad.ones(1, 1, 4, 4)] if "x" in model.input_names else [jitgrad.tensor(6)]
    try:
        with jitgrad.no_grad():
            model(*inputs)
    except ALLOWED as error:
        assert str(error)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_bytes_altered(data: bytes, changes: list[tuple[int, int]]) -> None:
    altered = bytearray(data)
    for place, value in changes:
        altered[place % len(altered)] = value
    attempt(bytes(altered))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SEEDS), st.integers(0, 10**6), st.integers(0, 10**6), st.binary(max_size=12))
def test_bytes_cut_and_put_in(data: bytes, start: int, length: int, more: bytes) -> None:
    start %= len(data)
    attempt(data[:start] + more + data[start + length % 20 :])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    attempt(data)
