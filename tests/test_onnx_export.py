"""ONNX export beside the numbers: what is refused and how, names, opsets, files, custom ops,
dynamic dims, and `jitgrad.onnx.export` with PyTorch's arguments."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
from test_onnx_models import assert_same

import jitgrad
import jitgrad as torch
from jitgrad import nn
from jitgrad.compiler.ops import OPS

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def run(path: Any, **feeds: Any) -> list[Any]:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, {k: x.numpy() for k, x in feeds.items()}))


# -- what is refused ------------------------------------------------------------------------------
def test_all_unsupported_ops_at_once(tmp_path: Any) -> None:
    def f(x: Any) -> Any:
        y = torch.lgamma(x)
        z = torch.erfinv(x) + torch.lgamma(y)
        return torch.linalg.svdvals(z)

    exported = jitgrad.export(f, torch.rand(3, 3))
    with pytest.raises(jitgrad.onnx.UnsupportedOperatorError) as error:
        exported.onnx(tmp_path / "m.onnx")
    text = str(error.value)
    assert "cannot write f at opset 18: 3 of its ops have no ONNX form" in text
    line = f.__code__.co_firstlineno
    assert f"lgamma, at test_onnx_export.py:{line + 1}, test_onnx_export.py:{line + 2}: " in text
    assert f"svdvals, at test_onnx_export.py:{line + 3}: " in text and "erfinv, at " in text
    assert not os.listdir(tmp_path)
    missing = jitgrad.onnx.unsupported(exported)
    assert [m.op for m in missing] == ["lgamma", "erfinv", "lgamma", "svdvals"]
    assert isinstance(error.value, RuntimeError)


def test_an_op_of_a_later_opset(tmp_path: Any) -> None:
    exported = jitgrad.export(lambda x: x & 3, torch.arange(5))
    with pytest.raises(RuntimeError, match="bitwise_and.*ONNX has BitwiseAnd from opset 18"):
        exported.onnx(tmp_path / "m.onnx", opset=17)
    exported.onnx(tmp_path / "m.onnx", opset=18)
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", x=torch.arange(5))[0], [0, 1, 2, 3, 0])


@pytest.mark.parametrize("opset", [16, 1000, "18"])
def test_opsets_out_of_range(opset: Any, tmp_path: Any) -> None:
    exported = jitgrad.export(lambda x: x + 1, torch.ones(2))
    with pytest.raises(ValueError, match="expected an opset from 17 to"):
        exported.onnx(tmp_path / "m.onnx", opset=opset)


def test_a_folder_that_is_not_there(tmp_path: Any) -> None:
    exported = jitgrad.export(lambda x: x + 1, torch.ones(2))
    with pytest.raises(FileNotFoundError, match="expected a folder that can be written"):
        exported.onnx(tmp_path / "no" / "m.onnx")


def test_training_mode_is_refused_and_put_back(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with pytest.raises(RuntimeError, match="draws random numbers"):
        torch.onnx.export(
            model, torch.ones(2, 3), tmp_path / "m.onnx",
            training=torch.onnx.TrainingMode.TRAINING,
        )  # fmt: skip
    assert model.training and model[1].training
    torch.onnx.export(model, torch.ones(2, 3), tmp_path / "m.onnx")  # in eval mode
    assert model.training and model[1].training
    assert_same(tmp_path / "m.onnx", model.eval(), torch.randn(2, 3))


def test_a_failed_export_leaves_the_old_file(tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    jitgrad.export(lambda x: x + 1, torch.ones(2)).onnx(path)
    before = path.read_bytes()
    with pytest.raises(RuntimeError):
        jitgrad.export(torch.lgamma, torch.ones(2)).onnx(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["m.onnx"]


def test_without_the_package(monkeypatch: Any, tmp_path: Any) -> None:
    exported = jitgrad.export(lambda x: x + 1, torch.ones(2))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (lambda: exported.onnx(tmp_path / "m.onnx"), lambda: torch.onnx.load(b""),
                 lambda: torch.onnx.unsupported(exported),
                 lambda: torch.onnx.export(exported)):  # fmt: skip
        with pytest.raises(ImportError, match=r"pip install 'jitgrad\[onnx\]'"):
            call()


# -- what is written ------------------------------------------------------------------------------
def test_names(tmp_path: Any) -> None:
    def f(left: Any, right: Any) -> Any:
        return {"sum": left + right, "parts": (left * 2, right * 2)}

    exported = jitgrad.export(f, torch.ones(2, 3), torch.ones(3))
    written = exported.onnx(tmp_path / "m.onnx")
    assert written.inputs == ("left", "right")
    assert written.outputs == ("sum", "parts.0", "parts.1")
    proto = onnx.load(written.path)
    assert [i.name for i in proto.graph.input] == ["left", "right"]
    assert [o.name for o in proto.graph.output] == ["sum", "parts.0", "parts.1"]


def test_outputs_that_are_called_as_inputs_are(tmp_path: Any) -> None:
    """Another name, which is no one's, for the output."""

    def step(cache: Any, k_out: Any) -> Any:
        return {"cache": {"k": cache["k"] + k_out}, "k_out": k_out * 3}

    exported = jitgrad.export(step, {"k": torch.ones(3)}, torch.ones(3))
    assert exported.output_names == ("cache.k", "k_out") and "cache.k" in exported.input_names
    written = exported.onnx(tmp_path / "m.onnx")
    assert written.outputs == ("cache.k_out", "k_out_out")
    x = np.arange(3, dtype=np.float32)
    found = jitgrad.onnx.load(written.path)(torch.from_numpy(x), torch.from_numpy(x * 2))
    for got, factor in zip(found, (3, 6), strict=True):
        np.testing.assert_array_equal(got.numpy(), x * factor)
    same = jitgrad.export(
        lambda a, a_out: (a * 2, a_out * 3), torch.ones(2), torch.ones(2), names=["a", "a_out"],
        output_names=["a", "b"],
    )  # fmt: skip
    assert same.onnx(tmp_path / "n.onnx").outputs == ("a_out_out", "b")


