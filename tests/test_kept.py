"""What compiled code keeps of parameters between calls: made when it must be, and never old."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn as nn
from jitgrad.runtime import buffers, load


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(70, 50), nn.ReLU(), nn.Linear(50, 33))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 20, 3, padding=1),
        nn.Conv2d(20, 17, 1), nn.Conv2d(17, 5, 3, stride=2),
    )  # fmt: skip


CASES = [
    (linear, (9, 70), 2),
    (convolutions, (2, 3, 15, 14), 3),
]


def expected(model: Any, x: Any) -> np.ndarray[Any, Any]:
    with jg.no_grad(), jg.disable_jit():
        return np.array(model(x).tolist(), np.float32)


class Counted:
    """A model under jit, and how often what it keeps was made."""

    def __init__(self, model: Any, x: Any) -> None:
        self.model, self.x = model, x
        self.function = jg.jit(lambda x: model(x), fallback="error")
        self.made = 0
        self()
        self()
        (spec,) = self.function.specialisations
        self.compiled = spec.compiled
        prepare = self.compiled.prepare

        def counted(arrays: Any) -> None:
            self.made += 1
            prepare(arrays)

        self.compiled.prepare = counted

    def __call__(self) -> np.ndarray[Any, Any]:
        with jg.no_grad():
            return np.array(self.function(self.x).tolist(), np.float32)

    def is_right(self) -> bool:
        wanted = expected(self.model, self.x)
        return bool(np.allclose(self(), wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max()))


@pytest.fixture(params=CASES, ids=["linear", "convolutions"])
def counted(request: Any) -> Counted:
    jg.manual_seed(0)
    make, shape, _ = request.param
    return Counted(make(), jg.randn(*shape))


@pytest.mark.parametrize(("make", "shape", "count"), CASES)
def test_weights_are_packed_once(make: Callable[[], Any], shape: Any, count: int) -> None:
    found = Counted(make(), jg.randn(*shape))
    assert found.compiled.image.n_once == count == len(found.compiled.image.kept)
    bits = [found().tobytes() for _ in range(3)]
    assert found.made == 0 and len(set(bits)) == 1
    assert found.is_right()


def test_weights_that_are_written_are_packed_again(counted: Counted) -> None:
    model = counted.model
    first = next(model.parameters())
    changes: list[Callable[[], Any]] = [
        lambda: first.mul_(1.5),
        lambda: first.data.add_(0.1),
        lambda: setattr(first, "data", first.data * 2),
        lambda: model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()}),
        lambda: first[0].zero_(),
    ]
    for change in changes:
        before, made = counted(), counted.made
        with jg.no_grad():
            change()
        assert counted.is_right() and counted.made == made + 1
        assert not np.array_equal(counted(), before)
        counted()
        assert counted.made == made + 1


def test_a_step_of_an_optimizer_is_seen(counted: Counted) -> None:
    optimizer = jg.optim.SGD(counted.model.parameters(), lr=0.1)

    @jg.jit(fallback="error")
    def train(x: Any) -> None:
        optimizer.zero_grad()
        counted.model(x).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        train(counted.x)
        assert counted.is_right()
    assert counted.made == 3


def test_another_parameter_in_its_place(counted: Counted) -> None:
    counted.model[0].weight = nn.Parameter(counted.model[0].weight.detach() * 3)
    assert counted.is_right()


def test_memory_that_numpy_sees_is_packed_at_every_call(counted: Counted) -> None:
    array = counted.model[0].weight.detach().numpy()
    assert counted.is_right()
    array *= 2  # nobody is told
    assert counted.is_right()
    made = counted.made
    counted()
    assert counted.made == made + 1


@pytest.mark.parametrize("of_storage", [False, True])
def test_memory_whose_address_is_known_is_packed_at_every_call(
    counted: Counted, of_storage: bool
) -> None:
    weight = counted.model[0].weight
    address = (weight.untyped_storage() if of_storage else weight).data_ptr()
    counted()
    ctypes.memset(address, 0, 4 * weight.numel())
    assert counted.is_right()


def test_memory_that_came_from_numpy_is_packed_at_every_call() -> None:
    array = np.ones((50, 70), np.float32)
    model = linear()
    model[0].weight = nn.Parameter(jg.from_numpy(array))
    counted = Counted(model, jg.randn(9, 70))
    array *= 2
    assert counted.is_right() and counted.made > 0


def test_parameters_that_a_graph_writes_or_learns_are_not_kept() -> None:
    model, x = linear(), jg.randn(9, 70)
    forward = jg.jit(lambda x: model(x), fallback="error")
    forward(x).sum().backward()  # with gradients

    @jg.jit(fallback="error")
    def write(x: Any) -> Any:
        with jg.no_grad():
            model[0].weight.mul_(0.5)
            return model(x)

    for f in (forward, write):
        f(x)
        f(x)
        kept = f.specialisations[-1].compiled.image.constants
        entries = f.specialisations[-1].trace.entries
        names = [entries[i].source.item.name for i in kept]
        assert not any("0" in n for n in names), names


def test_one_weight_of_two_layers_is_kept_once() -> None:
    layer = nn.Linear(64, 64)
    counted = Counted(nn.Sequential(layer, nn.Tanh(), layer), jg.randn(20, 64))
    assert counted.compiled.image.n_once == 1
    assert counted.is_right()


def test_what_is_kept_is_counted_and_freed() -> None:
    gc.collect()
    before = buffers.statistics.by_purpose.get("kept", 0)
    counted = Counted(linear(), jg.randn(9, 70))
    found = counted.compiled.report.kept
    assert found >= 4 * (70 * 50 + 50 * 33)
    assert buffers.statistics.by_purpose["kept"] == before + found
    counted.function.clear()
    del counted
    gc.collect()
    assert buffers.statistics.by_purpose["kept"] == before


def test_symbolic_rows_keep_weights_too() -> None:
    model = linear()
    f = jg.jit(lambda x: model(x), fallback="error", dynamic=True)
    for rows in (7, 9, 12, 30):
        x = jg.randn(rows, 70)
        with jg.no_grad():
            y = np.array(f(x).tolist(), np.float32)
        assert np.allclose(y, expected(model, x), atol=1e-5)
        with jg.no_grad():
            model[2].weight.mul_(1.1)
    assert f.specialisations[-1].compiled.image.n_once


def test_from_several_threads(counted: Counted) -> None:
    wanted = counted().tobytes()
    with jg.no_grad():
        counted.model[0].weight.mul_(1.0)  # made again, by whoever comes first
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            if counted().tobytes() != wanted:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("dtype", [jg.float64, jg.bfloat16, jg.float16])
def test_other_dtypes(dtype: Any) -> None:
    model = linear().to(dtype)
    x = jg.randn(9, 70).to(dtype)
    counted = Counted(model, x)
    assert counted.compiled.image.n_once == 2
    assert np.allclose(counted(), expected(model, x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("k", "n"), [(256, 256), (1000, 77), (300, 1), (9000, 70), (31, 1100)])
def test_one_row_has_the_bits_of_a_product_that_keeps_nothing(k: int, n: int) -> None:
    layer, x = nn.Linear(k, n, bias=False), jg.randn(1, k)
    counted = Counted(layer, x)
    assert counted.compiled.image.n_once == (k * n >= 1 << 15)
    given = jg.jit(lambda x, w: x @ w.mT, fallback="error")
    with jg.no_grad():
        given(x, layer.weight)  # which runs the references
        y = np.array(given(x, layer.weight).tolist(), np.float32)
    assert y.tobytes() == counted().tobytes() and counted.is_right()


def _packing(f: Any) -> tuple[int, int]:
    """How many rows pack what steps of loops share before the first step, and in the steps."""
    (spec,) = f.specialisations
    image = spec.compiled.image
    packs = {n for n, (_, symbol) in enumerate(image.kernels) if symbol.endswith("_pack_b")}
    rows = [row[0] in packs for row in image.launches]
    return sum(rows[: image.n_main]), sum(rows[image.n_main :])


def _scan(x: Any, w: Any) -> Any:
    return jg.scan(lambda h, x: (jg.tanh(x + h @ w), h.sum()), jg.zeros_like(x[0]), x)[0]


def _scan_in_scan(x: Any, w: Any) -> Any:
    def outer(h: Any, x: Any) -> Any:
        u = jg.tanh(h @ w) / 50
        return jg.scan(lambda h, _: (jg.tanh((h @ w) / 2 + h @ u), None), x, length=3)[0], h

    return jg.scan(outer, jg.ones_like(x[0]), x)[0]


def _while(x: Any, w: Any) -> Any:
    return jg.while_loop(
        lambda i, h: (i < 4) & ((h @ w).abs().max() < 1e6), lambda i, h: (i + 1, jg.tanh(h @ w)),
        (0, x[0]),
    )[1]  # fmt: skip


def _while_never(x: Any, w: Any) -> Any:
    return jg.while_loop(lambda h: h.abs().max() < 0, lambda h: (jg.tanh(h @ w),), (x[0],))[0]


@pytest.mark.parametrize(
    ("loop", "rows", "before", "inside"),
    [(_scan, 5, 1, 0), (_scan, 200, 1, 0), (_scan_in_scan, 200, 1, 2), (_while, 5, 2, 0),
     (_while_never, 7, 1, 0)],
)  # fmt: skip
def test_loops_pack_what_their_steps_share_before_the_first(
    loop: Callable[..., Any], rows: int, before: int, inside: int
) -> None:
    jg.manual_seed(1)
    f = jg.jit(loop, fallback="error")
    for k in range(4):
        x, w = jg.randn(6, rows, 200), jg.randn(200, 200) / 14
        with jg.disable_jit():
            wanted = np.array(loop(x, w).tolist(), np.float32)
        found = np.array(f(x, w).tolist(), np.float32)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=str(k))
    assert _packing(f) == (before, inside)


def test_what_a_step_makes_is_packed_in_the_step() -> None:
    x = jg.randn(4, 200, 200) / 14
    f = jg.jit(lambda x: jg.scan(lambda h, x: (jg.sin(h @ x), None), x[0], x)[0], fallback="error")
    for _ in range(3):
        found = np.array(f(x).tolist())
    with jg.disable_jit():
        h = x[0]
        for k in range(4):
            h = jg.sin(h @ x[k])
    np.testing.assert_allclose(found, np.array(h.tolist()), rtol=1e-4, atol=1e-5)
    assert _packing(f)[0] == 0


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_weights_are_packed_once_a_call(kind: Any) -> None:
    jg.manual_seed(2)
    model = kind(20, 150, batch_first=True)
    optimizer = jg.optim.SGD(model.parameters(), lr=0.05)
    x = jg.randn(7, 11, 20)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        return loss

    f = jg.jit(step, fallback="error")
    start = {k: v.clone() for k, v in model.state_dict().items()}
    found = [f(x).item() for _ in range(5)]
    model.load_state_dict(start)
    with jg.disable_jit():
        wanted = [step(x).item() for _ in range(5)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert _packing(f)[1] == 0


def test_exported_loops_pack_what_their_steps_share(tmp_path: Any) -> None:
    model = nn.LSTM(20, 150)
    x = jg.randn(7, 3, 20)
    jg.export(lambda x: model(x)[0], x).native(tmp_path / "lstm.so")
    loaded = load(tmp_path / "lstm.so")
    for k in (1.0, 0.5, 1.0):
        with jg.no_grad(), jg.disable_jit():
            wanted = np.array(model(x * k)[0].tolist())
        found = np.asarray(loaded((x * k).numpy()))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
