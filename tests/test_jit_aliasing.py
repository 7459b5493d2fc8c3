"""Tensors that are two storages on overlapping memory (from_numpy twice, DLPack, frombuffer), and
NumPy arrays that a function reads while a tensor on them is written: eager equals compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.runtime.errors import FallbackWarning
from jitgrad.runtime.knobs import knob

Make = Callable[[], tuple[jg.Tensor, jg.Tensor]]


def _array() -> np.ndarray:
    return np.arange(6, dtype=np.float32)


def _frombuffer() -> tuple[jg.Tensor, jg.Tensor]:
    data = bytearray(_array().tobytes())
    return jg.frombuffer(data, dtype=jg.float32), jg.frombuffer(data, dtype=jg.float32)


def _twice(make: Callable[[Any], jg.Tensor]) -> Make:
    def pair() -> tuple[jg.Tensor, jg.Tensor]:
        a = _array()
        return make(a), make(a)

    return pair


def _parts(first: slice, second: slice) -> Make:
    def pair() -> tuple[jg.Tensor, jg.Tensor]:
        a = _array()
        return jg.from_numpy(a[first]), jg.from_numpy(a[second])

    return pair


def _through_dlpack() -> tuple[jg.Tensor, jg.Tensor]:
    x = jg.arange(6.0)
    return x, jg.from_dlpack(x)


PAIRS: dict[str, Make] = {
    "from_numpy": _twice(jg.from_numpy),
    "as_tensor": _twice(jg.as_tensor),
    "dlpack": _twice(jg.from_dlpack),
    "tensor and dlpack": _through_dlpack,
    "frombuffer": _frombuffer,
    "parts that overlap": _parts(slice(0, 4), slice(2, 6)),
    "backwards": _parts(slice(0, 6), slice(5, None)),
    "numpy": lambda: (x := jg.arange(6.0), jg.from_numpy(x.numpy())),
    "apart": _parts(slice(0, 3), slice(3, 6)),
}


def write_then_read(x: Any, y: Any) -> Any:
    x.add_(1)
    return y * 2


def read_then_write(x: Any, y: Any) -> Any:
    out = y * 2
    x.mul_(3)
    return out


def write_both(x: Any, y: Any) -> Any:
    x.add_(1)
    y.mul_(2)
    return x + 0


def copy_over(x: Any, y: Any) -> Any:
    x[1:].copy_(y[:-1] if y.shape == x.shape else x[:-1])
    return x.sum() + y.sum()


FUNCTIONS = [write_then_read, read_then_write, write_both, copy_over]


def history(f: Callable[..., Any], calls: int, *args: Any) -> list[np.ndarray]:
    """Results of some calls, and what the tensors hold at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        out = [np.array(f(*args).numpy()) for _ in range(calls)]
    return [*out, *(np.array(x.numpy()) for x in args)]


def agree(eager: list[np.ndarray], compiled: list[np.ndarray]) -> None:
    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(autouse=True)
def _fallback_is_right_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JITGRAD_FALLBACK", raising=False)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", PAIRS)
def test_arguments(name: str, f: Callable[..., Any]) -> None:
    fast = jg.jit(f)
    agree(history(f, 3, *PAIRS[name]()), history(fast, 3, *PAIRS[name]()))
    if name == "apart":
        assert fast.stats.hits == 2


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", PAIRS)
def test_recorded_apart_called_overlapping(name: str, f: Callable[..., Any]) -> None:
    """What was compiled for separate memory is not used for memory that overlaps."""
    fast = jg.jit(f)
    x, y = PAIRS[name]()
    history(fast, 3, x.clone(), y.clone())
    assert fast.stats.hits == 2
    agree(history(f, 3, *PAIRS[name]()), history(fast, 3, x, y))
    x, y = PAIRS[name]()
    agree(history(f, 2, x.clone(), y.clone()), history(fast, 2, x.clone(), y.clone()))


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", PAIRS)
def test_captured(name: str, f: Callable[..., Any]) -> None:
    """One captured, the other passed; either is written; and both captured."""
    results = []
    for wrap in (lambda g: g, jg.jit):
        x, y = PAIRS[name]()
        found = history(wrap(lambda a, y=y: f(a, y)), 2, x)
        x, y = PAIRS[name]()
        found += history(wrap(lambda b, x=x: f(x, b)), 2, y)
        x, y = PAIRS[name]()
        found += history(wrap(lambda c, x=x, y=y: f(x, y) + c.sum()), 2, jg.zeros(2))
        results.append([*found, np.array(x.numpy()), np.array(y.numpy())])
    agree(*results)