def test_output_that_is_an_input(tmp_path: Any) -> None:
    weight = torch.randn(3)

    def f(x: Any) -> Any:
        y = x + weight
        return y, x, y, weight, y.reshape(3, 1)

    exported = jitgrad.export(f, torch.ones(3))
    exported.onnx(tmp_path / "m.onnx")
    x = torch.randn(3)
    y, same, again, w, column = run(tmp_path / "m.onnx", x=x)
    np.testing.assert_array_equal(y, (x + weight).numpy())
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(column, y[:, None])
    np.testing.assert_array_equal(same, x.numpy())
    np.testing.assert_array_equal(w, weight.numpy())
    proto = onnx.load(tmp_path / "m.onnx")
    line = f.__code__.co_firstlineno
    (add,) = [n for n in proto.graph.node if n.op_type == "Add"]
    assert add.doc_string == f"test_onnx_export.py:{line + 1}"
    assert proto.producer_name == "jitgrad"


def test_constants_are_folded_and_stored_once() -> None:
    def f(x: Any) -> Any:
        return (x * 2.0 + torch.ones(()) * 3.0).reshape(6) * 2.0

    model = jitgrad.onnx.export(f, torch.ones(2, 3)).model_proto
    nodes = ["Constant"] * 3 + ["Mul", "Add", "Reshape", "Mul"]  # 2, 3 and the shape
    assert [n.op_type for n in model.graph.node] == nodes
    assert not model.graph.initializer


@pytest.mark.parametrize("apart", [False, True])
def test_external_data(apart: bool, tmp_path: Any) -> None:
    model = nn.Linear(64, 64).eval()
    written = jitgrad.export(model, torch.ones(2, 64)).onnx(
        tmp_path / "m.onnx", external_data=apart
    )
    assert sorted(os.listdir(tmp_path)) == ["m.onnx"] + ["m.onnx.data"] * apart
    assert written.data == (str(tmp_path / "m.onnx.data") if apart else None)
    assert (tmp_path / "m.onnx").stat().st_size < 8192 or not apart
    assert_same(tmp_path / "m.onnx", model, torch.randn(2, 64))


