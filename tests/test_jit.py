"""jit: results, counts, falling back with reasons, nesting, threads, check mode, knobs."""

from __future__ import annotations

import dataclasses
import itertools
import random
import sys
import threading
import time
import types
import warnings
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler.ops.record import OPS
from jitgrad.jit import JitFunction, disable_jit, jit
from jitgrad.runtime.errors import CompileError, FallbackWarning
from jitgrad.runtime.knobs import knob
from jitgrad.runtime.launch import Executable

X = jg.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


@dataclasses.dataclass
class Batch:
    x: Any
    y: Any
    name: str = "b"


def test_counts() -> None:
    @jit(fallback="error")
    def f(x: Any) -> Any:
        return (x @ x.t()).relu().sum()

    for _ in range(5):
        np.testing.assert_allclose(f(X).numpy(), f.__wrapped__(X).numpy(), rtol=1e-6)
    s = f.stats
    assert (s.traces, s.compiles, s.hits, s.fallbacks, s.segments) == (1, 1, 4, 0, 0)


def test_pytrees_in_and_out() -> None:
    @jit(fallback="error")
    def f(batch: Any, extra: Any) -> Any:
        a, (b,) = extra["pair"]
        return Batch({"s": batch.x + a}, [batch.y * b, None, 3, "t"], batch.name)

    for _ in range(3):
        out = f(Batch(X, X * 2), {"pair": (X, [X])})
        assert isinstance(out, Batch) and out.name == "b" and out.y[1:] == [None, 3, "t"]
        np.testing.assert_array_equal(out.x["s"].numpy(), 2 * X.numpy())
        np.testing.assert_array_equal(out.y[0].numpy(), 2 * X.numpy() ** 2)
    assert f.stats.traces == 1
    f(Batch(X, X * 2, "c"), {"pair": (X, [X])})
    assert f.stats.traces == 2


def test_named_tuple_results_of_ops() -> None:
    @jit(fallback="error")
    def f(x: Any) -> Any:
        return x.max(1)

    for _ in range(2):
        out = f(X)
        assert out.values.tolist() == [3.0, 6.0] and out.indices.tolist() == [2, 2]


COUNTER = types.SimpleNamespace(n=0, seen=[])
STREAM = iter(range(100))


def prints(x: Any) -> Any:
    print("hello")
    return x + 1


def counts(x: Any) -> Any:
    COUNTER.n += 1
    return x + 1


def extends(x: Any) -> Any:
    COUNTER.seen.extend([1])
    return x + 1


def draws(x: Any) -> Any:
    return x + random.random()


def draws_numpy(x: Any) -> Any:
    return x + float(np.random.rand())


def tells_time(x: Any) -> Any:
    return x + time.perf_counter()


def advances(x: Any) -> Any:
    return x + next(STREAM)


def advances_bound(x: Any) -> Any:
    return x + BOUND()


BOUND = itertools.count().__next__


def branches(x: Any) -> Any:
    return x + 1 if float(x.sum()) > 0 else x - 1


def reads_item(x: Any) -> Any:
    return f"{x.sum().item():.3f}"


def reads_array(x: Any) -> Any:
    return x + jg.from_numpy(np.sort(x.numpy()))


def seeds(x: Any) -> Any:
    jg.manual_seed(0)
    return x + jg.rand(3)


def makes_object(x: Any) -> Any:
    return types.SimpleNamespace(y=x + 1)


def makes_function(x: Any) -> Any:
    width = x.shape[1]
    return x, lambda y: y * width


def makes_class(x: Any) -> Any:
    return x, type("Made", (), {"width": x.shape[1]})


def keeps(x: Any) -> Any:
    y = x + 1
    HIDDEN["last"] = (y,)
    return y * 2


HIDDEN: dict[str, Any] = {"last": None}


def changes_argument(x: Any, box: Any = None) -> Any:
    BOX["k"] = x
    return x + 1


BOX: dict[str, Any] = {}


def new_iterators(x: Any) -> Any:
    """What is made in the call and ends with it is no effect: how public code asks for a dtype."""
    weight = next(LINEAR.parameters())
    width = next((n for n in (1, 2, 3) if n > 1), None)
    return x.to(weight.dtype) * width + next(iter({"a": 2}.values())) + weight[0].detach()


LINEAR = nn.Linear(3, 1)

