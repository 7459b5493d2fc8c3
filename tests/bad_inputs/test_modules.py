"""Bad inputs of Module, containers, initialisation."""

import pytest

import jitgrad as t
from jitgrad import nn


class Early(nn.Module):
    def __init__(self):
        self.layer = nn.ReLU()


LINEAR = {"weight": t.ones(2, 2), "bias": t.ones(2)}
ROWS = [
    (Early, AttributeError, ["[Early]", "'layer'", "super().__init__()"]),
    (lambda: nn.Module()(t.ones(1)), NotImplementedError, ["[Module]", "forward"]),
    (lambda: nn.ReLU().weight, AttributeError, ["'ReLU'", "'weight'"]),
    (lambda: setattr(nn.Linear(1, 1), "weight", t.ones(1, 1)), TypeError, ["Tensor", "'weight'"]),
    (lambda: setattr(nn.Sequential(nn.ReLU()), "0", 3), TypeError, ["int", "'0'"]),
    (lambda: setattr(nn.BatchNorm1d(1), "running_mean", 3), TypeError, ["int", "'running_mean'"]),
    (lambda: nn.ReLU().register_buffer("a.b", None), KeyError, ["a.b"]),
    (lambda: nn.ReLU().register_buffer("", None), KeyError, ["empty"]),
    (lambda: nn.ReLU().register_buffer("forward", None), KeyError, ["'forward'", "exists"]),
    (lambda: nn.ReLU().register_buffer("x", 3), TypeError, ["[register_buffer]", "int"]),
    (lambda: nn.ReLU().register_parameter("x", t.ones(1)), TypeError, ["Parameter"]),
    (lambda: nn.ReLU().add_module("x", t.ones(1)), TypeError, ["[add_module]", "Tensor"]),
    (lambda: nn.ReLU().train("no"), ValueError, ["[train]", "'no'"]),
    (lambda: nn.Linear(2, 2).get_submodule("x.y"), AttributeError, ["Linear", "`x`"]),
    (lambda: nn.Linear(2, 2).get_parameter("x"), AttributeError, ["'Linear'", "'x'"]),
    (lambda: nn.Linear(2, 2).get_buffer("weight"), AttributeError, ["`weight`", "not a buffer"]),
    (lambda: nn.Linear(2, 2).load_state_dict({}), RuntimeError, ["Missing", '"weight", "bias"']),
    (
        lambda: nn.Linear(2, 2).load_state_dict({**LINEAR, "more": t.ones(1)}),
        RuntimeError,
        ["Unexpected", '"more"'],
    ),
    (
        lambda: nn.Linear(2, 2).load_state_dict({**LINEAR, "bias": t.ones(3)}),
        RuntimeError,
        ["size mismatch for bias", "[3]", "[2]"],
    ),
    (lambda: nn.Linear(2, 2).load_state_dict([1]), TypeError, ["dict-like", "list"]),
    (lambda: nn.Sequential(nn.ReLU(), 3), TypeError, ["int"]),
    (lambda: nn.Sequential(nn.ReLU())[1], IndexError, ["[Sequential]", "1"]),
    (lambda: nn.ModuleList([nn.ReLU()]).insert(0, 3), AssertionError, ["[ModuleList]", "int"]),
    (lambda: nn.ModuleDict({"a.b": nn.ReLU()}), KeyError, ["a.b"]),
    (lambda: nn.ModuleDict()["x"], KeyError, ["x"]),
    (lambda: nn.init.kaiming_uniform_(t.ones(3)), ValueError, ["2 dims", "(3,)"]),
    (lambda: nn.init.kaiming_uniform_(t.ones(3, 3), mode="in"), ValueError, ["'in'"]),
    (lambda: nn.init.calculate_gain("sine"), ValueError, ["'sine'"]),
    (lambda: nn.init.trunc_normal_(t.ones(2), 0, 1, 9, 10), ValueError, ["[trunc_normal_]", "1 %"]),
]


@pytest.mark.parametrize("code,error,words", ROWS, ids=range(len(ROWS)))
def test_error(code, error, words):
    with pytest.raises(error) as caught:
        code()
    for word in words:
        assert word in str(caught.value), str(caught.value)
