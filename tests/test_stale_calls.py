"""jit and arguments, effects and results: the same calls of a plain and of a jitted function.

A program makes a function and what it works on; each step calls the function and says what came of
it. Plain and jitted function get state of their own.
"""

from __future__ import annotations

import copy
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn, optim
from jitgrad.jit import JitFunction, jit
from jitgrad.runtime.knobs import knob

X = jg.tensor([1.0, 2.0, 3.0])
Step = Callable[[Any, Any], Any]


def frozen(x: Any) -> Any:
    """A copy of what a step gave, so that later steps do not change it."""
    if isinstance(x, jg.Tensor):
        return (str(x.dtype), x.requires_grad, x.detach().clone())
    if isinstance(x, (list, tuple)):
        return [type(x), *map(frozen, x)]
    if isinstance(x, dict):
        return [list(x), *map(frozen, x.values())]
    return (type(x), x)


def agree(a: Any, b: Any) -> bool:
    if isinstance(a, jg.Tensor):
        return a.shape == b.shape and np.allclose(a.numpy(), b.numpy(), rtol=3e-5, atol=1e-6)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(agree, a, b))
    return bool(a == b)


def run(make: Callable[[], tuple[Any, Any]], steps: list[Step], fallback: str) -> JitFunction:
    results = []
    for wrap in (lambda f: f, functools.partial(jit, fallback=fallback)):
        jg.manual_seed(0)
        f, state = make()
        f = wrap(f)
        results.append([frozen(step(f, state)) for step in steps])
    for n, (a, b) in enumerate(zip(*results, strict=True)):
        assert agree(a, b), f"step {n}: {a} is not {b}; {f.explain_last_miss()}"
    return f


def compiled(make: Callable[[], tuple[Any, Any]], steps: list[Step]) -> JitFunction:
    f = run(make, steps, "error")
    assert f.stats.hits
    return f


def eager(make: Callable[[], tuple[Any, Any]], steps: list[Step], reason: str) -> None:
    with knob(segments=False):
        f = run(make, steps, "silent")
        assert f.stats.hits == 0 and reason in f.eager[0].reason
    f = run(make, steps, "error")  # in segments
    assert f.stats.hits == 0


def only(f: Any) -> Callable[[], tuple[Any, Any]]:
    return lambda: (f, None)


# -- arguments -------------------------------------------------------------------------------------
def test_order_of_keywords() -> None:
    def f(x: Any, **more: Any) -> Any:
        for k, v in more.items():
            x = x * 2 + v + len(k)
        return x, more

    one: Step = lambda f, _: f(X, a=1, bb=2)  # noqa: E731
    other: Step = lambda f, _: f(X, bb=2, a=1)  # noqa: E731
    assert compiled(only(f), [one, one, other, other, one]).stats.traces == 2


def test_order_of_a_dict() -> None:
    def f(d: Any) -> Any:
        y = 0
        for v in d.values():
            y = y * 2 + v
        return y

    one: Step = lambda f, _: f({"a": X, "b": X * 3})  # noqa: E731
    other: Step = lambda f, _: f({"b": X * 3, "a": X})  # noqa: E731
    compiled(only(f), [one, one, other, other])


def with_attribute(**fields: Any) -> Step:
    def step(f: Any, _: Any) -> Any:
        x = X.clone()
        vars(x).update(fields)
        return f(x)

    return step


def test_attributes_of_a_tensor() -> None:
    steps = [with_attribute(scale=2.0), with_attribute(scale=3.0), with_attribute(other=1)]

    def f(x: Any) -> Any:
        return x * x.scale

    assert (
        "x.scale: 2.0 -> 3.0"
        in compiled(only(f), steps[:1] * 2 + steps[1:2] * 2).explain_last_miss()
    )

    def g(x: Any) -> Any:
        return x * 2 if hasattr(x, "scale") else x * getattr(x, "other", 3)

    compiled(only(g), [with_attribute(), *steps, with_attribute(), *steps])


def test_objects() -> None:
    class Config:
        def __init__(self) -> None:
            self.k = 2.0
            self.items = [1.0]

    def change(**fields: Any) -> Step:
        def step(f: Any, c: Any) -> Any:
            vars(c).update(fields)
            return f(X, c)

        return step

    def f(x: Any, c: Any) -> Any:
        return x * c.k + c.items[0]

    steps = [change(), change(k=3.0), change(items=[5.0]), lambda f, _: f(X, Config())]
    compiled(lambda: (f, Config()), [s for s in steps for _ in range(2)])


