"""Copies of what @jit made: each runs compiled code of its own, on its own state."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.jit import JitFunction
from jitgrad.optim import swa_utils


def pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, pickled]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.drop(self.line(x))


class Holder:
    """Keeps jitted functions of its own methods."""

    def __init__(self) -> None:
        self.weight = jg.ones(2)
        self.f = jg.jit(self.run, fallback="error")
        self.run_again = jg.jit(self.run_again, fallback="error")  # type: ignore[method-assign]
        self.of_class = self.decorated

    def run(self, x: Any) -> Any:
        return x * self.weight

    def run_again(self, x: Any) -> Any:
        return x * self.weight + 1

    @jg.jit(fallback="error")
    def decorated(self, x: Any) -> Any:
        return x * self.weight + 2


class Bare(nn.Module):
    """A Module whose forward was replaced by a jitted one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(jg.ones(2))
        self.forward = jg.jit(self.forward, fallback="error")  # type: ignore[method-assign]

    def forward(self, x: Any) -> Any:
        return x * self.weight


@jg.jit(fallback="error")
def double(x: Any) -> Any:
    return x * 2


def _triple(x: Any) -> Any:
    return x * 3


triple = jg.jit(_triple, fallback="error", name="times three")


def three_calls(f: Any, x: Any) -> Any:
    return [f(x) for _ in range(3)][-1]


@pytest.mark.parametrize("duplicate", COPIES)
@pytest.mark.parametrize("used", [False, True])
def test_a_copied_module_runs_on_its_own_parameters(duplicate: Any, used: bool) -> None:
    m = jg.jit(nn.Linear(2, 2), fallback="error")
    x = jg.ones(1, 2)
    if used:
        three_calls(m, x)
    before = m(x).detach().clone()
    g = duplicate(m)
    assert type(g).__name__ == "Linear" and isinstance(g, nn.Linear)
    assert g.weight is not m.weight and g.weight.equal(m.weight)
    assert three_calls(g, x).equal(before)
    with jg.no_grad():
        for p in g.parameters():
            p.fill_(1.0)
    assert three_calls(g, x).tolist() == [[3.0, 3.0]]
    assert three_calls(m, x).equal(before)
    for _ in range(2):
        g(x).sum().backward()
    assert m.weight.grad is None and g.weight.grad.tolist() == [[2.0, 2.0]] * 2
    assert g.stats.hits > 0 and g.jitted is not m.jitted


@pytest.mark.parametrize("duplicate", [*COPIES, copy.copy])
def test_modes_of_a_copy_are_its_own(duplicate: Any) -> None:
    m = jg.jit(Net(), fallback="error")
    x = jg.ones(50, 2)
    three_calls(m, x)
    g = duplicate(m)
    g.training = False  # as eval(), but copy.copy shares the children
    if duplicate is not copy.copy:
        g.eval()
        assert not (three_calls(g, x) == 0).any() and m.drop.training
    assert m.training and not g.training
    assert (three_calls(m, x) == 0).any()


def test_copies_keep_the_options() -> None:
    m = jg.jit(nn.Linear(2, 2), fallback="silent", pure=True, name="mine")
    for g in (copy.deepcopy(m), pickled(m), copy.copy(m)):
        assert g.jitted._options() == m.jitted._options()
        assert g.jitted.specialisations == []
    again = pickled(copy.deepcopy(jg.jit(m, fallback="error")))
    assert again.jitted._options()["fallback"] == "error"
    assert three_calls(again, jg.ones(1, 2)).equal(m(jg.ones(1, 2)))


@pytest.mark.parametrize("duplicate", COPIES)
def test_copies_inside_larger_objects_share_what_was_shared(duplicate: Any) -> None:
    plain = nn.Linear(2, 2)
    fast = jg.jit(plain, fallback="error")
    both = duplicate(nn.ModuleList([plain, fast, nn.Sequential(fast)]))
    assert both[0].weight is both[1].weight and both[1] is both[2][0]
    both[0].weight.data.fill_(2.0)
    both[0].bias.data.fill_(0.0)
    assert three_calls(both[2], jg.ones(1, 2)).tolist() == [[4.0, 4.0]]


