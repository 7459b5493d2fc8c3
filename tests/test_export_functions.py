"""jitgrad.export: what is recorded, what is refused, and that the graph gives eager's numbers."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import jitgrad as torch
from jitgrad import nn
from jitgrad.compiler import link
from jitgrad.pytree import flatten
from jitgrad.runtime import load
from jitgrad.runtime.errors import CompileError


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                         nn.Dropout(0.5), nn.Linear(16, 3))  # fmt: skip


def test_module_in_eval_mode(tmp_path: Any) -> None:
    net = _net().eval()
    x = torch.randn(2, 1, 4, 4)
    exported = torch.export(net, x)
    assert exported.input_names == ("input",) and exported.output_names == ("output",)
    assert {n.split(".")[-1] for n in exported.state} >= {"weight", "bias", "running_mean"}
    assert not exported.graph.writes and not exported.graph.rebinds
    with torch.no_grad():
        want = net(x).numpy()
    np.testing.assert_allclose(exported(x).numpy(), want, rtol=1e-6, atol=1e-6)
    exported.native(tmp_path / "libnet.so")
    np.testing.assert_allclose(load(tmp_path / "libnet.so")(x.numpy()), want, rtol=1e-6, atol=1e-6)


def test_state_is_a_copy() -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    exported = torch.export(layer, x)
    before = exported(x).numpy().copy()
    with torch.no_grad():
        layer.weight.add_(1)
    np.testing.assert_array_equal(exported(x).numpy(), before)


def test_names_structure_views_and_unused_inputs() -> None:
    def f(a: Any, b: Any, unused: Any) -> Any:
        return {"sum": a + b, "both": (a.t(), a)}

    a, b = torch.randn(2, 3), torch.randn(3)
    exported = torch.export(f, a, b, torch.ones(1), output_names=["x", "y", "z"])
    assert exported.input_names == ("a", "b", "unused")
    out = exported(a, b, torch.zeros(1))
    np.testing.assert_array_equal(out["sum"].numpy(), (a + b).numpy())
    np.testing.assert_array_equal(out["both"][0].numpy(), a.t().numpy())
    np.testing.assert_array_equal(out["both"][1].numpy(), a.numpy())
    named = torch.export(f, a, b, torch.ones(1), names=["p", "q", "r"])
    assert [i.name for i in named.graph.inputs] == ["p", "q", "r"]


def test_inputs_are_checked() -> None:
    exported = torch.export(lambda x: x * 2, torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"1 inputs \(x: float32\[2, 3\]\); got 0: missing x"):
        exported()
    with pytest.raises(TypeError, match=r"got 2: too many by int64\[1\]"):
        exported(torch.ones(2, 3), torch.tensor([1]))
    with pytest.raises(ValueError, match=r"input 'x' to be a Tensor float32\[2, 3\]"):
        exported(torch.ones(3, 2))
    with pytest.raises(ValueError, match="float32"):
        exported(torch.ones(2, 3, dtype=torch.float64))


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.seen = self.inner.seen + 1
        return x * self.inner.seen


def test_what_is_refused() -> None:
    x = torch.randn(2, 1, 4, 4)
    net = _net()
    before = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    torch.manual_seed(5)
    with pytest.raises(CompileError, match="cannot export Sequential"):
        torch.export(net, x)  # batch statistics are written
    for k, v in net.state_dict().items():
        np.testing.assert_array_equal(v.numpy(), before[k])
    drawn = torch.rand(3).numpy()
    torch.manual_seed(5)
    np.testing.assert_array_equal(torch.rand(3).numpy(), drawn)
    with pytest.raises(CompileError) as caught:
        torch.export(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()), x[:, 0, 0])
    for word in ("1.running_mean", "1.running_var", "1.num_batches_tracked", "random", ".eval()",
                 f"at {__file__}:"):  # fmt: skip
        assert word in str(caught.value)
    with pytest.raises(CompileError, match=r"changes inner\.seen.*return the new values"):
        torch.export(_Counting().eval(), x)
    with pytest.raises(CompileError, match=r"draws random numbers|cannot export"):
        torch.export(nn.Dropout(0.5), x)
    with pytest.raises(CompileError, match="changes its input t "):
        torch.export(lambda t: t.add_(1), x)
    with pytest.raises(CompileError, match=r"tensors' values in Python \(bool of bool\[\] at"):
        torch.export(lambda t: t if t.sum() > 0 else -t, x)
    with pytest.raises(CompileError, match=r"cannot export .* value in Python"):
        torch.export(lambda t: torch.linspace(t.item(), 1.0, 5), torch.tensor(0.5))
    with pytest.raises(TypeError, match="example inputs to be Tensors, or .*; input 0 is ndarray"):
        torch.export(_net().eval(), np.ones((2, 1, 4, 4), np.float32))
    with pytest.raises(TypeError, match=r"1 is int at 'cache\.0\.1'; close over other values"):
        torch.export(lambda t, cache: t + cache[0][0], x, [(x, 3)])
    with pytest.raises(TypeError, match="a function or a Module; got int"):
        torch.export(3)
    with pytest.raises(ValueError, match="different names"):
        torch.export(lambda a, b: a + b, x, x, names=["a", "a"])


class _NoLoss(nn.Module):
    def forward(self, x: Any) -> Any:
        return {"loss": None, "logits": x * 2}


@pytest.mark.parametrize(("function", "reason"), [
    (lambda t: (t, 3), "it returns 3, which is no tensor; leave it out"),
    (lambda t: (t, "s"), "it returns 's', which is no tensor; leave it out"),
    (lambda t: (t, t.sum().item()), "it returns a Python number, which is no tensor"),
    (lambda t: (t, t.shape[0]), "it returns .*, which is no tensor; leave it out"),
    (lambda t: None, "it returns None, which is no tensor; return a tensor"),
    (lambda t: {"a": {"b": t, "c": 2.5}}, r"as 'a\.c' it returns 2\.5, which is no tensor"),
    (_NoLoss(), "as 'loss' it returns None, which is no tensor; leave it out"),
])  # fmt: skip
def test_results_that_are_no_tensors_are_named(function: Any, reason: str) -> None:
    of = function.forward if isinstance(function, nn.Module) else function
    line = of.__code__.co_firstlineno
    with pytest.raises(CompileError, match=rf"cannot export \w+ \({__file__}:{line}\): {reason}"):
        torch.export(function, torch.ones(2, 3))


def test_advice_fits_what_is_changed() -> None:
    """Where a Module in training mode writes to its input, eval() is no way out."""

    class Writes(nn.Module):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            x.add_(1)
            return self.layer(x)

    x = torch.ones(2, 3)
    with pytest.raises(CompileError, match=r"changes its input x .*only; return the new values"):
        torch.export(Writes(nn.Linear(3, 3)), x)
    with pytest.raises(CompileError, match=r"call \.eval\(\) first; return the new values"):
        torch.export(Writes(nn.BatchNorm1d(3)), x)
    with pytest.raises(CompileError, match=r"call \.eval\(\) first$"):
        torch.export(nn.BatchNorm1d(3), x)


def test_results_that_are_views_have_lines() -> None:
    def f(x: Any, w: Any) -> Any:
        y = x * 2
        return x.t(), y.unfold(0, 2, 1), w[1:].permute(1, 0)

    for options in ({}, {"dynamic_shapes": {"x": {0: "n"}}}):
        graph = torch.export(f, torch.ones(4, 3), torch.ones(3, 2), **options).graph
        assert [n.op.name for n in graph.nodes if not n.line] == []


Parts = namedtuple("Parts", ["loss", "hidden"])


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: {"loss": x.sum(), "out": x * 2}, ("loss", "out")),
        (lambda x: Parts(x.sum(), x * 2), ("loss", "hidden")),
        (lambda x: {"a": {"b": x + 1}, "c": (x + 2, x + 3)}, ("a.b", "c.0", "c.1")),
        (lambda x: {"a": x + 1}, ("a",)),
        (lambda x: (x + 1, {"a": x + 2}), ("output0", "output1")),
        (lambda x: {"a.b": x + 1, "a": {"b": x + 2}}, ("output0", "output1")),
        (lambda x: {'say "a"': x + 1}, ("output",)),
        (lambda x: {1: x + 1}, ("output",)),
        (lambda x: [x + 1], ("output",)),
    ],
)
def test_results_are_called_by_their_keys(function: Any, names: tuple[str, ...]) -> None:
    """Where these are words, and different; `output_names` says otherwise."""
    x = torch.ones(2)
    assert torch.export(function, x).output_names == names
    other = [f"y{k}" for k in range(len(names))]
    assert torch.export(function, x, output_names=other).output_names == tuple(other)


def test_a_library_knows_the_keys(tmp_path: Any) -> None:
    exported = torch.export(lambda x: {"loss": x.sum(), "out": {"y": x * 2}}, torch.ones(2))
    exported.native(tmp_path / "libkeys.so")
    text = repr(load(tmp_path / "libkeys.so"))
    assert "loss: float32[]" in text and "out.y: float32[2]" in text


def test_the_only_out(tmp_path: Any) -> None:
    """Arrays with memory of their own are seen at once to fit; others are looked at."""
    torch.export(lambda x: x * 2 + 1, torch.ones(3, 4), names=["x"]).native(tmp_path / "libone.so")
    model = load(tmp_path / "libone.so")
    whole = np.arange(24, dtype=np.float32)
    x, own, view = whole[:12].reshape(3, 4), np.zeros((3, 4), np.float32), whole[12:].reshape(3, 4)
    want = x * 2 + 1
    turned = np.asfortranarray(x)
    for given, out in ((x, own), (x.copy(), own), (x, view), (x, [own]), (turned, own)):
        out_array = out[0] if isinstance(out, list) else out
        out_array[...] = 0
        assert model(given, out=out) is out_array
        np.testing.assert_array_equal(out_array, want)
    alone, frozen = x.copy(), own.copy()
    frozen.flags.writeable = False
    cases = [
        (alone, alone, ValueError, "overlap"),
        (x, whole[8:20].reshape(3, 4), ValueError, "overlap"),
        (x, x, ValueError, "overlap"),
        (x, frozen, ValueError, "writable"),
        (x, np.zeros((4, 3), np.float32).T, ValueError, "dense row-major"),
        (x, np.zeros((3, 4)), TypeError, r"got float64\[3, 4\]"),
        (x, np.zeros(12, np.float32), ValueError, r"got float32\[12\]"),
        (x, own.view(np.matrix), None, ""),
        (x, np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4), ValueError, "aligned"),
    ]  # fmt: skip
    for given, out, error, text in cases:
        if error is None:
            np.testing.assert_array_equal(model(given, out=out), want)
            continue
        with pytest.raises(error, match=text):
            model(given, out=out)


# -- gradients inside ----------------------------------------------------------------------------
class Forces(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.energy, self.how = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), how

    def forward(self, x):
        return self.how(self.energy, x)


def by_grad(energy, x):
    at = x.detach().requires_grad_()
    return -torch.autograd.grad(energy(at).sum(), at)[0]


def by_grad_at_the_input(energy, x):
    x.requires_grad_(True)
    e = energy(x)
    return e, torch.autograd.grad(e.sum(), x)[0]


def by_backward(energy, x):
    at = x.clone().requires_grad_()
    (energy(at) ** 2).sum().backward()
    return at.grad


def twice(energy, x):
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(at).sum(), at, create_graph=True)
    return torch.autograd.grad((slope**2).sum(), at)[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("how", [by_grad, by_grad_at_the_input, by_backward, twice])
def test_functions_that_take_gradients_inside(how, module, dynamic, tmp_path):
    torch.manual_seed(0)
    model = Forces(how).eval()
    function = model if module else lambda x: how(model.energy, x)
    sizes = ({0: torch.Dim("n", max=9)},) if dynamic else None
    if how is by_backward:
        model.requires_grad_(False)  # else it leaves .grads behind, which is refused or kept
    exported = torch.export(function, torch.rand(4, 3), dynamic_shapes=sizes)
    assert not any(p.grad is not None for p in model.parameters())
    if link.find_linker() is not None:
        exported.native(tmp_path / "libforces.so")
    for n in (4, 6) if dynamic else (4,):
        x = torch.rand(n, 3)
        want = [y.detach().numpy() for y in flatten(function(x.clone()))[0]]
        got = [y.numpy() for y in flatten(exported(x))[0]]
        for y, z in zip(got, want, strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6)
        if link.find_linker() is not None:
            again = load(tmp_path / "libforces.so")(x.numpy())
            for y, z in zip(flatten(again)[0], want, strict=True):
                np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6)


def test_what_needs_no_gradient_is_said_as_in_eager_code():
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad"):
        torch.export(lambda x: torch.autograd.grad(x.sum(), x)[0], torch.rand(3))


class Wraps(nn.Module):
    def __init__(self, key):
        super().__init__()
        self.parts = nn.ModuleDict({key: nn.Linear(3, 3)})

    def forward(self, x):
        return next(iter(self.parts.values()))(x)


@pytest.mark.parametrize(("options", "kind", "text"), [
    ({"names": "x"}, TypeError, "expected names to be a list of strings; got 'x'"),
    ({"names": 3}, TypeError, "expected names to be a list of strings; got 3"),
    ({"names": [3]}, TypeError, "expected names to be strings; got 3"),
    ({"names": [""]}, ValueError, "expected names of characters that print; got ''"),
    ({"names": ["a\0b"]}, ValueError, r"names of characters that print; got 'a\\x00b'"),
    ({"names": ["a\nb"]}, ValueError, "expected names of characters that print"),
    ({"output_names": "y"}, TypeError, "expected output_names to be a list of strings; got 'y'"),
    ({"output_names": [None]}, TypeError, "expected output_names to be strings; got None"),
    ({"output_names": ["y\x7f"]}, ValueError, "expected output_names of characters that print"),
    ({"output_names": ["y", "z"]}, ValueError, "expected 1 different output_names"),
])  # fmt: skip
def test_names_that_will_not_do(options, kind, text):
    with pytest.raises(kind, match=text):
        torch.export(lambda x: x * 2, torch.ones(3), **options)


def test_names_of_trees_and_state_that_will_not_do():
    with pytest.raises(ValueError, match="expected names of characters that print"):
        torch.export(lambda d: d["a\0"] * 2, {"a\0": torch.ones(3)})
    exported = torch.export(lambda x: {"a\0": x * 2}, torch.ones(3))
    assert exported.output_names == ("output",)
    with pytest.raises(ValueError, match="expected names of state of characters that print"):
        torch.export(Wraps("a\0").eval(), torch.ones(2, 3))


def test_names_of_a_library(tmp_path):
    exported = torch.export(lambda x: x * 2, torch.ones(3))
    for name in (3, "", "a b", b"net"):
        with pytest.raises(ValueError, match="expected name to be a C identifier; got"):
            exported.native(tmp_path / "libm.so", name=name)


def test_inputs_called_as_parameters_of_the_call(tmp_path):
    """`self` and `out` are inputs, by name too."""

    def f(self, out):
        return self - out

    x, y = torch.ones(3), torch.rand(3)
    exported = torch.export(f, x, y)
    want = (x - y).numpy()
    np.testing.assert_array_equal(exported(self=x, out=y).numpy(), want)
    exported.native(tmp_path / "libnamed.so")
    loaded = load(tmp_path / "libnamed.so")
    np.testing.assert_array_equal(loaded(self=x.numpy(), out=y.numpy()), want)
    np.testing.assert_array_equal(loaded(x.numpy(), out=y.numpy()), want)
    np.testing.assert_array_equal(loaded(x.numpy(), y.numpy()), want)