def test_weights_that_need_a_second_file(tmp_path: Any, monkeypatch: Any) -> None:
    from jitgrad.onnx import exporter

    def of_a_message(array: Any, name: Any = None) -> Any:
        assert array.nbytes <= exporter.LARGEST, "as protobuf does with more than 2 GB"
        return from_array(array, name)

    from_array = onnx.numpy_helper.from_array
    monkeypatch.setattr(onnx.numpy_helper, "from_array", of_a_message)
    monkeypatch.setattr(exporter, "LARGEST", 1000)
    monkeypatch.setattr(exporter, "_SMALL", 1000)
    model = nn.Linear(64, 64).eval()
    exported = jitgrad.export(model, torch.ones(2, 64))
    with pytest.raises(ValueError, match="expected weights of at most 1,000 bytes in one file"):
        exported.onnx(tmp_path / "m.onnx", external_data=False)
    exported.onnx(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == 64 * 64 * 4
    assert_same(tmp_path / "m.onnx", model, torch.randn(2, 64))
    program = jitgrad.onnx.export(model, (torch.ones(2, 64),))
    with pytest.raises(ValueError, match=r"use Exported.onnx\(path\)"):
        _ = program.model_proto


# -- custom ops -----------------------------------------------------------------------------------
def test_a_custom_op_by_a_symbolic_function(tmp_path: Any) -> None:
    """Through a node of another domain, which ONNX Runtime runs, and through ONNX's own ops."""

    def f(x: Any) -> Any:
        return torch.special.erfcx(x) + 1

    def symbolic(g: Any, x: Any) -> Any:
        assert g.type(x).shape == (4,)
        return g.op("com.microsoft::QuickGelu", x, alpha_f=2.0)

    exported = jitgrad.export(f, torch.ones(4))
    exported.onnx(tmp_path / "m.onnx", custom={"erfcx": symbolic})
    x = torch.randn(4)
    (found,) = run(tmp_path / "m.onnx", x=x)
    np.testing.assert_allclose(found, (x * torch.sigmoid(2.0 * x) + 1).numpy(), rtol=1e-5)

    def squared(g: Any, x: Any) -> Any:
        return g.op("Mul", g.op("Mul", x, x), torch.tensor(3.0))

    torch.onnx.register_custom_op_symbolic("mine::erfcx", squared, 18)
    try:
        exported.onnx(tmp_path / "m.onnx")
        np.testing.assert_allclose(run(tmp_path / "m.onnx", x=x)[0], (x * x * 3 + 1).numpy(), 1e-6)
        with pytest.raises(RuntimeError, match="erfcx"):
            exported.onnx(tmp_path / "m.onnx", opset=17)
    finally:
        torch.onnx.unregister_custom_op_symbolic("mine::erfcx", 18)
    with pytest.raises(RuntimeError, match="erfcx"):
        exported.onnx(tmp_path / "m.onnx")


def test_what_symbolic_functions_may_not_do(tmp_path: Any) -> None:
    exported = jitgrad.export(torch.special.erfcx, torch.ones(4))
    with pytest.raises(RuntimeError, match="of erfcx raised TypeError.*of Clip to end in"):
        exported.onnx(tmp_path / "m.onnx", custom={"erfcx": lambda g, x: g.op("Clip", x, low=1)})
    with pytest.raises(RuntimeError, match="ONNX has no op Nonsense"):
        exported.onnx(tmp_path / "m.onnx", custom={"erfcx": lambda g, x: g.op("Nonsense", x)})
    with pytest.raises(ValueError, match="expected the name of an op"):
        torch.onnx.register_custom_op_symbolic("mine::nothing", lambda g: None, 18)
    assert "nothing" not in OPS
    for wrong, text in [
        (lambda g, x: None, "symbolic function of erfcx to give a value, .* got NoneType"),
        (lambda g, x: (x, x), "function of erfcx to give a value, as g.op does; got 2 of them"),
        (lambda g, y, z: y, "symbolic function of erfcx raised TypeError"),
        (lambda g, x: {}[1], "symbolic function of erfcx raised KeyError"),
    ]:
        with pytest.raises(jitgrad.onnx.OnnxExporterError, match=text):
            exported.onnx(tmp_path / "m.onnx", custom={"erfcx": wrong})
    for name in ("Erfcx", "erfc_x", "mine::nothing", "", 3):
        with pytest.raises(ValueError, match="expected the name of an op; got"):
            exported.onnx(tmp_path / "m.onnx", custom={name: lambda g, x: x})
    with pytest.raises(TypeError, match="expected a function for 'erfcx'; got str"):
        exported.onnx(tmp_path / "m.onnx", custom={"erfcx": "Erfcx"})
    assert not os.listdir(tmp_path)


def test_operators_of_users_stay_one_node(tmp_path: Any) -> None:
    @jitgrad.library.custom_op("tests::scaled", mutates_args=())
    def scaled(x: Any, by: float = 2.0, *, shift: Any) -> Any:
        return x * by + shift + bias

    @jitgrad.library.custom_op("tests::unused", mutates_args=())
    def unused(x: Any) -> Any:
        return x + 1

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = 3.0

        def forward(self, x: Any, y: Any) -> Any:
            return scaled(scaled(x, self.by, shift=y), shift=x).exp()

    bias = torch.rand(4)
    model, x, y = Model().eval(), torch.rand(3, 4), torch.rand(3, 4)
    shapes = {"x": {0: "n"}, "y": {0: "n"}}
    exported = jitgrad.export(model, x, y, dynamic_shapes=shapes)
    assert [n.op.name for n in exported.graph.nodes] == ["call", "call", "exp"]
    want = model(x, y)
    torch.testing.assert_close(exported(x, y), want)
    exported.save(tmp_path / "m.jgx")
    torch.testing.assert_close(jitgrad.load_exported(tmp_path / "m.jgx")(x, y), want)
    jitgrad.export(model, x, y).native(tmp_path / "libm12.so")
    found = jitgrad.runtime.load(tmp_path / "libm12.so")(x.numpy(), y.numpy())
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-6)
    path = tmp_path / "m.onnx"
    exported.onnx(path)  # without a symbolic function: the ops in it
    np.testing.assert_allclose(run(path, x=x, y=y)[0], want.numpy(), rtol=1e-6)

    given = []

    def symbolic(g: Any, x: Any, by: float, *, shift: Any) -> Any:
        given.append(by)
        return g.op("tests::Scaled", x, shift, by_f=by)

    def kinds() -> list[str]:
        return [n.op_type for n in onnx.load(path).graph.node]

    exported.onnx(path, custom={"tests::scaled": symbolic})
    assert (given, kinds()) == ([3.0, 2.0], ["Scaled", "Scaled", "Exp"])
    assert not onnx.load(path).graph.initializer
    torch.onnx.register_custom_op_symbolic("tests::scaled", symbolic)
    try:
        exported.onnx(path)
        assert kinds() == ["Scaled", "Scaled", "Exp"]
    finally:
        torch.onnx.unregister_custom_op_symbolic("tests::scaled")
    exported.onnx(path)
    assert "Scaled" not in kinds()
    with pytest.raises(ValueError, match="expected Model to have tests::unused as a node"):
        exported.onnx(path, custom={"tests::unused": symbolic})
    for name in ("tests::Scaled", "scaled"):
        with pytest.raises(ValueError, match="or write 'tests::scaled'"):
            exported.onnx(path, custom={name: symbolic})