def test_modules() -> None:
    def f(modules: Any, x: Any) -> Any:
        for m in modules:
            x = m(x)
        return x

    def change(action: Callable[[Any], Any]) -> Step:
        def step(f: Any, modules: Any) -> Any:
            action(modules)
            return f(modules, X)

        return step

    steps = [
        change(lambda m: None),
        change(lambda m: m[0].weight.data.fill_(2.0)),
        change(lambda m: setattr(m[0], "bias", None)),
        change(lambda m: m.reverse()),
        change(lambda m: m.append(nn.ReLU())),
    ]
    compiled(lambda: (f, [nn.Linear(3, 3), nn.Tanh()]), [s for s in steps for _ in range(3)])


def test_arrays() -> None:
    def f(x: Any, a: Any) -> Any:
        return x * float(a[0]) + a.shape[0]

    def g(x: Any, a: Any) -> Any:
        return x * jg.from_numpy(a) + jg.tensor(a)

    def changed(f: Any, a: Any) -> Any:
        a[0] += 1
        return f(X, a)

    steps: list[Step] = [
        lambda f, a: f(X, a),
        changed,
        lambda f, a: f(X, np.ones(3, np.float32)),
    ]
    for function in (f, g):
        compiled(
            lambda function=function: (function, np.array([2.0, 3.0, 4.0], np.float32)),
            [s for s in steps for _ in range(2)][:-2] + steps[2:],
        )


def test_functions_enums_and_partials() -> None:
    class Mode(enum.Enum):
        A = 1
        B = 2

    def f(x: Any, g: Any, mode: Any, more: Any, k: float = 1.0) -> Any:
        return g(x) * (2 if mode is Mode.A else 3) + more[0] * k

    def make() -> tuple[Any, Any]:
        more = [1.0]
        return functools.partial(f, more=more, k=2.0), more

    def grown(f: Any, more: Any) -> Any:
        more[0] = 4.0
        return f(X, F.relu, Mode.A)

    steps: list[Step] = [
        lambda f, _: f(X, F.relu, Mode.A),
        lambda f, _: f(X, F.relu, Mode.B),
        lambda f, _: f(X, F.silu, Mode.A),
        grown,
        lambda f, _: f(X, F.relu, Mode.A, k=3.0),
    ]
    compiled(make, [s for s in steps for _ in range(2)])


# -- optimizers ------------------------------------------------------------------------------------
def training(cls: Any, **options: Any) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        ws = [nn.Parameter(jg.ones(3)), nn.Parameter(jg.full((3,), 2.0))]
        optimizer = cls(ws, **options)

        def f(x: Any) -> Any:
            optimizer.zero_grad()
            loss = ((x * ws[0] + ws[1]) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return f, types.SimpleNamespace(ws=ws, optimizer=optimizer)

    return make


def new_parameter(c: Any) -> None:
    c.ws[0] = c.optimizer.param_groups[0]["params"][0] = nn.Parameter(jg.full((3,), 4.0))


def new_group(c: Any) -> None:
    c.ws[1] = nn.Parameter(jg.full((3,), 4.0))
    c.optimizer.add_param_group({"params": [c.ws[1]], "lr": 0.5})


def group(**options: Any) -> Callable[[Any], None]:
    return lambda c: c.optimizer.param_groups[0].update(options)


CHANGES: list[Callable[[Any], Any]] = [
    lambda c: None,
    group(lr=0.01),
    group(weight_decay=0.1),
    lambda c: c.optimizer.state.clear(),
    lambda c: c.optimizer.load_state_dict(copy.deepcopy(c.optimizer.state_dict())),
    group(maximize=True),
    lambda c: c.ws[0].data.fill_(0.5),
    lambda c: c.ws[0].requires_grad_(False),
    lambda c: c.ws[0].requires_grad_(True),
    lambda c: [c.optimizer.state[p].clear() for p in c.ws],
    lambda c: setattr(c.ws[1], "data", jg.zeros(3)),
    new_parameter,
    new_group,
]


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (training(optim.SGD, lr=0.1, momentum=0.9), [group(momentum=0.5, nesterov=True)]),
        (training(optim.Adam, lr=0.1), [group(betas=(0.5, 0.6)), group(eps=1e-2)]),
    ],
    ids=["SGD", "Adam"],
)
def test_optimizers(make: Any, more: Any) -> None:
    def after(change: Callable[[Any], Any]) -> Step:
        def step(f: Any, c: Any) -> Any:
            change(c)
            return [f(X), *c.ws]

        return step

    none = CHANGES[0]
    compiled(make, [after(c) for change in [*CHANGES, *more] for c in (change, none, none)])


