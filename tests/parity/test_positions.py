"""Positions below 0 and beyond a dim, in functions that take an index: values and error types are
PyTorch's."""

from typing import Any

import pytest
from parity.compare import torch

import jitgrad

FUNCTIONS = {
    "index_fill": lambda f, x, i: x.index_fill(1, i, 9.0),
    "index_fill of a tensor": lambda f, x, i: x.index_fill(1, i, f.tensor(9.0)),
    "index_fill_": lambda f, x, i: x.clone().index_fill_(1, i, 9.0),
    "take_along_dim": lambda f, x, i: f.take_along_dim(x, i.reshape(1, -1), 1),
    "take_along_dim flat": lambda f, x, i: f.take_along_dim(x, i),
    "gather": lambda f, x, i: x.gather(1, i.reshape(1, -1)),
    "scatter": lambda f, x, i: x.scatter(1, i.reshape(1, -1), 1.0),
    "scatter_add": lambda f, x, i: x.scatter_add(1, i.reshape(1, -1), x[:, :1]),
    "index_select": lambda f, x, i: x[0].index_select(0, i),
    "index_add": lambda f, x, i: x[0].index_add(0, i, x[0, :1]),
    "index_copy": lambda f, x, i: x.index_copy(1, i, x[:, :1]),
    "index_reduce": lambda f, x, i: x.index_reduce(1, i, x[:, :1], "prod"),
    "index_put": lambda f, x, i: x.index_put((f.tensor([0]), i), f.tensor(1.0)),
    "take": lambda f, x, i: x.take(i),
    "put": lambda f, x, i: x.put(i, f.ones(1)),
    "getitem": lambda f, x, i: x[:, i],
    "embedding": lambda f, x, i: f.nn.functional.embedding(i, x),
    "embedding_bag": lambda f, x, i: f.nn.functional.embedding_bag(i.reshape(1, 1), x),
    "max_unpool1d": lambda f, x, i: f.nn.functional.max_unpool1d(
        x[:1, None, :1], i.reshape(1, 1, 1), 2
    ),
}


def outcome(framework: Any, name: str, position: int) -> Any:
    x = framework.arange(6.0).reshape(2, 3)
    try:
        return FUNCTIONS[name](framework, x, framework.tensor([position])).tolist()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_positions_are_as_pytorch_s(name):
    beyond = name == "take_along_dim"  # PyTorch's wraps, ours refuses
    for position in (0, 2, -1, -3, *(() if beyond else (6, -4, -7))):
        mine, theirs = (outcome(f, name, position) for f in (jitgrad, torch))
        assert mine == theirs, position


def test_take_along_dim_refuses_what_it_cannot_take():
    x = jitgrad.arange(6.0).reshape(2, 3)
    for index, dim, error in (
        (jitgrad.tensor([[3]]), 1, RuntimeError), (jitgrad.tensor([[-4]]), 1, RuntimeError),
        (jitgrad.tensor([0]), 1, RuntimeError), (jitgrad.tensor([[0.0]]), 1, RuntimeError),
        (jitgrad.tensor([-1]), None, RuntimeError),
    ):  # fmt: skip
        with pytest.raises(error, match="take_along_dim"):
            jitgrad.take_along_dim(x, index, dim)
    with pytest.raises(IndexError):
        torch.take_along_dim(torch.tensor(1.0), torch.tensor(0), 0)
    with pytest.raises(IndexError):
        jitgrad.take_along_dim(jitgrad.tensor(1.0), jitgrad.tensor(0), 0)


def test_compiled_positions_count_from_the_end_of_any_size():
    @jitgrad.compile(dynamic=True, fullgraph=True)
    def f(x, index):
        return jitgrad.take_along_dim(x, index, 1), x.index_fill(1, index[0], 9.0)

    for n in (3, 4, 5, 7):
        x = jitgrad.arange(2.0 * n).reshape(2, n)
        taken, filled = f(x, jitgrad.tensor([[-1, 0], [1, -n]]))
        assert taken.tolist() == [[n - 1, 0], [n + 1, n]]
        assert (filled == 9).sum(1).tolist()[0] == 2 and filled[1, -1].item() == 9
    with pytest.raises(RuntimeError, match="take_along_dim"):
        f(x, jitgrad.tensor([[0, 0], [n, 0]]))
    assert f.stats.traces == 1
