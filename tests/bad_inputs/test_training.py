"""Bad inputs of optimizers and data loaders."""

import pytest

import jitgrad as t
from jitgrad import nn, optim
from jitgrad.utils import data

P = nn.Parameter(t.ones(2))
ROWS = [
    (lambda: optim.SGD(P, lr=0.1), TypeError, ["[SGD]", "Tensor", "[tensor]"]),
    (lambda: optim.SGD([], lr=0.1), ValueError, ["[SGD]", "empty"]),
    (lambda: optim.SGD([1.0], lr=0.1), TypeError, ["[SGD]", "float"]),
    (lambda: optim.SGD([P * 2], lr=0.1), ValueError, ["[SGD]", "non-leaf", "(2,)"]),
    (lambda: optim.SGD([{"params": {P}}], lr=0.1), TypeError, ["[SGD]", "set"]),
    (lambda: optim.SGD([{"lr": 1.0}]), KeyError, ["'params'"]),
    (lambda: optim.SGD([P], lr=-0.1), ValueError, ["[SGD]", "learning rate", "-0.1"]),
    (lambda: optim.SGD([P], lr=float("nan")), ValueError, ["[SGD]", "nan"]),
    (lambda: optim.SGD([P], momentum=-1), ValueError, ["[SGD]", "momentum", "-1"]),
    (lambda: optim.SGD([P], nesterov=True), ValueError, ["Nesterov"]),
    (lambda: optim.Adam([P], betas=(0.9, 1.0)), ValueError, ["[Adam]", "index 1", "1.0"]),
    (lambda: optim.AdamW([P], weight_decay=-1), ValueError, ["[AdamW]", "weight_decay"]),
    (lambda: optim.Adam([P], eps=-1e-8), ValueError, ["[Adam]", "eps"]),
    (lambda: optim.Optimizer([P], {}).update(P, P, {}, {}), NotImplementedError, ["update"]),
    (
        lambda: optim.SGD([P]).load_state_dict({"state": {}, "param_groups": []}),
        ValueError,
        ["number of parameter groups"],
    ),
    (lambda: data.DataLoader([1], batch_size=0), ValueError, ["batch_size=0"]),
    (lambda: data.DataLoader([1], batch_size=1.5), ValueError, ["batch_size=1.5"]),
    (lambda: data.DataLoader([1], shuffle=True, sampler=[0]), ValueError, ["mutually exclusive"]),
    (lambda: data.default_collate([t.ones(2), t.ones(3)]), RuntimeError, ["stack", "2", "3"]),
    (lambda: data.default_collate([object()]), TypeError, ["[default_collate]", "object"]),
    (lambda: data.default_collate([[1, 2], [1]]), RuntimeError, ["equal size", "[1, 2]"]),
    (lambda: data.default_collate([{"a": 1}, {"b": 1}]), KeyError, ["'a'"]),
    (lambda: data.random_split(range(5), [2, 2]), ValueError, ["[random_split]", "5 samples"]),
    (lambda: data.random_split(range(5), [6, -1]), ValueError, ["at least 0"]),
    (lambda: data.TensorDataset(t.ones(2), t.ones(3)), AssertionError, ["[TensorDataset]", "(3,)"]),
    (lambda: data.ConcatDataset([[1], [2]])[2], IndexError, ["[ConcatDataset]", "2"]),
    (lambda: data.WeightedRandomSampler([1.0], 0), ValueError, ["num_samples=0"]),
]


@pytest.mark.parametrize("code,error,words", ROWS, ids=range(len(ROWS)))
def test_error(code, error, words):
    with pytest.raises(error) as caught:
        code()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_failed_load_leaves_the_optimizer_alone():
    o = optim.SGD([P], lr=0.3, momentum=0.9)
    P.grad = t.ones(2)
    o.step()
    before = o.state[P]["momentum_buffer"].clone()
    with pytest.raises(ValueError):
        o.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1], "lr": 1.0}]})
    assert (o.state[P]["momentum_buffer"] == before).all() and o.param_groups[0]["lr"] == 0.3
