"""The tree of traces: functions under @jit in which Python looks at tensors' values."""

from __future__ import annotations

import collections
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.forest import MAX_WAYS
from jitgrad.jit import jit
from jitgrad.referrers import replace_everywhere
from jitgrad.runtime.errors import CompileError, FallbackWarning
from jitgrad.runtime.knobs import knob

UP = jg.tensor([1.0, 2.0, 3.0])
DOWN = jg.tensor([-1.0, -2.0, -3.0])
MIXED = jg.tensor([4.0, -2.0, 3.0])


def same(a: Any, b: Any) -> None:
    """The same structure, and numbers but for rounding."""
    if isinstance(a, jg.Tensor):
        assert a.dtype is b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-6, atol=1e-6)
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert type(a) is type(b) and a == b


def agree(function: Callable[..., Any], calls: Sequence[Any], traces: int) -> Any:
    """Calls the function under jit, and eagerly on copies; returns the jitted function."""
    f = jit(function, fallback="error")
    for call in calls:
        args = call if isinstance(call, tuple) else (call,)
        copies = [x.clone() if isinstance(x, jg.Tensor) else x for x in args]
        with knob(jit=False):
            wanted = function(*copies)
        same(f(*args), wanted)
        same(list(args), copies)
    assert f.stats.traces == traces and f.stats.fallbacks == 0
    assert f.stats.hits == len(calls) - traces
    return f


# -- what Python asks ----------------------------------------------------------------------------
def if_sum(x: Any) -> Any:
    y = (x * 2).relu()
    if y.sum() > 1:
        return y + x
    return y.sin() - 1


def elif_chain(x: Any) -> Any:
    y = x.exp()
    if y.max() > 50:
        return y.log()
    elif y.max() > 10:
        return y.sqrt()
    elif y.max() > 0.5:
        return y - 1, x
    return y * 0


def bool_any(x: Any) -> Any:
    return x.abs() if bool((x < 0).any()) else x * 3


def asserts(x: Any) -> Any:
    y = x / 2
    assert y.isfinite().all()
    z = y.exp()
    assert z.isfinite().all()
    return z


def int_loop(x: Any) -> Any:
    n = int((x > 0).sum())
    for _ in range(n):
        x = x * 2
    return x, n


def item_of_int(x: Any) -> Any:
    return x * (x > 0).sum().item()


def index_by_value(x: Any) -> Any:
    return x[int(x.argmax()) :] + x.argmax().item()


def int_of_float(x: Any) -> Any:
    return x + int(x.sum())


def argmax_list(x: Any) -> Any:
    order = x.argsort().tolist()
    return [x[i] for i in order], order


def mask_list(x: Any) -> Any:
    return [x[i] * 2 for i, keep in enumerate((x > 0).tolist()) if keep]


def while_above(x: Any) -> Any:
    n = 0
    while x.abs().max() > 1.6:
        x = x / 2
        n += 1
    return x, n


def early_exit(x: Any) -> Any:
    for i in range(5):
        if (x > i).all():
            return x - i
        x = x + 1
    return -x


def nested(x: Any) -> Any:
    total = x.sum()
    if total > 0:
        y = x.exp()
        if y.sum() > 50:
            return y
        return y * total
    y = x.cos()
    return y / 2 if y[0] > 0 else y * 2


def of_an_input(x: Any) -> Any:
    return x * 2 if x[0] > 0 else x + 1


def in_where_and(x: Any) -> Any:
    if x[0] > 0 and x[1] > 0:
        return x
    return x * 0 if not x[2] > 0 else x + 1


def index_object(x: Any) -> Any:
    return [10, 20, 30][(x > 0).sum() - 1] * x


@pytest.mark.parametrize(
    ("function", "traces"),
    [
        (if_sum, 2), (elif_chain, 3), (bool_any, 2), (asserts, 1), (int_loop, 3), (item_of_int, 3),
        (index_by_value, 2), (int_of_float, 3), (argmax_list, 3), (mask_list, 3),
        (while_above, 2), (early_exit, 2), (nested, 3), (of_an_input, 2), (in_where_and, 3),
        (index_object, 3),
    ],
)  # fmt: skip
def test_control_flow(function: Any, traces: int) -> None:
    calls = [UP, DOWN, MIXED, DOWN, UP, MIXED, MIXED, DOWN, UP]
    agree(function, calls, traces)


# -- numbers: x.item() of a float ------------------------------------------------------------------
class Meter:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1


def compared(x: Any) -> Any:
    loss = (x * x).mean()
    if loss.item() > 6:
        return x * 2
    return x, loss.item() <= 4.5, loss.item() != loss.item()