# -- dynamic dims ---------------------------------------------------------------------------------
def test_sizes_that_are_computed(tmp_path: Any) -> None:
    """Products, sums and quotients of sizes, as shapes and as numbers of steps."""

    def f(x: Any, y: Any) -> Any:
        b, t = x.shape
        both = torch.cat([x.reshape(b * t), y])
        halves = x[:, : t // 2].sum(1)
        ramp = torch.arange(t) + torch.zeros(b, t)
        return both, halves, ramp, torch.full((b + 1,), 2.5), x.new_zeros(t * 2).long(), x.tril()

    shapes = {"x": {0: "b", 1: "t"}, "y": {0: "n"}}
    exported = jitgrad.export(f, torch.ones(3, 4), torch.ones(5), dynamic_shapes=shapes)
    exported.onnx(tmp_path / "m.onnx")
    for b, t, n in ((3, 4, 5), (2, 7, 3), (6, 2, 2)):
        x, y = torch.randn(b, t), torch.randn(n)
        assert_same(tmp_path / "m.onnx", f, x, y)
        if t == 2:
            continue  # compiled code holds where t // 2 is not 1
        for found, wanted in zip(exported(x, y), f(x, y)):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)
    for b, t, n in ((1, 1, 1), (0, 3, 0)):
        assert_same(tmp_path / "m.onnx", f, torch.randn(b, t), torch.randn(n))


