"""`jitgrad.onnx.load`: ONNX's own node tests, round trips, the Module, and bad inputs."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import MODELS
from test_onnx_models import built, example

import jitgrad
import jitgrad as torch
from jitgrad import nn
from jitgrad.pytree import flatten

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
onnx_backend = pytest.importorskip("onnx_backend")
helper = onnx.helper
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


# -- the ONNX project's node tests ----------------------------------------------------------------
@pytest.fixture(scope="module")
def node_tests() -> Any:
    return onnx_backend.all_tests()


def test_the_list_is_by_dtype_alone(node_tests: Any) -> None:
    """Of the onnx that the list was made with, and of the tests that others have in common."""
    listed = onnx_backend.LIST.read_text(encoding="utf-8").split()
    found = onnx_backend.by_dtype(node_tests)
    assert listed == sorted(set(listed))
    shared = set(listed) & set(node_tests)
    assert shared == set(found) & set(listed) and len(shared) > 1000
    if onnx.__version__.startswith("1.23."):
        assert listed == found


def test_node_tests(node_tests: Any) -> None:
    """None fails; at least three of four are supported, of the whole list."""
    outcomes: dict[str, list[str]] = {"passed": [], "not supported": [], "failed": []}
    for name in onnx_backend.LIST.read_text(encoding="utf-8").split():
        if name in node_tests:
            outcome, why = onnx_backend.run(node_tests[name])
            outcomes[outcome].append(f"{name}: {why}")
    assert not outcomes["failed"]
    count = sum(map(len, outcomes.values()))
    assert len(outcomes["passed"]) >= 0.9 * count
    if onnx.__version__.startswith("1.23."):
        page = (Path(__file__).parents[1] / "docs" / "onnx.md").read_text(encoding="utf-8")
        for outcome, names in outcomes.items():
            assert f"| {outcome} | {len(names)} |" in page


JITTED = [
    "test_add",
    "test_attention_3d_gqa",
    "test_averagepool_2d_ceil",
    "test_batchnorm_epsilon",
    "test_clip_default_inbounds",
    "test_convtranspose_pads",
    "test_cumsum_1d_reverse_exclusive",
    "test_einsum_batch_matmul",
    "test_gather_negative_indices",
    "test_gemm_all_attributes",
    "test_gridsample_bicubic",
    "test_gru_seq_length",
    "test_instancenorm_example",
    "test_layer_normalization_2d_axis0",
    "test_lstm_with_peepholes",
    "test_maxpool_2d_dilations",
    "test_nllloss_NCd1d2_with_weight",
    "test_onehot_with_axis",
    "test_reflect_pad",
    "test_resize_upsample_sizes_nearest",
    "test_rotary_embedding_interleaved",
    "test_scan9_sum",
    "test_scatternd_add",
    "test_slice_neg_steps",
    "test_softmax_axis_1",
    "test_split_variable_parts_2d_opset18",
    "test_top_k_smallest",
    "test_tril",
    "test_qlinearmatmul_2D_uint8_float32",
]


@pytest.mark.parametrize("name", JITTED)
def test_node_tests_compiled(name: str, node_tests: Any) -> None:
    assert onnx_backend.run(node_tests[name], jit=True) == ("passed", "")


# -- round trips ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, tmp_path: Any) -> None:
    """A model that was written and read gives what it gave, compiled too, with its parameters."""
    model, x = built(name), example(name, 3)
    jitgrad.export(model, x).onnx(tmp_path / "m.onnx")
    loaded = torch.onnx.load(tmp_path / "m.onnx")
    own = {n: p for n, p in model.named_parameters() if n != "wte.weight"}
    assert set(own) <= set(dict(loaded.named_parameters()))
    compiled = torch.jit(loaded, fallback="error")
    compiled(x)
    wanted = flatten(model(x))[0]
    for made in (loaded(x), compiled(x)):
        found = made if isinstance(made, tuple) else (made,)
        assert len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(f.detach().numpy(), w.detach().numpy(), rtol=2e-5, atol=2e-5)
    assert compiled.stats.hits >= 1


def test_a_dynamic_batch(tmp_path: Any) -> None:
    model = built("vit")
    exported = jitgrad.export(
        model, example("vit", 3), names=["x"], dynamic_shapes={"x": {0: "batch"}}
    )
    exported.onnx(tmp_path / "m.onnx")
    loaded = torch.onnx.load(str(tmp_path / "m.onnx"))
    for batch in (1, 4):
        x = example("vit", batch, batch)
        np.testing.assert_allclose(
            loaded(x).detach().numpy(), model(x).detach().numpy(), rtol=2e-5, atol=2e-5
        )


def test_fine_tuning(tmp_path: Any) -> None:
    """Gradients reach the parameters, and a compiled step trains; state dicts fit both ways."""
    jitgrad.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x, y = torch.randn(16, 4), torch.randn(16, 1)
    jitgrad.export(model, x).onnx(tmp_path / "m.onnx")
    loaded = torch.onnx.load(tmp_path / "m.onnx")
    assert list(loaded.state_dict()) == list(model.state_dict())
    loaded.load_state_dict(model.state_dict())
    for m in (model, loaded):
        nn.functional.mse_loss(m(x), y).backward()
    for (name, p), q in zip(model.named_parameters(), loaded.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5, err_msg=name)
    optimizer = torch.optim.Adam(loaded.parameters(), lr=0.01)

    @torch.jit(fallback="error")
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(loaded(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step(x, y).item() for _ in range(20)]
    assert losses[-1] < losses[0] and step.stats.hits >= 18


def test_exported_again(tmp_path: Any) -> None:
    """A loaded model is a Module like any other: it exports."""
    model, x = built("cnn"), example("cnn", 2)
    jitgrad.export(model, x).onnx(tmp_path / "a.onnx")
    loaded = torch.onnx.load(tmp_path / "a.onnx")
    jitgrad.export(loaded, x).onnx(tmp_path / "b.onnx")
    again = torch.onnx.load(tmp_path / "b.onnx")
    np.testing.assert_allclose(
        again(x).detach().numpy(), model(x).detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_copies_and_pickles(tmp_path: Any) -> None:
    model, x = built("mlp"), example("mlp", 2)
    jitgrad.export(model, x).onnx(tmp_path / "m.onnx")
    loaded = torch.onnx.load(tmp_path / "m.onnx")
    for twin in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        np.testing.assert_array_equal(twin(x).detach().numpy(), loaded(x).detach().numpy())
        with torch.no_grad():
            next(twin.parameters()).zero_()
        assert abs(next(loaded.parameters())).sum() > 0


def test_weights_in_a_second_file(tmp_path: Any) -> None:
    model = nn.Linear(64, 64).eval()
    x = torch.ones(2, 64)
    jitgrad.export(model, x).onnx(tmp_path / "m.onnx", external_data=True)
    loaded = torch.onnx.load(tmp_path / "m.onnx")
    np.testing.assert_allclose(
        loaded(x).detach().numpy(), model(x).detach().numpy(), rtol=1e-5, atol=1e-6
    )


# -- hand-made models -----------------------------------------------------------------------------
def made(
    nodes: Any, inputs: Any, outputs: Any, initializers: Any = (), opset: int = 18, **more: Any
) -> bytes:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in dict(initializers).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)]
    return bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10, **more).SerializeToString()
    )


def test_names_inputs_and_repr() -> None:
    model = torch.onnx.load(
        made(
            [
                helper.make_node("Add", ["a", "w"], ["s"]),
                helper.make_node("Mul", ["s", "b"], ["y"]),
            ],
            [("a", FLOAT, ["n", 2]), ("b", FLOAT, ["n", 2])],
            [("y", FLOAT, ["n", 2]), ("s", FLOAT, ["n", 2])],
            {"w": np.ones(2, np.float32)},
        )
    )
    assert (model.input_names, model.output_names, model.opset) == (("a", "b"), ("y", "s"), 18)
    a, b = torch.ones(3, 2), torch.full((3, 2), 2.0)
    y, s = model(b=b, a=a)
    assert y.tolist() == [[4.0, 4.0]] * 3 and s.tolist() == [[2.0, 2.0]] * 3
    assert "(a, b) -> (y, s), 2 nodes" in repr(model)
    with pytest.raises(TypeError, match=r"expected the inputs a, b; got 1 and \[\]"):
        model(a)
    with pytest.raises(TypeError, match="expected each input once"):
        model(a, b, a=a)
    with pytest.raises(TypeError, match="input 'a' of dtype jitgrad.float32; got jitgrad.float64"):
        model(a.double(), b)
    with pytest.raises(ValueError, match=r"input 'b' of shape \[3, 2\]; got \[2, 2\]"):
        model(a, b[:2])
    with pytest.raises(TypeError, match="input 'a' to be a Tensor; got ndarray"):
        model(a.numpy(), b)


def test_parameters_whose_names_clash() -> None:
    names = ["a", "a.b", "forward", "x.training", "", "..", "weight/0", "a_b"]
    names = [n for n in names if n]
    arrays = {n: np.full(2, k, np.float32) for k, n in enumerate(names)}
    nodes = [helper.make_node("Sum", ["x_", *names], ["y"])]
    model = torch.onnx.load(made(nodes, [("x_", FLOAT, [2])], [("y", FLOAT, [2])], arrays))
    assert model(torch.zeros(2)).tolist() == [sum(range(len(names)))] * 2
    assert len(list(model.parameters())) == len(names)


def _scalar(name: str, kind: int = INT64) -> Any:
    return helper.make_tensor_value_info(name, kind, [])


def control_flow() -> bytes:
    """Collatz steps of n (Loop around an If), and the values on the way."""
    then = helper.make_graph(
        [helper.make_node("Div", ["n_in", "two"], ["half"])], "even", [],
        [_scalar("half")],
    )  # fmt: skip
    other = helper.make_graph(
        [
            helper.make_node("Mul", ["n_in", "three"], ["tripled"]),
            helper.make_node("Add", ["tripled", "one"], ["more"]),
        ],
        "odd", [], [_scalar("more")],
    )  # fmt: skip
    body = helper.make_graph(
        [
            helper.make_node("Mod", ["n_in", "two"], ["rest"]),
            helper.make_node("Equal", ["rest", "zero"], ["is_even"]),
            helper.make_node("If", ["is_even"], ["n_out"], then_branch=then, else_branch=other),
            helper.make_node("Greater", ["n_out", "one"], ["go"]),
            helper.make_node("Identity", ["n_out"], ["seen"]),
        ],
        "body",
        [_scalar("i"), _scalar("go_in", BOOL), _scalar("n_in")],
        [_scalar("go", BOOL), _scalar("n_out"), _scalar("seen")],
    )  # fmt: skip
    numbers = {
        k: np.array(v, np.int64) for k, v in (("zero", 0), ("one", 1), ("two", 2), ("three", 3))
    }
    return made(
        [helper.make_node("Loop", ["", "", "n"], ["last", "path"], body=body)],
        [("n", INT64, [])], [("last", INT64, []), ("path", INT64, ["k"])], numbers,
    )  # fmt: skip


def test_control_flow() -> None:
    model = torch.onnx.load(control_flow())
    last, path = model(torch.tensor(6))
    assert last.item() == 1 and path.tolist() == [3, 10, 5, 16, 8, 4, 2, 1]


def test_control_flow_compiled() -> None:
    """Conditions that are found in tensors: If and Loop become cond and while_loop."""
    branches = [
        helper.make_graph([helper.make_node(op, ["x", "w"], [f"out_{op}"])], op, [],
                          [helper.make_tensor_value_info(f"out_{op}", FLOAT, [3])])
        for op in ("Add", "Sub")
    ]  # fmt: skip
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["v", "half"], ["v_out"]),
            helper.make_node("ReduceMax", ["v_out"], ["largest"], keepdims=0),
            helper.make_node("Greater", ["largest", "one"], ["go"]),
        ],
        "body",
        [_scalar("i"), _scalar("go_in", BOOL), helper.make_tensor_value_info("v", FLOAT, [3])],
        [_scalar("go", BOOL), helper.make_tensor_value_info("v_out", FLOAT, [3])],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branches[0], else_branch=branches[1]
        ),
        helper.make_node("Loop", ["", "", "y"], ["z"], body=body),
    ]  # fmt: skip
    numbers = {k: np.array(v, np.float32) for k, v in (("zero", 0), ("one", 1), ("half", 0.5))}
    data = made(
        nodes, [("x", FLOAT, [3])], [("z", FLOAT, [3]), ("total", FLOAT, [])],
        {"w": np.arange(3, dtype=np.float32), **numbers},
    )  # fmt: skip
    model = torch.onnx.load(data)
    compiled = torch.jit(model, fallback="error")
    for x in ([1.0, 2.0, 3.0], [-1.0, -2.0, -30.0], [40.0, 0.0, 0.5], [0.0, 0.0, 0.0]):
        found, wanted = compiled(torch.tensor(x)), model(torch.tensor(x))
        y = np.array(x) + np.arange(3) * (1 if sum(x) > 0 else -1)
        y = y / 2
        while y.max() > 1:
            y = y / 2
        np.testing.assert_allclose(wanted[0].detach().numpy(), y)
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(f.detach().numpy(), w.detach().numpy())
    assert compiled.stats.traces == 1


def test_functions_of_the_model() -> None:
    """A model's own ops, with attributes and other functions inside."""
    scaled = helper.make_function(
        "mine", "Scaled", ["x"], ["y"],
        [_with_reference(helper.make_node("Constant", [], ["k"]), "value_float", "factor"),
         helper.make_node("Mul", ["x", "k"], ["y"])],
        [helper.make_opsetid("", 18)], ["factor"],
    )  # fmt: skip
    twice = helper.make_function(
        "mine", "Twice", ["x"], ["y"],
        [helper.make_node("Scaled", ["x"], ["t"], domain="mine", factor=3.0),
         helper.make_node("Scaled", ["t"], ["y"], domain="mine", factor=5.0)],
        [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    data = made(
        [helper.make_node("Twice", ["x"], ["y"], domain="mine")],
        [("x", FLOAT, [2])], [("y", FLOAT, [2])], functions=[scaled, twice],
    )  # fmt: skip
    assert torch.onnx.load(data)(torch.ones(2)).tolist() == [15.0, 15.0]


def _with_reference(node: Any, name: str, outer: str) -> Any:
    a = onnx.AttributeProto(name=name, ref_attr_name=outer, type=onnx.AttributeProto.FLOAT)
    node.attribute.append(a)
    return node


def test_older_opsets() -> None:
    """Attributes where later opsets have operands; axes lined up by `axis`."""
    nodes = [
        helper.make_node("Add", ["x", "b"], ["s"], broadcast=1, axis=1),
        helper.make_node("Reshape", ["s"], ["r"], shape=[2, 12]),
        helper.make_node("Slice", ["r"], ["t"], axes=[1], starts=[2], ends=[-1]),
        helper.make_node("Clip", ["t"], ["c"], min=1.0, max=9.0),
        helper.make_node("ReduceSum", ["c"], ["y"], axes=[1], keepdims=0),
    ]
    data = made(
        nodes, [("x", FLOAT, [2, 3, 4])], [("y", FLOAT, [2])],
        {"b": np.arange(3, dtype=np.float32)}, opset=4,
    )  # fmt: skip
    x = torch.arange(24.0).reshape(2, 3, 4)
    s = (x.numpy() + np.arange(3)[:, None]).reshape(2, 12)[:, 2:-1].clip(1, 9)
    assert torch.onnx.load(data)(x).tolist() == s.sum(1).tolist()


def test_unsupported_ops_are_listed_at_once() -> None:
    nodes = [
        helper.make_node("Nonsense", ["x"], ["a"], name="first"),
        helper.make_node("ImageDecoder", ["x"], ["b"], name="second"),
        helper.make_node("Odd", ["a"], ["y"], domain="mine"),
    ]
    data = made(nodes, [("x", FLOAT, [1])], [("y", FLOAT, [1])])
    with pytest.raises(NotImplementedError) as error:
        torch.onnx.load(data)
    text = str(error.value)
    assert "3 of the model's ops are not supported" in text
    for line in ("ImageDecoder: 'second'", "Nonsense: 'first'", "mine.Odd: 'y'"):
        assert line in text


def test_attributes_that_are_not_known() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="n", bend=2)
    data = made([node], [("x", FLOAT, [1])], [("y", FLOAT, [1])])
    with pytest.raises(NotImplementedError, match=r"'n' \(Relu\): bend is not supported"):
        torch.onnx.load(data)(torch.ones(1))


def test_a_node_that_fails_is_named() -> None:
    node = helper.make_node("MatMul", ["x", "x"], ["y"], name="product")
    model = torch.onnx.load(made([node], [("x", FLOAT, ["a", "b"])], [("y", FLOAT, None)]))
    with pytest.raises(RuntimeError, match=r"node 'product' \(MatMul\) failed: .*float32\[2, 3\]"):
        model(torch.ones(2, 3))


def test_shapes_that_are_inputs_under_jit() -> None:
    """Python reads them: compiled code runs in segments, with the numbers of each call."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Exp", ["r"], ["y"]),
    ]
    model = torch.onnx.load(
        made(nodes, [("x", FLOAT, [4]), ("shape", INT64, [2])], [("y", FLOAT, ["a", "b"])])
    )
    compiled = torch.jit(model, fallback="error")
    for sizes in ([2, 2], [4, 1], [2, 2], [1, 4]):
        x = torch.randn(4)
        y = compiled(x, torch.tensor(sizes))
        np.testing.assert_allclose(y.numpy(), np.exp(x.numpy()).reshape(sizes), rtol=1e-6)


# -- the conditions of a model's sizes ------------------------------------------------------------
def conditional(path: Path) -> Any:
    """A model that is right only where 4 < n."""

    def f(x: Any) -> Any:
        return x * 2 if x.shape[0] > 4 else x * 3

    exported = jitgrad.export(f, torch.rand(5, 3), dynamic_shapes={"x": {0: "n"}})
    exported.onnx(path)
    return exported


def test_conditions_of_the_sizes_are_checked(tmp_path: Path) -> None:
    """As Exported checks them: eagerly, under @jit, and in what is exported again."""
    exported = conditional(tmp_path / "m.onnx")
    m = jitgrad.onnx.load(tmp_path / "m.onnx")
    again = jitgrad.export(m, torch.rand(5, 3), names=["x"], dynamic_shapes={"x": {0: "n"}})
    run = torch.jit(m)
    for n in (5, 6, 9):
        x = torch.rand(n, 3)
        for call in (exported, m, run, again):
            assert call(x).equal(x * 2)
    for n in (0, 1, 2, 4):
        for call in (exported, m, run, again):
            with pytest.raises(ValueError, match="expected sizes with 4 < n; got"):
                call(torch.rand(n, 3))


def with_conditions(path: Path, text: str) -> Any:
    """The model of `conditional` with another text of conditions."""
    conditional(path)
    model = onnx.load(path)
    helper.set_model_props(model, {"jitgrad.conditions": text})
    onnx.save(model, path)
    return path


def test_conditions_of_every_form(tmp_path: Path) -> None:
    texts = {
        "n != 1; -1 * n + 3 < (n // 2)": {3, 4, 7, 9},
        "(n % 2) == 0": {0, 2, 4},
        "max(n, 3) <= 3; 1 < min(n, 5)": {2, 3},
        "(7 // n) < 3": {3, 4, 7, 9},
        "": {0, 1, 2, 3, 4, 7, 9},
    }
    for text, good in texts.items():
        m = jitgrad.onnx.load(with_conditions(tmp_path / "m.onnx", text))
        for n in good:
            m(torch.ones(n, 3))
        for n in {0, 1, 2, 3, 4, 7, 9} - good:
            with pytest.raises(ValueError, match="expected sizes with"):
                m(torch.ones(n, 3))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n", "expected comparisons of sizes"),
        ("n <", "expected comparisons of sizes"),
        ("n < m", "none of its inputs has a size called m"),
        ("n ** 9 < 3", "expected comparisons of sizes"),
        ("print(n, 1) < 3", "expected comparisons of sizes"),
        ("1 < n < 3", "expected comparisons of sizes"),
        ("n < True", "expected comparisons of sizes"),
        ("import os", "expected comparisons of sizes"),
        ("(" * 5000 + "n" + ")" * 5000 + " < 3", "expected comparisons of sizes"),
        ("-" * 60000 + "n < 3", "expected comparisons of sizes"),
        ("n < 3;" * 20000, "characters"),
    ],
)
def test_conditions_that_are_none(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(jitgrad.onnx.OnnxLoadError, match=why):
        jitgrad.onnx.load(with_conditions(tmp_path / "m.onnx", text))