def returned(x: Any) -> Any:
    return (x * x).mean().item()


def computed(x: Any) -> Any:
    low, high = x.min().item(), x.double().max().item()
    return {"range": high - low, "middle": (low + high) / 2, "y": [x * low, -abs(low) + 1]}["y"]


def metered(x: Any) -> Any:
    meter = Meter()
    for i in range(3):
        meter.update((x * i).sum().item())
    return meter.total / 3, x


def largest(x: Any) -> Any:
    return x * max(x.sum().item(), x.max().item())


def truncated(x: Any) -> Any:
    return x * int(x.mean().item())


def divided(x: Any) -> Any:
    return x / (x.sum().item() + 10.5), jg.full((2,), x[0].item()), jg.tensor(x[1].item())


def until_still(x: Any) -> Any:
    before, now = 10.0, x.abs().mean()
    while abs(before - now.item()) > 0.6:
        before, now = now.item(), now / 2
    return now


def truth(x: Any) -> Any:
    return x + 1 if (x.sum() - 6).item() else x


@pytest.mark.parametrize(
    ("function", "traces"),
    [
        (compared, 2), (returned, 1), (computed, 1), (metered, 1), (largest, 2), (truncated, 3),
        (divided, 1), (until_still, 2), (truth, 2),
    ],
)  # fmt: skip
def test_numbers(function: Any, traces: int) -> None:
    calls = [UP, DOWN, MIXED, DOWN, UP, MIXED, MIXED, DOWN, UP]
    agree(function, calls, traces)


def test_a_number_is_compared_with_an_argument() -> None:
    """The best loss so far comes in as a float: it is an input, not a guard."""

    def f(x: Any, best: float) -> Any:
        loss = x.square().sum().item()
        return (x, loss) if loss < best else (x * 0, best)

    agree(f, [(UP, 20.0), (UP, 10.0), (UP, 15.5), (DOWN, 3.0), (DOWN, 14.5), (MIXED, 2.5)], 2)


@knob(segments=False)
def test_numbers_that_code_keeps_become_floats() -> None:
    """The function runs eagerly then, but what it kept is what eager code keeps."""
    log: list[Any] = []
    best = {"loss": 9.0}
    box = jg.nn.Module()
    cell = 0.0

    @jit(fallback="silent")
    def f(x: Any) -> Any:
        nonlocal cell
        loss = x.sum().item()
        log.append((1, [loss, loss * 2]))
        best["loss"] = min(best["loss"], loss)
        box.last = loss
        cell = loss + 1
        return x

    for i in range(3):
        f(UP)
        assert log[i] == (1, [6.0, 12.0]) and type(log[i][1][0]) is type(log[i][1][1]) is float
        assert best == {"loss": 6.0} and type(best["loss"]) is type(box.last) is type(cell) is float
    assert f.stats.fallbacks == 3


class Box:
    """Something that code may keep numbers in."""


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize("turn", range(8))
def test_what_holds_a_number(turn: int) -> None:
    """Lists, tuples in tuples, sets, deques, attributes, cells, in another order each turn."""
    old, new, box = Box(), float(turn), Box()
    box.x = old  # type: ignore[attr-defined]
    places: list[Any] = [[old, 7], {"k": old}, {old}, collections.deque([1, old])]
    places.append([((old, 1), [Pair(old, (2, old))])])
    random.Random(turn).shuffle(places)
    replace_everywhere(old, new)
    assert (lambda: old)() == box.x == new  # type: ignore[attr-defined]
    nested = [((new, 1), [Pair(new, (2, new))])]
    for wanted in ([new, 7], {"k": new}, {new}, collections.deque([1, new]), nested):
        assert wanted in places
    assert type(places[places.index(nested)][0][1][0]) is Pair


def test_code_that_asks_for_types_gets_floats() -> None:
    def f(x: Any) -> Any:
        value = x.sum().item()
        return x if type(value) is float else x * 0

    same(jit(f, fallback="silent")(UP), UP)


# -- what calls leave behind ---------------------------------------------------------------------
def test_nothing_is_written_before_the_leaf_is_known() -> None:
    """The write comes first in the program; the value that Python looks at reads what it wrote."""

    def f(x: Any, out: Any) -> Any:
        out.add_(x)
        if out.sum() > 4:
            out.mul_(2)
            return out.sum()
        out[0] = 7
        return out[1:]

    calls = [(UP, jg.zeros(3)), (DOWN, jg.zeros(3)), (MIXED, jg.ones(3)), (DOWN, jg.ones(3))]
    f = agree(f, calls, 2)
    out = jg.zeros(3)
    version = out._version
    f(UP, out)
    assert out.tolist() == [2.0, 4.0, 6.0] and out._version == version + 2