def test_sizes_as_numbers(tmp_path: Any) -> None:
    """A mean over dynamic dims divides by a size."""

    def f(x: Any) -> Any:
        b, t = x.shape
        pooled = torch.nn.functional.adaptive_avg_pool2d(x[None, None], 1)
        return x.mean(), x.var(1), pooled, x / (b * t), x * (t - b)

    exported = jitgrad.export(f, torch.ones(3, 4), dynamic_shapes={"x": {0: "b", 1: "t"}})
    exported.onnx(tmp_path / "m.onnx")
    for b, t in ((3, 4), (4, 4), (2, 7)):
        x = torch.randn(b, t)
        assert_same(tmp_path / "m.onnx", f, x)
        for found, wanted in zip(exported(x), f(x), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_ramps_that_begin_and_step_by_a_size(tmp_path: Any) -> None:
    def f(x: Any) -> Any:
        b, t = x.shape
        wide = torch.arange(t, 2 * t, dtype=torch.float32) * x
        odd = torch.arange(b, b + t, 2, dtype=torch.int32)
        return torch.arange(t, t + b), torch.arange(0, b * t, t), wide, torch.arange(t, 0, -1), odd

    exported = jitgrad.export(f, torch.ones(3, 4), dynamic_shapes={"x": {0: "b", 1: "t"}})
    exported.onnx(tmp_path / "m.onnx")
    exported.save(tmp_path / "m.jgx")
    loaded = jitgrad.load_exported(tmp_path / "m.jgx")
    for b, t in ((3, 4), (4, 4), (2, 7)):
        x = torch.randn(b, t)
        wanted = [y.numpy() for y in f(x)]
        for found in (exported(x), loaded(x)):
            for y, w in zip(found, wanted, strict=True):
                assert y.numpy().dtype == w.dtype
                np.testing.assert_array_equal(y.numpy(), w)
        for y, w in zip(run(tmp_path / "m.onnx", x=x), wanted, strict=True):
            assert y.dtype == w.dtype
            np.testing.assert_array_equal(y, w)


def test_counts_are_rounded_as_python_rounds(tmp_path: Any) -> None:
    """A ramp of steps of 2 has -(-n // 2) elements; ONNX's Div rounds to zero."""

    def f(x: Any) -> Any:
        n = x.shape[0]
        return torch.arange(0, n, 2), torch.arange(n, 0, -3), x[::2] * 2, torch.ones(-(-n // 4))

    exported = jitgrad.export(f, torch.ones(9), dynamic_shapes={"x": {0: "n"}})
    exported.onnx(tmp_path / "m.onnx")
    for n in (5, 6, 7, 8, 9, 10):
        x = torch.randn(n)
        for y, w in zip(run(tmp_path / "m.onnx", x=x), f(x), strict=True):
            np.testing.assert_array_equal(y, w.numpy())


def test_writing_changes_nothing_of_what_may_be_given(tmp_path: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(11, 6, padding_idx=0), torch.nn.Linear(6, 2))
    tokens = torch.randint(0, 11, (3, 4))
    exported = jitgrad.export(model.eval(), tokens, dynamic_shapes=[{0: "b", 1: "t"}])
    before = list(exported.graph.env.guards)
    exported.onnx(tmp_path / "m.onnx")
    assert exported.graph.env.guards == before
    assert exported(torch.zeros(1, 1, dtype=torch.int64)).shape == (1, 1, 2)
    assert not onnx.load(tmp_path / "m.onnx").metadata_props


def test_assignment_to_slices_of_symbolic_size(tmp_path: Any) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y[:, 1:] = x[:, :-1]
        y[1:, 0] = 5.0
        return y

    exported = jitgrad.export(f, torch.ones(3, 4), dynamic_shapes={"x": {0: "b", 1: "t"}})
    exported.onnx(tmp_path / "m.onnx")
    for b, t in ((3, 4), (2, 5), (5, 2)):
        assert_same(tmp_path / "m.onnx", f, torch.randn(b, t))


def test_conditions_of_the_sizes(tmp_path: Any) -> None:
    def f(x: Any) -> Any:
        assert x.shape[0] <= 10, "too long"
        return x * 2

    exported = jitgrad.export(f, torch.ones(3), dynamic_shapes={"x": {0: "n"}})
    exported.onnx(tmp_path / "m.onnx")
    (prop,) = onnx.load(tmp_path / "m.onnx").metadata_props
    assert (prop.key, prop.value) == ("jitgrad.conditions", "n <= 10")
    assert exported(torch.ones(10)).shape == (10,)
    with pytest.raises(ValueError, match=r"expected sizes with n <= 10; got n = 11"):
        exported(torch.ones(11))
    for n in (0, 1):  # graphs of their own
        assert exported(torch.ones(n)).tolist() == [2.0] * n


def test_fixed_dims_are_refused() -> None:
    def f(x: Any) -> Any:
        return sum(row for row in x)

    with pytest.raises(RuntimeError, match=r"holds only where n == 3 .*leave these dims out"):
        jitgrad.export(f, torch.ones(3, 2), dynamic_shapes={"x": {0: "n"}})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"y": {0: "n"}}, r"dynamic_shapes of inputs \['x'\]; got \['y'\]"),
        ({"x": {3: "n"}}, "expected dims of 'x', which has 2; got 3"),
        ({"x": {0: "n n"}}, "to have a name such as 'batch'"),
        ({"x": {0: "n", 1: "n"}}, "dims called 'n' to have one size; got 3 and 2"),
        (({0: "n"}, None), "expected dynamic_shapes of 1 inputs; got 2"),
    ],
)
def test_bad_dynamic_shapes(shapes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jitgrad.export(lambda x: x * 2, torch.ones(3, 2), names=["x"], dynamic_shapes=shapes)


def test_native_refuses_sizes_without_a_largest(tmp_path: Any) -> None:
    exported = jitgrad.export(lambda x: x * 2, torch.ones(3), dynamic_shapes=({0: "n"},))
    with pytest.raises(RuntimeError, match="a largest size of each symbolic dim"):
        exported.native(tmp_path / "m.o")


# -- torch.onnx.export ----------------------------------------------------------------------------
class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(
        self, x: Any, scale: float, pair: Any, mask: Any = None, twice: bool = False
    ) -> Any:
        y = self.linear(x) * scale + pair[0] - pair[1]
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        return y * 2 if twice else y


def test_arguments_of_every_kind(tmp_path: Any) -> None:
    model, x = Mixed(), torch.randn(2, 4)
    pair, mask = (torch.randn(4), torch.randn(2, 4)), torch.rand(2, 4) > 0.5
    path = tmp_path / "m.onnx"
    program = torch.onnx.export(
        model, (x, 0.5, pair), path, kwargs={"mask": mask, "twice": True},
        input_names=["x", "p", "q", "mask", "linear.weight"], output_names=["y"],
        dynamic_axes={"x": {0: "batch size"}, "q": {0: "batch size"}, "mask": [0], "y": {0: "b"}},
        opset_version=17, do_constant_folding=True, verify=True,
    )  # fmt: skip
    wanted = model(x, 0.5, pair, mask=mask, twice=True)
    (found,) = run(path, x=x, p=pair[0], q=pair[1], mask=mask)
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    proto = onnx.load(path)
    assert [i.name for i in proto.graph.input] == ["x", "p", "q", "mask"]
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch_size"
    assert proto.graph.input[3].type.tensor_type.shape.dim[0].dim_param == "mask_dynamic_axes_1"
    assert {w.name for w in proto.graph.initializer} >= {"linear.weight", "linear.bias"}
    assert proto.opset_import[0].version == 17
    assert "opset 17" in repr(program) and program(x, *pair, mask).shape == (2, 4)


def test_names_of_arguments() -> None:
    """Parameters, and what leads to a tensor in them; in their order."""
    x, pair, mask = torch.randn(2, 4), (torch.randn(4), torch.randn(2, 4)), torch.rand(2, 4) > 0.5
    program = torch.onnx.export(
        Mixed(), (x,), kwargs={"mask": mask, "pair": pair, "scale": 0.5},
        dynamic_shapes={"x": {0: "b"}, "pair.1": {0: "b"}, "mask": {0: "b"}},
    )  # fmt: skip
    names = [i.name for i in program.model_proto.graph.input]
    assert names == ["x", "pair.0", "pair.1", "mask"]
    given = {"pair.0": pair[0], "pair.1": pair[1], "mask": mask}
    assert program(x, **given).equal(program(x, *pair, mask))
    with pytest.raises(TypeError, match="unexpected keyword argument 'masks'"):
        torch.onnx.export(Mixed(), (x, 0.5, pair), kwargs={"masks": mask})


def test_program_without_a_file(tmp_path: Any) -> None:
    program = torch.onnx.export(nn.Linear(3, 2), (torch.ones(1, 3),), dynamo=True)
    assert program.model_proto.opset_import[0].version == 18
    program.save(tmp_path / "m.onnx")
    assert_same(tmp_path / "m.onnx", program.exported, torch.randn(1, 3))
    with pytest.raises(ValueError, match="export_params"):
        torch.onnx.export(nn.Linear(3, 2), torch.ones(1, 3), export_params=False)


def test_is_in_onnx_export() -> None:
    class Asks(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if torch.onnx.is_in_onnx_export() else x + 2

    program = torch.onnx.export(Asks(), torch.zeros(2))
    assert program(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert Asks()(torch.zeros(2)).tolist() == [2.0, 2.0] and not torch.onnx.is_in_onnx_export()


# -- control flow ---------------------------------------------------------------------------------
def test_loops_and_branches(tmp_path: Any) -> None:
    """Graphs inside nodes, which read what is around them; one in another; one without rows."""
    weight = torch.randn(3, 3) * 0.3

    def f(x: Any, start: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            new = torch.tanh(carry @ weight + row)
            kept = torch.cond(new.sum() > 0, lambda a: a * 2, lambda a: a - weight[0], (new,))
            return kept, kept.sum()

        last, sums = torch.scan(step, start, x)
        last, _ = torch.scan(lambda carry, row: (carry + row, ()), last, x, reverse=True)
        count, grown = torch.while_loop(
            lambda n, a: n < 5, lambda n, a: (n + 1, a + weight[1]), (torch.tensor(0), last)
        )
        return last, sums, grown, count

    x, start = torch.randn(4, 3), torch.randn(3)
    exported = jitgrad.export(f, x, start)
    exported.onnx(tmp_path / "m.onnx")
    kinds = {n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node}
    assert {"Scan", "Loop"} <= kinds
    for seed in range(4):
        jitgrad.manual_seed(seed)
        assert_same(tmp_path / "m.onnx", f, torch.randn(4, 3), torch.randn(3))
    loaded = torch.onnx.load(tmp_path / "m.onnx")
    for found, wanted in zip(loaded(x, start), f(x, start), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_unsupported_ops_inside_of_a_loop_are_listed(tmp_path: Any) -> None:
    def f(x: Any) -> Any:
        return torch.scan(lambda c, r: (torch.lgamma(c) + r, c), torch.ones(3), x)[0]

    exported = jitgrad.export(f, torch.rand(4, 3))
    line = f.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError, match=rf"lgamma, at test_onnx_export.py:{line}: has no ONNX"):
        exported.onnx(tmp_path / "m.onnx")