REASONS = [
    (prints, "calls print()"),
    (extends, "changes length of COUNTER.seen (0 -> 1)"),
    (draws, "a random generator jit does not follow"),
    (draws_numpy, "numpy.random"),
    (tells_time, "calls time.perf_counter()"),
    (advances, "reaches an iterator ("),
    (advances_bound, "reaches an iterator (count)"),
    (branches, "reads a tensor's value in Python (float"),
    (reads_item, "reads a tensor's value in Python (item"),
    (reads_array, "reads a tensor's value in Python (numpy"),
    (seeds, "seeds a random generator"),
    (makes_object, "returns an object of class SimpleNamespace"),
    (makes_function, "returns an object of class function"),
    (makes_class, "returns an object of class type"),
    (keeps, "changes HIDDEN['last']"),
    (changes_argument, "changes keys of BOX"),
]


@pytest.mark.parametrize(("function", "reason"), REASONS, ids=lambda v: getattr(v, "__name__", ""))
@knob(segments=False)
def test_runs_eagerly_with_a_reason(function: Any, reason: str) -> None:
    COUNTER.seen[:] = []
    HIDDEN["last"] = None
    BOX.clear()
    f = jit(function)
    with pytest.warns(FallbackWarning) as caught:
        f(X)
    text = str(caught[0].message)
    assert reason in text and "runs eagerly" in text, text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            f(X)
    assert f.stats.traces == 1 and f.stats.hits == 0 and f.stats.fallbacks == 3
    assert reason in str(f.explain())
    assert len(COUNTER.seen) in (0, 3)


def test_functions_that_a_call_makes_are_of_that_call() -> None:
    @jit(fallback="error")
    def f(x: Any, s: float) -> Any:
        return x * s, [lambda y: y * s], jg.relu, helper, int

    def helper() -> None: ...

    for s in (1.0, 2.0, 3.0, 4.0):
        y, (times,), *known = f(X, s)
        assert y.equal(X * s) and times(X).equal(X * s) and times(2) == 2 * s
        assert known == [jg.relu, helper, int]
    known_only = jit(lambda x: (x, jg.relu, helper, int, nn.Linear), fallback="error")
    for _ in range(3):
        assert known_only(X)[1:] == (jg.relu, helper, int, nn.Linear)
    assert known_only.stats.hits == 2


def test_new_iterators_compile() -> None:
    f = jit(new_iterators, fallback="error")
    for _ in range(3):
        assert f(X).equal(new_iterators(X))
    assert f.stats.hits == 2


@knob(segments=False)
def test_reason_names_the_users_line() -> None:
    @jit(fallback="warn")
    def f(x: Any) -> Any:
        y = x + 1
        return y if float(y.sum()) > 0 else x  # the line that is named

    line = f.__wrapped__.__code__.co_firstlineno + 3
    with pytest.warns(FallbackWarning, match=rf"test_jit.py:{line}\)"):
        f(X)


@knob(segments=False)
def test_escape_is_found_and_named() -> None:
    class Hide:
        __slots__ = ("inside",)

    def put(x: Any) -> None:
        hide.inside = x

    hide: Any = Hide()
    hide.inside = None
    box = [put]

    @jit
    def f(x: Any) -> Any:
        y = x * 3
        box[0](y)
        return y + 1

    with pytest.warns(FallbackWarning, match="changes hide.inside|keeps a tensor"):
        f(X)
    f(X * 2)
    np.testing.assert_array_equal(hide.inside.numpy(), 6 * X.numpy())


@knob(segments=False)
def test_fallback_error_and_silent() -> None:
    with pytest.raises(CompileError, match="cannot be compiled: it calls print"):
        jit(prints, fallback="error")(X)
    with knob(fallback="error"), pytest.raises(CompileError):
        jit(prints)(X)
    f = jit(prints, fallback="error")
    for _ in range(2):
        with pytest.raises(CompileError):
            f(X)
    assert "cannot be compiled: it calls print" in str(f.explain())
    f.clear()
    assert "cannot be compiled" not in str(f.explain())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jit(prints, fallback="silent")(X)


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jitgrad.compiler.pipeline", None)
    reason = "runs eagerly: the compiler cannot: ModuleNotFoundError: "
    with knob(cache=False), pytest.warns(FallbackWarning, match=reason):
        assert jit(lambda x: x * 2, name="f")(X).equal(X * 2)