def test_a_call_that_fails_writes_nothing() -> None:
    table = jg.arange(5)

    @jit(fallback="error")
    def f(x: Any, index: Any, out: Any) -> Any:
        out += 1
        if x.sum() > 0:
            return table[index] * 2
        y = table[index]
        if y.sum() > 3:
            return y
        return y - 1

    good, bad, out = jg.tensor([1, 2]), jg.tensor([1, 9]), jg.zeros(2)
    for x in (UP, DOWN, UP, DOWN):
        f(x, good, out)
    assert f.stats.traces == 2
    for x in (UP, DOWN):
        before = out.clone()
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            f(x, bad, out)
        same(out, before)


def test_an_error_comes_before_the_branch_that_follows_it() -> None:
    """Eager code raises at the index; that the value below it came out otherwise does not show."""
    table = jg.arange(5)

    @jit(fallback="error")
    def f(x: Any, index: Any) -> Any:
        table[index]
        return x + 1 if x.sum() > 0 else x

    for _ in range(2):
        f(UP, jg.tensor([1, 2]))
    for x in (UP, DOWN):
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            f(x, jg.tensor([1, 9]))


def test_random_numbers_go_on_as_in_eager_code() -> None:
    def f(x: Any) -> Any:
        noise = jg.rand(3)
        if (x + noise).sum() > 2:
            return jg.randn(2), noise
        more = jg.rand(3)
        if more.sum() > 1.5:
            return jg.randperm(4), more
        return noise * 2, more

    jitted = jit(f, fallback="error")
    calls = [UP, DOWN, DOWN, MIXED, DOWN, DOWN, UP, DOWN, MIXED, DOWN]
    jg.manual_seed(5)
    wanted = [f(x) for x in calls]
    after = jg.rand(1)
    jg.manual_seed(5)
    same([jitted(x) for x in calls], wanted)
    same(jg.rand(1), after)
    assert jitted.stats.hits >= 5 and jitted.stats.fallbacks == 0


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", jg.zeros((), dtype=jg.int64))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        h = self.first(x) if x.mean() > 0 else self.second(x).relu()
        return self.norm(h)


def make_step(steps: int = 0) -> tuple[Any, Any]:
    jg.manual_seed(0)
    model = Gated()
    optimizer = jg.optim.Adam(model.parameters(), lr=0.05)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if not loss.isfinite():
            return loss.detach()
        loss.backward()
        if nn.utils.clip_grad_norm_(model.parameters(), 0.5) > 0.2:
            optimizer.step()
        return loss.detach()

    return model, step


def test_training_step_with_branches() -> None:
    """Forward, backward and the update; the norm of gradients decides about the step."""
    eager_model, eager = make_step()
    model, step = make_step()
    step = jit(step, fallback="error")
    rng = np.random.default_rng(0)
    for i in range(24):
        x = jg.tensor(rng.normal(0.3 if i % 2 else -0.3, 0.2, (8, 3)).astype(np.float32))
        np.testing.assert_allclose(step(x).numpy(), eager(x).numpy(), rtol=1e-4, atol=1e-6)
    for name, value in eager_model.state_dict().items():
        np.testing.assert_allclose(
            model.state_dict()[name].numpy(), value.numpy(), rtol=1e-3, atol=1e-5, err_msg=name
        )
    assert step.stats.hits >= 14 and step.stats.fallbacks == 0


# -- gradients outside ---------------------------------------------------------------------------
def test_results_of_each_leaf_are_differentiated_outside() -> None:
    w = jg.tensor([0.5, -1.0, 2.0], requires_grad=True)

    def f(x: Any) -> Any:
        h = (x * w).tanh()
        if h.sum() > 0:
            return (h * h).sum(), h
        return (h.exp() * w).sum(), h

    jitted = jit(f, fallback="error")
    for x in (UP, DOWN, UP, DOWN, DOWN, UP):
        w.grad = None
        loss, h = f(x)
        (loss + h.sum()).backward()
        wanted, w.grad = w.grad, None
        got, h = jitted(x)
        (got + h.sum()).backward()
        same(got, loss)
        same(w.grad, wanted)
        again = jitted(x)[0]
        (first,) = jg.autograd.grad(again, w, create_graph=True)
        (second,) = jg.autograd.grad(first.sum(), w)
        (eager,) = jg.autograd.grad(f(x)[0], w, create_graph=True)
        (eager,) = jg.autograd.grad(eager.sum(), w)
        np.testing.assert_allclose(second.numpy(), eager.numpy(), rtol=1e-4, atol=1e-5)
    assert jitted.stats.traces == 2 and jitted.stats.hits == 10