BODIES: dict[str, Callable[[np.ndarray, Any], Any]] = {
    "copy, write": lambda a, x: (jg.tensor(a), x.add_(1))[0] * 2,
    "write, copy": lambda a, x: (x.add_(1), jg.tensor(a))[1] * 2,
    "write, share": lambda a, x: (x.add_(1), jg.from_numpy(a))[1] * 2,
    "share, write": lambda a, x: (jg.from_numpy(a), x.add_(1))[0] * 2,
    "share, write it": lambda a, x: (jg.from_numpy(a).add_(1), x * 2)[1],
    "share twice": lambda a, x: (jg.from_numpy(a).add_(1), jg.from_numpy(a) * 2 + x)[1],
    "share a part": lambda a, x: (jg.from_numpy(a)[2:], x[:4].zero_())[0] * 2,
    "as_tensor": lambda a, x: (jg.as_tensor(a), x.mul_(2))[0] + 1,
    "return the alias": lambda a, x: (x.add_(1), jg.from_numpy(a))[1],
    "Python reads": lambda a, x: (x.add_(1), x * float(a.sum()))[1],
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("passed", ["array captured", "array passed"])
def test_an_array_that_the_function_reads(name: str, passed: str) -> None:
    """x is on the array's memory, or is not at first and then is."""
    body = BODIES[name]
    results = []
    for wrap in (lambda g: g, jg.jit):
        found: list[np.ndarray] = []
        for shared in ((True,), (False, True), (False, True, False)):
            a = _array()
            if passed == "array captured":
                f = wrap(lambda x, a=a: body(a, x))
            else:
                inner = wrap(lambda a, x: body(a, x))
                f = lambda x, inner=inner, a=a: inner(a, x)  # noqa: E731
            for on_it in shared:
                x = jg.from_numpy(a) if on_it else jg.from_numpy(_array())
                found += [*history(f, 2, x), a.copy()]
            a[3] = -7.0  # and the array changes in between
            found += [*history(f, 2, jg.from_numpy(_array())), a.copy()]
        results.append(found)
    agree(*results)


class _Scaled(jg.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = _array()

    def forward(self, x: jg.Tensor) -> jg.Tensor:
        return x * jg.tensor(self.scale) + float(self.scale[1])


def _in_default(a: np.ndarray) -> Callable[[jg.Tensor], Any]:
    return lambda x, a=a: x * jg.tensor(a)


def _in_tuple(a: np.ndarray) -> Callable[[jg.Tensor], Any]:
    both = (1, (a, 2))
    return lambda x: x * jg.tensor(both[1][0])


def _in_closure(a: np.ndarray) -> Callable[[jg.Tensor], Any]:
    return lambda x: x * jg.tensor(a)


def _in_module(a: np.ndarray) -> Callable[[jg.Tensor], Any]:
    module = _Scaled()
    module.scale = a
    return module


def _as_argument(a: np.ndarray) -> Callable[[jg.Tensor], Any]:
    fast = jg.jit(lambda x, given: x * jg.tensor(given["a"]), fallback="error")
    return lambda x: fast(x, {"a": a})


@pytest.mark.parametrize("where", [_in_default, _in_tuple, _in_closure, _in_module, _as_argument])
def test_contents_of_arrays_that_change_between_calls(where: Callable[..., Any]) -> None:
    a, x = _array(), jg.ones(6)
    f = where(a)
    fast = f if where is _as_argument else jg.jit(f, fallback="error")
    for value in (3.0, 3.0, -1.0, 3.0):
        a[1] = value
        for _ in range(2):
            want = a + value if where is _in_module else a
            np.testing.assert_array_equal(fast(x).numpy(), want)


@knob(segments=False)
def test_a_large_array_as_an_argument_is_a_reason() -> None:
    """Its contents would be too much to compare at each call."""
    a = np.zeros(5000, np.float32)
    f = jg.jit(lambda x, a: x + jg.tensor(a))
    with pytest.warns(FallbackWarning, match=r"NumPy array of 20000 bytes.*from_numpy"):
        f(jg.ones(1), a)
    a[0] = 5
    assert f(jg.ones(1), a)[0].item() == 6


def test_a_hook_of_a_captured_view_is_honoured_where_its_base_is_an_argument():
    base = jg.nn.Parameter(jg.ones(4))
    part = base[1:]
    part.register_hook(lambda g: g * 10)
    f = jg.jit(lambda x: part[1:2], fallback="error")
    for _ in range(3):
        base.grad = None
        (f(base) * 1.5).sum().backward(retain_graph=True)
        assert base.grad.tolist() == [0, 0, 15, 0]


@pytest.mark.parametrize("write", [lambda a, w: a.copy_(w), lambda a, w: a.copy_(w * 2)])
def test_an_argument_that_takes_values_which_require_grad(write):
    w = jg.nn.Parameter(jg.tensor(3.0))
    f = jg.jit(lambda a: write(a, w), fallback="error")
    for k in range(3):
        eager, compiled = jg.zeros(3, 4), jg.zeros(3, 4)
        write(eager, w)
        f(compiled)
        assert compiled.requires_grad and not compiled.is_leaf, k
        (g,) = jg.autograd.grad(compiled.sum(), w)
        assert g == jg.autograd.grad(eager.sum(), w)[0]


def test_gradients_that_were_accumulated_inside_have_their_versions():
    w = jg.nn.Parameter(jg.ones(3))

    @jg.jit(fallback="error")
    def f():
        (w * 2).sum().backward()
        (w * 3).sum().backward()

    for _ in range(3):
        w.grad = None
        f()
        assert w.grad._version == 1 and w.grad.tolist() == [5, 5, 5]