def test_pure_skips_effects() -> None:
    COUNTER.n = 0
    f = jit(counts, pure=True, fallback="error")
    f(X)
    f(X)
    assert f.stats.hits == 1 and COUNTER.n == 1


def test_user_errors_pass_through() -> None:
    @jit(fallback="error")
    def f(x: Any) -> Any:
        if x.shape[0] == 3:
            raise KeyError("three")
        return x + 1

    f(X)
    for _ in range(2):
        with pytest.raises(KeyError, match="three"):
            f(jg.ones(3))
    np.testing.assert_array_equal(f(X).numpy(), X.numpy() + 1)


def test_disable() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return x + 1

    fast = jit(f, pure=True, fallback="error")
    with disable_jit():
        fast(X)
        fast(X)
    assert len(calls) == 2 and fast.stats.traces == 0
    assert fast.__wrapped__ is f


def test_nested_jit_is_inlined() -> None:
    @jit(fallback="error")
    def inner(x: Any) -> Any:
        return x * 2

    @jit(fallback="error")
    def outer(x: Any) -> Any:
        return inner(x) + 1

    for _ in range(3):
        np.testing.assert_array_equal(outer(X).numpy(), X.numpy() * 2 + 1)
    assert outer.stats.hits == 2 and inner.stats.traces == 0


def test_each_shape_is_compiled_once() -> None:
    @jit(fallback="error")
    def f(x: Any) -> Any:
        return x.sum(0)

    for _ in range(2):
        for n in (1, 2, 5):
            assert f(jg.ones(n, 3)).tolist() == [n] * 3
    assert f.stats.traces == 2 and f.stats.hits == 4  # 1; every other


@knob(segments=False)
def test_too_many_specialisations() -> None:
    @jit
    def f(x: Any, n: str) -> Any:
        return x * int(n)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(40):
            np.testing.assert_array_equal(f(X, str(n)).numpy(), X.numpy() * n)
    assert f.stats.traces == 32
    assert any("32 specialisations" in str(w.message) for w in caught)


def test_control_flow_over_python_values_unrolls() -> None:
    @jit(fallback="error")
    def f(xs: Any, flags: Any) -> Any:
        out = xs[0] * 0
        for x, flag in zip(xs, flags, strict=True):
            out = out + (x * 2 if flag else x)
        return out

    for flags in ([True, False], [False, False], [True, False]):
        got = f([X, X * 3], flags)
        expected = sum(
            (x * 2 if flag else x)
            for x, flag in zip([X.numpy(), X.numpy() * 3], flags, strict=True)
        )
        np.testing.assert_array_equal(got.numpy(), expected)
    assert f.stats.traces == 2


def test_generators_comprehensions_and_inner_functions() -> None:
    scales = [1.0, 2.0]

    @jit(fallback="error")
    def f(x: Any) -> Any:
        def add(y: Any, k: float) -> Any:
            return y + k

        parts = [add(x, s) for s in scales]
        return sum((p * 2 for p in parts), start=jg.zeros(2, 3)), dict.fromkeys("ab", x)["a"]

    for _ in range(2):
        np.testing.assert_array_equal(f(X)[0].numpy(), (2 * X.numpy() + 3) * 2)
    scales[0] = 5.0
    np.testing.assert_array_equal(f(X)[0].numpy(), (2 * X.numpy() + 7) * 2)
    assert f.stats.traces == 2


def test_backward_inside() -> None:
    @jit(fallback="error")
    def grads(x: Any) -> Any:
        w = jg.ones(3, requires_grad=True)
        loss = ((x * w).tanh() ** 2).sum()
        return jg.autograd.grad(loss, w)[0]

    expected = grads.__wrapped__(X).numpy()
    for _ in range(2):
        np.testing.assert_allclose(grads(X).numpy(), expected, rtol=1e-5)
    assert grads.stats.hits == 1


