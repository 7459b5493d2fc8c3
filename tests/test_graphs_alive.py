"""What keeps graphs and memory alive: nothing but their last reference. And graph_report."""

from __future__ import annotations

import gc
import os
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import func, nn, optim
from jitgrad.autograd import graph_report
from jitgrad.runtime import buffers
from jitgrad.tape.node import Node

X = jg.from_numpy(np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32))
Y = jg.arange(8) % 3


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """All here must be freed by reference counting."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def nodes() -> int:
    return sum(isinstance(x, Node) for x in gc.get_objects())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16)
        self.register_forward_hook(lambda module, args, out: None)  # a cycle by the module
        self.owner = [self]

    def forward(self, x: Any) -> Any:
        return self.b(F.dropout(self.norm(self.a(x)).relu(), 0.1))


def step_of(kind: str) -> Any:
    net = Net() if kind != "small" else nn.Sequential(nn.Linear(4, 3))
    optimizer = optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    weight = next(iter(net.parameters()))

    def func_step() -> None:
        params = {k: v.detach() for k, v in net.named_parameters()}

        def loss_of(p: Any, x: Any, y: Any) -> Any:
            return F.cross_entropy(func.functional_call(net.b, {"bias": p["b.bias"]}, x), y)

        grads = func.vmap(func.grad(loss_of), (None, 0, 0))(params, net.a(X).detach(), Y)
        net.b.bias.grad = grads["b.bias"].mean(0)
        optimizer.step()

    def second_step() -> None:
        optimizer.zero_grad()
        x = X.clone().requires_grad_()
        out = net(x)
        (g,) = jg.autograd.grad(out.sum(), x, create_graph=True)
        (F.cross_entropy(out, Y) + g.pow(2).mean()).backward()
        optimizer.step()

    def plain_step() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(X), Y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if kind == "jit":
        return jg.jit(plain_step, fallback="error")
    if kind != "small":
        weight.register_hook(lambda g: g * 1.0)
    return {"func": func_step, "second": second_step}.get(kind, plain_step)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [("small", 2000), ("jit", 2000), ("eager", 100), ("second", 50), ("func", 50)],
)
def test_training_does_not_grow(kind: str, steps: int) -> None:
    step = step_of(kind)
    for _ in range(5):
        step()
    objects, alive = len(gc.get_objects()), nodes()
    for _ in range(steps):
        step()
    assert nodes() == alive
    assert len(gc.get_objects()) - objects < 100


@pytest.mark.long
@pytest.mark.parametrize("kind", ["small", "jit", "eager", "second", "func"])
def test_ten_thousand_steps(kind: str) -> None:
    """Neither objects, nor nodes, nor what the process holds of memory."""
    step = step_of(kind)
    for _ in range(500):
        step()
    objects, alive, held = len(gc.get_objects()), nodes(), resident()
    for _ in range(10_000):
        step()
    assert nodes() == alive
    assert len(gc.get_objects()) - objects < 100
    assert resident() - held < 4 << 20


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def test_a_module_assigned_twice_counts_once() -> None:
    shared = nn.Linear(3, 3)
    net = nn.ModuleDict({"a": shared, "b": shared, "c": nn.Sequential(shared)})
    net.again = shared
    assert len(list(net.parameters())) == len(list(net.named_parameters())) == 2
    assert [n for n, _ in net.named_parameters()] == ["a.weight", "a.bias"]
    assert len(list(net.named_parameters(remove_duplicate=False))) == 8
    assert len(net.state_dict()) == 8
    optimizer = optim.SGD(net.parameters(), lr=1.0)
    assert len(optimizer.param_groups[0]["params"]) == 2
    ref, weight = weakref.ref(shared), weakref.ref(shared.weight)
    del net, shared, optimizer
    assert ref() is None and weight() is None


def test_training_allocates_no_more_each_step() -> None:
    """Of 400 steps, less stays than a node a step would take (NumPy keeps some small blocks)."""
    step = step_of("small")
    for _ in range(100):
        step()
    tracemalloc.start()
    step()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(400):
        step()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 128 * 1024, grown


def test_a_graph_goes_with_its_last_tensor() -> None:
    alive = nodes()
    w = jg.ones(3, requires_grad=True)
    y = (w * 2).exp()
    z = y.sum()
    z.register_hook(lambda g: g)
    y.retain_grad()
    refs = [weakref.ref(y.grad_fn), weakref.ref(y), weakref.ref(y._storage)]
    del z
    assert nodes() == alive + 2
    del y
    assert nodes() == alive and all(r() is None for r in refs)


def test_saved_tensors_go_with_backward() -> None:
    w = jg.ones(3, requires_grad=True)
    h = w.exp()
    storage = weakref.ref(h._storage)
    loss = (h * h).sum()
    del h
    assert storage() is not None
    loss.backward()
    assert storage() is None  # though the loss is still there


def test_functions_contexts_and_hooks_make_no_cycles() -> None:
    class Square(jg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            out = x * x
            ctx.save_for_backward(x, out)
            return out

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, _ = ctx.saved_tensors
            return 2 * g * x

    alive = nodes()
    x = jg.ones(3, requires_grad=True)
    y = Square.apply(x * 2)
    y.register_hook(lambda g: g)
    y.grad_fn.register_hook(lambda gi, go: None)
    with jg.autograd.graph.saved_tensors_hooks(lambda a: a.detach(), lambda a: a):
        z = Square.apply(y).exp()
    del y, z
    assert nodes() == alive
    many = jg.ones(2, 3, requires_grad=True)
    y = func.vmap(Square.apply)(many)
    z = func.vmap(func.grad(lambda a: Square.apply(a).sum()))(many)
    assert nodes() > alive
    del y, z
    assert nodes() == alive


def test_transforms_and_levels_leave_nothing() -> None:
    alive = nodes()
    x = X.clone()
    func.vmap(func.hessian(lambda a: (a.sin() * a).sum()))(x)
    func.jacfwd(lambda a: a.exp().sum(0))(x)
    func.linearize(lambda a: a.sin(), x)[1](x)
    with jg.autograd.forward_ad.dual_level():
        jg.autograd.forward_ad.make_dual(x, x).exp()
    assert nodes() == alive


def test_memory_goes_with_the_last_view() -> None:
    x = jg.ones(1000, 1000)
    array = weakref.ref(x._data)
    part = x[3:5].t()
    del x
    assert array() is not None
    del part
    assert array() is None


def test_report_names_lines_and_holders() -> None:
    w = jg.ones(64, 64, requires_grad=True)
    losses = []
    for _ in range(5):
        losses.append((w.exp() * w).sum())  # the line
    net = Net()
    net.last = (w * 3).exp()  # type: ignore[assignment]
    line = next(r for r in graph_report() if r.graphs == 5)
    assert line.line.endswith(f"test_graphs_alive.py:{_line_of('# the line')}")
    # exp's result is kept once, though both exp and mul read it; w is the user's own.
    assert (line.nodes, line.bytes) == (15, 5 * 64 * 64 * 4)
    assert line.holders == {"list of 5": 5}
    other = next(r for r in graph_report() if "attribute last of Net" in r.holders)
    assert other.graphs == 1 and other.nodes == 2
    text = str(graph_report())
    assert "5 x list of 5" in text and "test_graphs_alive.py" in text
    losses.clear()
    del net.last
    assert not [r for r in graph_report() if "test_graphs_alive" in r.line]


def _line_of(mark: str) -> int:
    with open(__file__, encoding="utf-8") as f:
        return next(i for i, text in enumerate(f, 1) if mark in text and "_line_of" not in text)


def test_anomaly_names_the_forward_line() -> None:
    class Wrong(jg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise KeyError("in backward")

    x = jg.zeros(2, requires_grad=True)
    y = Wrong.apply(x)  # forward of it
    with jg.autograd.set_detect_anomaly(True), pytest.raises(KeyError) as caught:
        y.sum().backward()
    assert f":{_line_of('# forward of it')}" in caught.value.__notes__[0]
    f = jg.jit(lambda a: a.sqrt(), fallback="error")
    with jg.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="nan values"):
        (f(x) * 0).sum().backward()
    assert f.stats.fallbacks == 0  # compiled code looks, too


# -- recordings ------------------------------------------------------------------------------------
LARGE = 1 << 18  # bytes; of every array here


def recorded(loops: int, rate: float, seen: list[int]) -> Any:
    """A function that makes many arrays and views, of which few are alive at a time."""

    def f(x: Any, rate: float) -> Any:
        for _ in range(loops):
            x = (x.view(-1) * rate).view(256, 256)  # rate is a number of the graph
            x = x.t().contiguous().add_(1.0)
            seen.append(large_arrays())
        return x

    return f


def large_arrays() -> int:
    storages = [x for x in gc.get_objects() if type(x).__name__ == "Storage"]
    return sum(x.array is not None and x.array.nbytes >= LARGE for x in storages)


def test_a_recording_keeps_no_array_that_the_function_is_done_with() -> None:
    seen: list[int] = []
    f = recorded(10, 0.5, seen)
    x = jg.ones(256, 256)
    f(x, 0.5)
    alone = seen.copy()
    seen.clear()
    compiled = jg.jit(f, fallback="silent", pure=True)
    compiled(x, 0.5)
    assert seen == alone


def test_a_trace_keeps_no_array_of_the_recorded_call() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(inplace=True), nn.Linear(256, 256))
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    x = jg.ones(256, 256)

    @jg.jit(fallback="error")
    def step() -> Any:
        optimizer.zero_grad()
        loss = model(x).view(16, 16, 256).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = large_arrays()
    step()
    assert step.stats.traces == 1
    optimizer.zero_grad()
    assert large_arrays() == before + 4  # Adam's two of each of two weights


def test_memory_of_a_recorded_call_goes_back() -> None:
    @jg.jit(fallback="error")
    def f(x: Any) -> Any:
        return F.conv2d(F.conv2d(x, w, padding=1), w, padding=1).sum()

    w = jg.ones(32, 32, 3, 3)
    x = jg.ones(4, 32, 64, 64)
    F.conv2d(x, w, padding=1)
    assert sum(map(len, buffers._idle.values())) > 0  # what eager code will take again
    f(x)
    assert not buffers._idle
