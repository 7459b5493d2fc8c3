"""cuda.CUDAGraph and cuda.graph: work is captured, and replayed on the memory that it had."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from other_driver import driven_by

import jitgrad as torch
from jitgrad.runtime.cuda.simulator import SimulatedDriver
from jitgrad.runtime.knobs import knobs

pytestmark = pytest.mark.skipif(knobs.cuda != "sim", reason="counts what the driver was given")


@pytest.fixture(autouse=True)
def driver() -> Iterator[SimulatedDriver]:
    with driven_by(SimulatedDriver(1 << 28)) as made:
        yield made


def captured(f: Any, *args: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of f(*args), which has run once before, and the tensors that it writes."""
    f(*args)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        assert torch.cuda.is_current_stream_capturing()
        out = f(*args)
    assert not torch.cuda.is_current_stream_capturing()
    return g, out


def test_eager_work_is_replayed_on_what_its_inputs_are_now(driver: SimulatedDriver) -> None:
    x = torch.arange(4.0, device="cuda")
    g, y = captured(lambda x: (x * 2 + 1).relu(), x)
    launches = driver.launches
    for k in (3.0, -5.0):
        x.fill_(k)
        g.replay()
        assert y.tolist() == [max(2 * k + 1, 0)] * 4
    assert driver.launches == launches + 4  # two graphs, two fills


def test_compiled_calls_and_what_they_write() -> None:
    w, total = torch.ones(3, 3, device="cuda"), torch.zeros(3, device="cuda")

    @torch.jit(fallback="error", cuda_graphs=True)
    def step(x: Any) -> Any:
        y = torch.softmax(x @ w, -1)
        total.add_(y.sum(0))
        return y

    x = torch.ones(2, 3, device="cuda")
    step(x)
    g, y = captured(step, x)
    total.zero_()
    for _ in range(4):
        g.replay()
    torch.testing.assert_close(total.cpu(), torch.full((3,), 8 / 3))
    x.copy_(torch.tensor([[0.0, 0, 0], [1, 2, 3]]))
    w.copy_(torch.eye(3))
    g.replay()
    torch.testing.assert_close(y.cpu(), torch.softmax(x.cpu(), -1))


def test_memory_of_a_graph_is_nobody_elses() -> None:
    x = torch.ones(1000, device="cuda")
    g, y = captured(lambda x: ((x * 2) * 3) * 4, x)
    place = y.data_ptr()
    del y
    gc.collect()
    kept = [torch.full((1000,), 5.0, device="cuda") for _ in range(20)]
    torch.cuda.empty_cache()
    assert place not in [t.data_ptr() for t in kept]
    g.replay()
    assert all(t.tolist() == [5.0] * 1000 for t in kept)
    before = torch.cuda.memory_reserved()
    del kept
    torch.cuda.empty_cache()
    g.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        g.replay()


def test_graphs_that_share_a_pool() -> None:
    pool = torch.cuda.graph_pool_handle()
    x = torch.ones(4, device="cuda")
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    made = []
    for g in graphs:
        with torch.cuda.graph(g, pool=pool):
            made.append(x * 2)
            x = made[-1]
    assert graphs[0].pool() == graphs[1].pool() == pool
    for g in graphs:
        g.replay()
    assert made[1].tolist() == [4.0] * 4
    graphs[0].reset()
    graphs[1].replay()
    assert made[1].tolist() == [4.0] * 4


def test_a_bad_index_is_found_at_the_replay() -> None:
    table, i = torch.arange(5.0, device="cuda"), torch.tensor([1, 2], device="cuda")
    g, y = captured(lambda i: table[i] * 2, i)
    g.replay()
    assert y.tolist() == [2, 4]
    i.copy_(torch.tensor([1, 9]))
    with pytest.raises(IndexError, match="out of"):
        g.replay()
    i.copy_(torch.tensor([4, 0]))
    g.replay()
    assert y.tolist() == [8, 0]


def test_pinned_memory_is_read_at_each_replay() -> None:
    host = torch.ones(3).pin_memory()
    g, y = captured(lambda h: h.to("cuda", non_blocking=True) + 1, host)
    host.fill_(6)
    g.replay()
    assert y.tolist() == [7, 7, 7]


def _gradient(x: Any) -> Any:
    w = x.detach().requires_grad_()
    return torch.autograd.grad((w * w).sum() + w.sum(), w)[0]


def _with_zero_grad(x: Any) -> Any:
    w = torch.nn.Parameter(x)
    w.grad = x * 2
    torch.optim.SGD([w], 0.1).zero_grad(set_to_none=False)
    return w.grad + w.detach()


def _with_numbers_written(x: Any) -> Any:
    y, z = x * 3, x * 5
    z.zero_()
    y[0] = 5
    y[1:].fill_(-0.5)
    return y + z


@pytest.mark.parametrize("f", [_gradient, _with_zero_grad, _with_numbers_written])
def test_gradients_and_written_numbers_are_captured(f: Any) -> None:
    x = torch.ones(3, device="cuda")
    g, y = captured(f, x)
    for k in (2.0, -1.0):
        x.fill_(k)
        want = f(x).tolist()
        for _ in range(2):
            g.replay()
            assert y.tolist() == want


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (lambda x: x.sum().item(), "a look at values"),
        (lambda x: x.cpu(), "a look at values"),
        (lambda x: x + torch.ones(3).to("cuda"), "a copy from the host"),
        (lambda x: x + torch.rand(3, device="cuda"), "random numbers|a copy from the host"),
        (torch.jit(lambda x: torch.nn.functional.dropout(x, 0.5)), "random numbers"),
    ],
)
def test_what_cannot_be_captured_says_so(f: Any, what: str) -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match=rf"\[cuda.graph\] expected work that can.*got ({what})"):
        captured(f, x)
    assert not torch.cuda.is_current_stream_capturing()
    assert (x + 1).tolist() == [2, 2, 2]


def test_wrong_uses() -> None:
    g = torch.cuda.CUDAGraph()
    for call in (g.replay, g.capture_end, g.pool):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(RuntimeError, match="non-default stream"):
        g.capture_begin()
    with torch.cuda.graph(g), pytest.raises(RuntimeError, match="one capture at a time"):
        torch.cuda.CUDAGraph().capture_begin()
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.cuda.graph(g):
        pass