class Square(jg.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 2 * x


def test_leaf_and_custom_function_inside() -> None:
    @jit(fallback="error")
    def f(x: Any) -> Any:
        w = x.detach().requires_grad_()
        Square.apply(w).sum().backward()
        return w.grad

    for _ in range(2):
        np.testing.assert_array_equal(f(X).numpy(), 2 * X.numpy())
    assert f.stats.hits == 1


@knob(segments=False)
def test_backward_through_an_older_tape_is_refused() -> None:
    w = jg.ones(3, requires_grad=True)

    @jit
    def f(y: Any) -> None:
        y.sum().backward()

    for i in range(3):
        y = w * 2
        if i == 0:
            with pytest.warns(FallbackWarning, match="operations made before the call"):
                f(y)
        else:
            f(y)
    assert w.grad is not None and w.grad.tolist() == [6.0] * 3


def test_threads() -> None:
    net = nn.Linear(3, 2)

    @jit(fallback="error")
    def f(x: Any) -> Any:
        with jg.no_grad():
            return net(x).relu()

    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            for _ in range(50):
                x = jg.tensor(rng.standard_normal((rng.integers(1, 4), 3)).astype(np.float32))
                np.testing.assert_allclose(
                    f(x).numpy(), f.__wrapped__(x).numpy(), rtol=1e-5, atol=1e-6
                )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]
    assert f.stats.traces == 3


def test_check_mode_names_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit(check=True, fallback="error")
    def f(x: Any) -> Any:
        y = x.exp()
        return y.sigmoid() + 1

    f(X)
    np.testing.assert_allclose(f(X).numpy(), f.__wrapped__(X).numpy(), rtol=1e-5)
    right = type(OPS["sigmoid"]).reference
    monkeypatch.setattr(
        type(OPS["sigmoid"]), "reference", lambda self, x, **attrs: right(self, x, **attrs) + 0.5
    )
    line = f.__wrapped__.__code__.co_firstlineno + 3
    with pytest.raises(
        RuntimeError, match=rf"\[sigmoid\] compiled code differs .*test_jit.py:{line}"
    ):
        f(X)


def test_check_mode_knows_what_rounding_explains() -> None:
    """The bias before a batch norm has a gradient of nothing but rounding, which Adam scales up."""
    jg.manual_seed(0)
    layers = (nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 2))
    model = nn.Sequential(*layers)
    optimizer = jg.optim.Adam(model.parameters(), 1e-2)

    @jit(check=True, fallback="error")
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(6):
        step(jg.randn(5, 3), jg.arange(5) % 2)
    assert step.stats.hits >= 4


@pytest.mark.parametrize("dtype", [jg.float32, jg.int16, jg.bfloat16, jg.complex64])
def test_check_mode_finds_faults_of_fusion(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = jg.arange(1, 7).to(dtype)

    @jit(check=True, fallback="error")
    def f(x: Any) -> Any:
        return x * 3 + x * x

    made, armed = Executable.caller, []

    def caller(self: Any, *given: Any) -> Any:
        right = made(self, *given)

        def run(*args: Any) -> Any:
            results = right(*args)
            if armed:  # the graph's own code, not that of one op
                armed.clear()
                results[0][2] = results[0][3]
            return results

        return run

    monkeypatch.setattr(Executable, "caller", caller)
    with knob(cache=False):
        f(x), f(x)
    armed.append(True)
    with pytest.raises(RuntimeError, match=r"each op by itself does not: .* at \[2\] it gave"):
        f(x)


def test_compiler_failure_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, b: Any, *operands: Any, **attrs: Any) -> Any:
        raise RuntimeError("[cos] has no lowering")

    monkeypatch.setattr(type(OPS["cos"]), "lower", fail)

    @jit
    def f(x: Any) -> Any:
        return x.cos() * 7.125

    with pytest.warns(FallbackWarning, match=r"\[cos\] has no lowering"):
        f(X)
    np.testing.assert_array_equal(f(X).numpy(), f.__wrapped__(X).numpy())
    assert f.stats.fallbacks == 2


def test_bad_arguments_of_jit() -> None:
    with pytest.raises(TypeError, match=r"\[jit\] expected a function; got int"):
        jit(3)
    with pytest.raises(ValueError, match="expected fallback"):
        jit(lambda x: x, fallback="maybe")
    assert isinstance(jit(lambda x: x), JitFunction)


def test_arguments_are_not_kept_alive() -> None:
    @jit(fallback="error")
    def f(x: Any) -> Any:
        return x * 2

    import gc
    import weakref

    x = jg.ones(3)
    ref = weakref.ref(x._storage)
    f(x)
    f(x)
    del x
    gc.collect()
    assert ref() is None