def test_averaged_models_and_layers_that_are_cloned() -> None:
    m = jg.jit(nn.Linear(2, 2, bias=False), fallback="error")
    x = jg.ones(1, 2)
    m.weight.data.fill_(1.0)
    three_calls(m, x)
    mean = swa_utils.AveragedModel(m)
    mean.update_parameters(m)
    m.weight.data.fill_(3.0)
    mean.update_parameters(m)
    assert three_calls(mean, x).tolist() == [[4.0, 4.0]]
    assert three_calls(m, x).tolist() == [[6.0, 6.0]]

    layer = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=True)
    compiled = nn.TransformerEncoder(jg.jit(layer), 2, enable_nested_tensor=False)
    eager = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with jg.no_grad():
        for p in compiled.layers[1].parameters():
            p.mul_(0.5)
    eager.load_state_dict(compiled.state_dict())
    z = jg.rand(2, 3, 4)
    assert jg.allclose(three_calls(compiled, z), eager(z), atol=1e-6)


def test_a_module_made_of_the_class_of_a_jitted_one_runs_on_its_own_state() -> None:
    m = jg.jit(nn.Linear(2, 2, bias=False))
    replica = type(m).__new__(type(m))
    replica.__dict__ = {**m.__dict__, "_parameters": {"weight": jg.ones(2, 2), "bias": None}}
    assert replica(jg.ones(1, 2)).tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize("duplicate", COPIES)
@pytest.mark.parametrize(("name", "added"), [("f", 0.0), ("run_again", 1.0), ("of_class", 2.0)])
def test_jitted_methods_follow_their_owner(duplicate: Any, name: str, added: float) -> None:
    old = Holder()
    x = jg.ones(2)
    three_calls(getattr(old, name), x)
    new = duplicate(old)
    new.weight.fill_(5.0)
    assert three_calls(getattr(new, name), x).tolist() == [5.0 + added] * 2
    assert three_calls(getattr(old, name), x).tolist() == [1.0 + added] * 2


@pytest.mark.parametrize("duplicate", COPIES)
def test_a_bound_function_by_itself_takes_its_owner_along(duplicate: Any) -> None:
    old = Holder()
    for name, added in (("f", 0.0), ("run_again", 1.0)):
        new = duplicate(getattr(old, name))
        assert isinstance(new, JitFunction) and new is not getattr(old, name)
        owner = new.__wrapped__.__self__
        owner.weight.fill_(5.0)
        assert three_calls(new, jg.ones(2)).tolist() == [5.0 + added] * 2
        assert old.weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("duplicate", COPIES)
def test_a_module_with_a_jitted_forward(duplicate: Any) -> None:
    old = Bare()
    new = duplicate(old)
    new.weight.data.fill_(4.0)
    assert three_calls(new, jg.ones(2)).tolist() == [4.0, 4.0]
    assert three_calls(old, jg.ones(2)).tolist() == [1.0, 1.0]


def test_functions_are_copied_and_pickled_as_functions_are() -> None:
    three_calls(double, jg.ones(2))
    assert copy.deepcopy(double) is double and pickled(double) is double
    assert pickled(Holder.decorated) is Holder.decorated
    assert copy.copy(double).__wrapped__ is double.__wrapped__
    assert copy.copy(double).specialisations == []
    again = pickled(triple)  # under another name than the function's
    assert again is not triple and again.name == "times three"
    assert three_calls(again, jg.ones(2)).tolist() == [3.0, 3.0]


def test_what_has_no_name_to_be_found_by_cannot_be_pickled() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="<lambda>"):
        pickle.dumps(jg.jit(lambda x: x))