# -- guards --------------------------------------------------------------------------------------
def test_state_read_by_one_leaf_is_guarded_for_that_leaf() -> None:
    """What a function reads that only one leaf calls."""
    config = {"down": 3}

    def lower(x: Any) -> Any:
        return x * config["down"]

    def f(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else lower(x)

    jitted = jit(f, fallback="error")
    for x in (UP, DOWN, UP, DOWN):
        same(jitted(x), f(x))
    assert jitted.stats.traces == 2
    config["down"] = 5
    same(jitted(UP), f(UP))
    assert jitted.stats.traces == 2
    for x in (DOWN, DOWN, UP):
        same(jitted(x), f(x))
    assert jitted.stats.traces == 3


def test_lifted_floats_and_shapes_grow_trees_of_their_own() -> None:
    def f(x: Any, scale: float) -> Any:
        y = x * scale
        return y + 1 if y.sum() > 3 else y

    jitted = jit(f, fallback="error")
    for x, s in ((UP, 0.25), (UP, 2.0), (UP, 0.5), (UP, 3.0), (UP[:2], 0.1), (UP[:2], 0.2)):
        same(jitted(x, s), f(x, s))
    assert jitted.stats.traces == 3 and jitted.stats.hits == 3


# -- limits --------------------------------------------------------------------------------------
@knob(segments=False)
def test_a_tree_has_sixteen_leaves() -> None:
    def f(x: Any) -> Any:
        return x * int(x[0])

    jitted = jit(f, fallback="error")
    for i in [*range(MAX_WAYS), *range(MAX_WAYS)]:
        same(jitted(UP + i), f(UP + i))
    assert (jitted.stats.traces, jitted.stats.hits) == (MAX_WAYS, MAX_WAYS) and MAX_WAYS == 16
    with pytest.raises(CompileError, match="came out in more than 16 ways"):
        jitted(UP + MAX_WAYS)
    assert not jitted.specialisations


@knob(segments=False)
def test_other_shapes_keep_their_trees_when_one_grows_too_large() -> None:
    @jit(fallback="silent", dynamic=False)
    def f(x: Any) -> Any:
        return x * int(x[0])

    for i in range(MAX_WAYS + 3):
        f(UP[:2] + 1), f(UP + i)
    assert [s.hits[0] > 10 for s in f.specialisations] == [True]
    assert f.stats.fallbacks == 3


@pytest.mark.parametrize(
    "read",
    [
        float, lambda t: t.numpy().sum(),
        lambda t: len(f"{t.item():.2f}"), lambda t: hash(t.item()),
        lambda t: math.sqrt(t.item()), lambda t: t.item() ** 0.5, lambda t: 1 / t.item(),
        lambda t: {3.0: 1}.get(t.item(), 2), lambda t: t.item().is_integer(),
        lambda t: t.double().tolist(),
    ],
)  # fmt: skip
@knob(segments=False)
def test_floats_and_arrays_are_no_outcomes(read: Any) -> None:
    @jit(fallback="warn")
    def f(x: Any) -> Any:
        return x * read(x.sum())

    with pytest.warns(FallbackWarning, match="reads a tensor's value in Python"):
        same(f(UP), UP * read(UP.sum()))


# -- reports -------------------------------------------------------------------------------------
def test_reports_name_the_branch(capsys: Any) -> None:
    f = jit(nested, fallback="error")
    f(UP), f(UP)
    with knob(log="recompiles"):
        f(DOWN)
    line = nested.__code__.co_firstlineno + 2
    reason = f"bool of bool[] at {__file__}:{line}: True -> False"
    assert f.explain_last_miss() == f"0: {reason}"
    assert reason in capsys.readouterr().err


def test_calls_begin_at_the_leaf_that_was_taken_last() -> None:
    """After two detours, so that a value that stays as it is costs none."""
    f = agree(nested, [UP, DOWN, MIXED, UP, DOWN, MIXED], 3)
    for x in (UP, DOWN, MIXED, DOWN):
        f(x), f(x)
        first = f.specialisations[0]
        before = first.hits[0]
        f(x)
        assert f.specialisations[0] is first and first.hits[0] == before + 1


def test_threads() -> None:
    f = jit(nested, fallback="error")
    calls = [UP, DOWN, MIXED, UP, MIXED, DOWN] * 20
    for x in (UP, DOWN, MIXED):
        f(x), f(x)
    wanted = {id(x): nested(x) for x in (UP, DOWN, MIXED)}
    failures: list[BaseException] = []

    def work(shift: int) -> None:
        try:
            for x in calls[shift:] + calls[:shift]:
                same(f(x), wanted[id(x)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and f.stats.traces == 3
