"""Gradients, tangents and state that user code gives on another device than that of the tensor."""

from __future__ import annotations

from typing import Any

import pytest

import jitgrad as torch
from jitgrad import nn
from jitgrad.autograd import forward_ad

HERE = pytest.mark.parametrize("here, there", [("cuda", "cpu"), ("cpu", "cuda")])
EXPECTED = r"expected device {} but got {}"


def _names(here: str, there: str) -> tuple[str, str]:
    return tuple("cuda:0" if d == "cuda" else d for d in (here, there))  # type: ignore[return-value]


@HERE
@pytest.mark.parametrize(
    "give",
    [
        lambda p, g: torch.autograd.grad(p * 2, p, g), lambda p, g: (p * 2).backward(g),
        lambda p, g: torch.autograd.backward([p * 2], [g]), lambda p, g: p.clone().backward(g),
        lambda p, g: torch.autograd.functional.vjp(lambda x: x * 2, p.detach(), g),
        lambda p, g: torch.func.vjp(lambda x: x * 2, p.detach())[1](g),
        lambda p, g: torch.func.jvp(lambda x: x * 2, (p.detach(),), (g,)),
    ],
)  # fmt: skip
def test_cotangents_and_tangents_are_where_the_tensor_is(give: Any, here: str, there: str) -> None:
    p = torch.ones(3, device=here, requires_grad=True)
    with pytest.raises(RuntimeError, match=EXPECTED.format(*_names(here, there))):
        give(p, torch.ones(3, device=there))
    assert p.grad is None
    give(p, torch.ones(3, device=here))


@HERE
def test_a_gradient_without_dims_is_moved(here: str, there: str) -> None:
    p = torch.ones(3, device=here, requires_grad=True)
    p.sum().backward(torch.tensor(2.0, device=there))
    assert p.grad is not None and p.grad.device == p.device and p.grad.tolist() == [2, 2, 2]


@HERE
def test_dual_numbers(here: str, there: str) -> None:
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="expected device"):
        forward_ad.make_dual(torch.ones(3, device=here), torch.ones(3, device=there))


@HERE
def test_an_assigned_gradient(here: str, there: str) -> None:
    p = torch.ones(3, device=here, requires_grad=True)
    with pytest.raises(RuntimeError, match="assigned grad has data located on a different device"):
        p.grad = torch.ones(3, device=there)
    p.grad = torch.ones(3, device=here)


@HERE
def test_hooks(here: str, there: str) -> None:
    def of_module(p: Any, hook: Any) -> Any:
        m = nn.Identity()
        m.register_full_backward_hook(lambda m, grads, outs: (hook(grads[0]),))
        return m(p * 2)

    def of_result(p: Any, hook: Any) -> Any:
        y = p * 2
        y.register_hook(hook)
        return y

    def of_node(p: Any, hook: Any) -> Any:
        y = p * 2
        y.grad_fn.register_prehook(lambda grads: (hook(grads[0]),))
        return y

    def of_leaf(p: Any, hook: Any) -> Any:
        p.register_hook(hook)
        return p * 2

    for place in (of_module, of_result, of_node, of_leaf):
        p = torch.ones(3, device=here, requires_grad=True)
        with pytest.raises(RuntimeError, match="has changed the type of value"):
            place(p, lambda g: g.to(there)).sum().backward()
        assert p.grad is None


@HERE
def test_functions(here: str, there: str) -> None:
    class Away(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.to(there)

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return t.to(there)

    p = torch.ones(3, device=here, requires_grad=True)
    text = "AwayBackward returned an invalid gradient at index 0 - " + EXPECTED
    for x in (p, p * 1):
        with pytest.raises(RuntimeError, match=text.format(*_names(here, there))):
            Away.apply(x).sum().backward()
    with pytest.raises(RuntimeError, match="invalid tangent - expected device"):
        torch.func.jvp(Away.apply, (p.detach(),), (p.detach(),))


@HERE
def test_what_a_hook_on_saved_tensors_gives_back(here: str, there: str) -> None:
    p = torch.ones(3, device=here, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.to(there)):
        y = p * p
    with pytest.raises(RuntimeError, match="expected the unpack hook to give a tensor of type"):
        y.sum().backward()


# -- state that is loaded --------------------------------------------------------------------------
OPTIMIZERS = [
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "ASGD", "RMSprop",
    "Rprop", "Adafactor", "LBFGS",
]  # fmt: skip


def _trained(name: str, device: str, state: Any = None, steps: int = 1) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Linear(2, 2).to(device)
    options = {"momentum": 0.9} if name == "SGD" else {"max_iter": 2} if name == "LBFGS" else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    if state is not None:
        optimizer.load_state_dict(state)
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]], device=device)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return model, optimizer


def _tensors(state: Any) -> list[Any]:
    if isinstance(state, torch.Tensor):
        return [state]
    many = state.values() if isinstance(state, dict) else state
    return [t for x in many for t in _tensors(x)] if isinstance(state, (dict, list, tuple)) else []


@HERE
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loaded_state_goes_to_the_parameter(name: str, here: str, there: str) -> None:
    state = _trained(name, there)[1].state_dict()
    model, optimizer = _trained(name, here, state)
    found = _tensors(dict(optimizer.state))
    assert found and all(t.device == model.weight.device for t in found)
    want, _ = _trained(name, there, state)
    torch.testing.assert_close(model.weight.cpu(), want.weight.cpu(), rtol=1e-5, atol=1e-6)


@HERE
def test_modules_load_from_another_device(here: str, there: str) -> None:
    source, target = nn.BatchNorm1d(3).to(there), nn.BatchNorm1d(3).to(here)
    source(torch.randn(4, 3, device=there))
    target.load_state_dict(source.state_dict())
    for name, value in target.state_dict().items():
        assert value.device.type == here and torch.equal(
            value.cpu(), source.state_dict()[name].cpu()
        )
    source.weight.grad = torch.ones(3, device=there)
    source.to(here)
    assert {t.device.type for t in (source.weight, source.weight.grad, source.running_mean)} == {
        here
    }