# -- buffers and generators ------------------------------------------------------------------------
def test_buffers() -> None:
    def make() -> tuple[Any, Any]:
        m = nn.BatchNorm1d(3)
        return lambda x: m(x), m

    def after(change: Callable[[Any], Any]) -> Step:
        def step(f: Any, m: Any) -> Any:
            change(m)
            return f(jg.arange(12.0).reshape(4, 3)), m.running_mean, m.num_batches_tracked

        return step

    changes: list[Callable[[Any], Any]] = [
        lambda m: None,
        lambda m: m.reset_running_stats(),
        lambda m: setattr(m, "momentum", None),
        lambda m: m.eval(),
        lambda m: setattr(m.train(), "num_batches_tracked", jg.tensor(5)),
    ]
    compiled(make, [after(c) for change in changes for c in (change, changes[0], changes[0])])


def test_dropout_and_generators() -> None:
    def make() -> tuple[Any, Any]:
        c = types.SimpleNamespace(m=nn.Dropout(0.5), g=jg.Generator().manual_seed(1))
        return lambda g: (c.m(jg.ones(20)), jg.rand(3, generator=g)), c

    def after(change: Callable[[Any], Any]) -> Step:
        def step(f: Any, c: Any) -> Any:
            change(c)
            return f(c.g)

        return step

    changes: list[Callable[[Any], Any]] = [
        lambda c: None,
        lambda c: setattr(c.m, "p", 0.1),
        lambda c: jg.manual_seed(3),
        lambda c: c.g.manual_seed(9),
        lambda c: setattr(c, "g", jg.Generator().manual_seed(4)),
        lambda c: c.m.eval(),
    ]
    compiled(make, [after(change) for change in changes for _ in range(2)])


# -- effects and results ---------------------------------------------------------------------------
def test_new_containers_are_new_at_each_call() -> None:
    def f(x: Any) -> Any:
        return [x * 2, [1, 2], {"a": 3}]

    def step(f: Any, _: Any) -> Any:
        result = f(X)
        result[1].append(5)
        result[2]["b"] = 1
        return result

    compiled(only(f), [step] * 3)


def test_a_container_that_is_no_new_one() -> None:
    def captured() -> tuple[Any, Any]:
        items = [1, 2]
        return lambda x: (x, items), items

    eager(captured, [lambda f, c: f(X)[1] is c] * 3, "is no new container")

    def step(f: Any, _: Any) -> Any:
        d = {"x": X}
        return f(d) is d

    eager(only(lambda d: d), [step] * 3, "is no new container")


def test_attributes_that_the_function_sets() -> None:
    def argument(x: Any) -> Any:
        x.tag = 3
        return x * 2

    def step(f: Any, _: Any) -> Any:
        x = X.clone()
        return f(x), x.tag

    eager(only(argument), [step] * 3, "sets an attribute of a tensor")

    def captured() -> tuple[Any, Any]:
        w = [jg.ones(3)]

        def tag(t: Any) -> None:
            t.tag = 3

        def f(x: Any) -> Any:
            tag(w[0])
            return x * w[0]

        return f, w

    def fresh(f: Any, w: Any) -> Any:
        w[0] = jg.ones(3)
        return f(X), w[0].tag

    eager(captured, [fresh] * 3, "tag")


def test_counters_and_containers_that_the_function_changes() -> None:
    def counter() -> tuple[Any, Any]:
        n = 0

        def f(x: Any) -> Any:
            nonlocal n
            n += 1
            return x * n

        return f, None

    compiled(counter, [lambda f, _: f(X)] * 5)

    def appends() -> tuple[Any, Any]:
        items: list[int] = []

        def f(x: Any) -> Any:
            items.append(1)
            return x * len(items)

        return f, items

    eager(appends, [lambda f, items: (f(X), len(items))] * 3, "changes length of items")

    def argument(f: Any, _: Any) -> Any:
        d = {"x": X}
        f(d)
        return d

    eager(only(lambda d: d.update(y=d["x"] * 2)), [argument] * 3, "changes a container")


def test_views_of_dicts_are_not_guarded() -> None:
    def make() -> tuple[Any, Any]:
        d = {"a": 2.0}
        view = d.values()
        return lambda x: x * sum(view), d

    def grown(f: Any, d: Any) -> Any:
        d[str(len(d))] = 1.0
        return f(X)

    eager(make, [grown] * 3, "dict_values")
