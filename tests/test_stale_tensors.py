"""jit and arrays, tensors, Modules, modes and generators that change between calls."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from changes import Program, compare, name_of, programs

import jitgrad as jg
from jitgrad import nn

COMPILED, compiled = programs()


@pytest.mark.parametrize("program", COMPILED, ids=name_of)
def test_compiled(program: Program) -> None:
    compare(program, "error")


@compiled
def numpy_scalars_and_arrays() -> Iterator[Any]:
    c = types.SimpleNamespace(s=np.float32(2.0), a=np.array([1.0, 2.0]))

    def f(x: Any) -> Any:
        return x * float(c.s) + float(c.a.sum()) + c.a.shape[0]

    yield f
    c.s = np.float64(2.0)
    yield
    c.s = np.float32(3.0)
    yield
    c.a[0] = 5.0
    yield
    c.a = np.ones(3)
    yield


@compiled
def arrays_that_become_tensors_and_are_read() -> Iterator[Any]:
    a, b, c = (np.array([2.0, 3.0, 4.0], np.float32) for _ in range(3))
    many = [np.array([1.0, 2.0, 3.0], np.float32)]

    def g(t: Any) -> Any:
        return jg.from_numpy(t) * float(t.mean())

    def f(x: Any) -> Any:
        other = b
        x = x * jg.from_numpy(a) * float(a[0]) + jg.from_numpy(other) * float(other.max())
        for t in many:
            x = x + jg.from_numpy(t) * float(t.sum())
        return x + g(c) + jg.tensor(a)

    yield f
    a[0] = 5.0
    yield
    b[0] = 6.0
    yield
    c[0] = 7.0
    yield
    many[0][0] = 8.0
    yield


# -- tensors ---------------------------------------------------------------------------------------
@compiled
def captured_tensor() -> Iterator[Any]:
    w = jg.ones(3)

    def f(x: Any) -> Any:
        y = x * w
        return y * 2 if w.requires_grad else y + w.dim()

    yield f
    w.mul_(3)
    yield
    w.data = jg.full((3,), 5.0)
    yield
    w.requires_grad_()
    yield
    w.requires_grad_(False)
    yield
    w.data = jg.full((3,), 5.0, dtype=jg.float64)
    yield
    w = jg.ones(2, 3)
    yield
    w = jg.ones(3, 2).t()
    yield


@compiled
def attributes_of_tensors() -> Iterator[Any]:
    w = jg.ones(3)
    w.scale = 2.0
    more = [jg.ones(3)]

    def f(x: Any) -> Any:
        x = x * w * w.scale
        for t in more:
            x = x * (2 if hasattr(t, "twice") else 1) + getattr(t, "bias", 0)
        return x

    yield f
    w.scale = 3.0
    yield
    more[0].twice = True
    yield
    more[0].bias = 1.0
    yield
    more[0] = jg.ones(3)
    yield


@compiled
def gradients_and_hooks() -> Iterator[Any]:
    w, v = nn.Parameter(jg.ones(3)), nn.Parameter(jg.ones(3))

    def f(x: Any) -> Any:
        v.grad = None
        (x * v).sum().backward()
        return x * (2 if w.grad is None else w.grad) + v.grad

    yield f
    w.grad = jg.ones(3)
    yield
    w.grad = jg.full((3,), 5.0)
    yield
    w.grad.mul_(2)
    yield
    w.grad = None
    yield
    handle = v.register_hook(lambda g: g * 2)
    yield
    handle.remove()
    yield


@compiled
def lists_of_tensors_and_modules() -> Iterator[Any]:
    tensors, modules = [jg.ones(3), jg.full((3,), 2.0)], [nn.Linear(3, 3), nn.Tanh()]

    def f(x: Any) -> Any:
        for t in tensors:
            x = x * t + len(tensors)
        for m in modules:
            x = m(x)
        return x

    yield f
    tensors.append(jg.full((3,), 3.0))
    yield
    tensors.reverse()
    yield
    modules.reverse()
    yield
    modules[1] = nn.Linear(3, 3)
    yield
    tensors.clear()
    yield


@compiled
def class_of_a_tensor() -> Iterator[Any]:
    box: list[Any] = [jg.ones(3)]

    def f(x: Any) -> Any:
        return x * box[0] * (3 if isinstance(box[0], nn.Parameter) else 2)

    yield f
    box[0] = nn.Parameter(jg.ones(3), requires_grad=False)
    yield


# -- Modules ---------------------------------------------------------------------------------------
@compiled
def dicts_of_a_module() -> Iterator[Any]:
    m = nn.Linear(3, 3)
    m.register_buffer("shift", jg.ones(3))
    m.k = 2.0

    def f(x: Any) -> Any:
        y = m(x) * m.k
        return y if m.shift is None else y + m.shift

    yield f
    m._parameters["weight"] = nn.Parameter(jg.ones(3, 3))
    yield
    m._buffers["shift"] = jg.full((3,), 4.0)
    yield
    m._parameters["bias"] = None
    yield
    m._parameters.update(weight=nn.Parameter(jg.full((3, 3), 2.0)))
    yield
    m._buffers.pop("shift")
    m._buffers.setdefault("shift", jg.full((3,), 6.0))
    yield
    m._buffers |= {"shift": jg.full((3,), 7.0)}
    yield
    m.k = 5.0
    yield
    m.shift = None
    yield
    del m._buffers["shift"]
    m.shift = jg.zeros(3)
    yield


@compiled
def children_of_a_module() -> Iterator[Any]:
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def f(x: Any) -> Any:
        for _, child in m.named_children():
            x = child(x)
        return x + len(m)

    yield f
    m._modules["1"] = nn.Tanh()
    yield
    m[1] = nn.Sigmoid()
    yield
    m.append(nn.Linear(3, 3))
    yield
    m[0].weight.data.mul_(2)
    yield
    m[0].weight.data = jg.ones(3, 3)
    yield
    m[0].weight = nn.Parameter(jg.zeros(3, 3))
    yield
    m[0].bias = None
    yield
    m.__class__ = type("Other", (nn.Sequential,), {"__len__": lambda self: 11})
    yield


@compiled
def train_and_eval() -> Iterator[Any]:
    m = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3, momentum=0.0)))

    def f(x: Any) -> Any:
        return m(x.expand(2, 3)) + m.training

    yield f
    m.eval()
    yield
    m[1].train()
    yield
    m[1][0].training = False
    yield
    m[1][0].eps = 0.5
    yield
    m[1][0].running_mean = jg.ones(3)
    yield
    m[1][0].running_var.fill_(9.0)
    yield


@compiled
def hooks_of_a_module() -> Iterator[Any]:
    m = nn.Linear(3, 3)
    k = [2.0]

    def f(x: Any) -> Any:
        return m(x)

    yield f
    handle = m.register_forward_hook(lambda mod, args, out: out * k[0])
    yield
    k[0] = 3.0
    yield
    other = m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    yield
    handle.remove()
    yield
    other.remove()
    yield


@compiled
def methods_of_a_module() -> Iterator[Any]:
    class Net(nn.Module):
        k = 2.0

        def forward(self, x: Any) -> Any:
            return self.go(x) * self.k

        def go(self, x: Any) -> Any:
            return x + 1

    m: Any = Net()

    def f(x: Any) -> Any:
        return m(x)

    yield f
    Net.k = 3.0
    yield
    m.k = 4.0
    yield
    Net.go = lambda self, x: x - 1
    yield
    m.go = lambda x: x - 2
    yield
    m.forward = lambda x: x * 9
    yield
    del m.forward
    yield


@compiled
def plain_objects_in_a_module() -> Iterator[Any]:
    class Cell:
        def __init__(self) -> None:
            self.k = 2.0
            self.table = {"a": [1.0]}

    m: Any = nn.Module()
    m.cell, m.list, m.pair = Cell(), [1.0], ({"b": 2.0},)

    def f(x: Any) -> Any:
        return x * m.cell.k + m.cell.table["a"][0] + m.list[0] + m.pair[0]["b"]

    yield f
    m.cell.k = 3.0
    yield
    m.cell.table["a"][0] = 4.0
    yield
    m.list[0] = 5.0
    yield
    m.pair[0]["b"] = 6.0
    yield


# -- modes, generators, environment ----------------------------------------------------------------
@compiled
def modes() -> Iterator[Any]:
    w = nn.Parameter(jg.ones(3))

    def f(x: Any) -> Any:
        y = x * w
        return y, jg.ones(1) * y.requires_grad, jg.full((1,), jg.is_grad_enabled() * 1.0)

    yield f
    before = jg.get_default_dtype()
    try:
        jg.set_default_dtype(jg.float64)
        yield
        jg.set_default_dtype(before)
        yield
        with jg.no_grad():
            yield
        yield
        with jg.inference_mode():
            yield
        w.requires_grad_(False)
        yield
    finally:
        jg.set_default_dtype(before)


SEEDS: dict[str, Callable[[Any], Any]] = {
    "initial_seed": lambda g: jg.initial_seed(),
    "Generator.initial_seed": lambda g: g.initial_seed(),
    "get_rng_state": lambda g: jg.get_rng_state().float().sum(),
    "get_state": lambda g: g.get_state().float().sum(),
    "draws": lambda g: g.draws + g.initial_seed(),
    "clone_state": lambda g: g.clone_state().initial_seed(),
    "default_generator": lambda g: jg.default_generator.initial_seed(),
    "repr": lambda g: hash(f"{g}") % 97,
}


@pytest.mark.parametrize("name", SEEDS)
def test_what_reads_a_seed_runs_eagerly(name: str) -> None:
    own = jg.Generator()
    before = jg.get_rng_state()

    def program() -> Iterator[Any]:
        def f(x: Any) -> Any:
            return x * SEEDS[name](own)

        for seed in (3, 4, 5):
            jg.manual_seed(seed)
            own.manual_seed(seed)
            yield f

    try:
        compare(program, "silent")
    finally:
        jg.set_rng_state(before)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> Iterator[Any]:
        def f(x: Any) -> Any:
            return x * float(os.environ.get("JG_STALE", "1"))

        yield f
        monkeypatch.setenv("JG_STALE", "2")
        yield

    compare(program, "silent")
