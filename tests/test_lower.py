"""jit(f).lower(...): from shapes alone, without running; and static arguments."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import TensorSpec, nn, optim
from jitgrad.jit import jit
from jitgrad.runtime.errors import CompileError, FallbackWarning
from jitgrad.runtime.knobs import knob


@pytest.fixture(autouse=True)
def _strict() -> Any:
    with knob(fallback="error"):
        yield


def test_a_training_step_lowers_and_changes_nothing() -> None:
    jg.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    state = {k: v.clone() for k, v in model.state_dict().items()}
    seed, versions = jg.get_rng_state(), [p._version for p in model.parameters()]
    lowered = step.lower(TensorSpec((6, 4)), TensorSpec((6,), jg.int64))
    assert step.stats.traces == 0 and lowered.backward is None
    assert all(p.grad is None for p in model.parameters())
    assert [p._version for p in model.parameters()] == versions
    assert all(v.equal(state[k]) for k, v in model.state_dict().items())
    assert jg.get_rng_state().equal(seed)
    assert "arena" in lowered.memory_plan() and "define void" in lowered.llvm()
    assert "parallel for" in lowered.loops() and len(lowered.kernels) > 3
    assert "nodes" in lowered.explain() and "cross_entropy" not in repr(lowered)

    compiled = lowered.compile()
    x, y = jg.randn(6, 4), jg.arange(6) % 2
    losses = [compiled(x, y).item() for _ in range(4)]
    assert losses[-1] < losses[0] and (step.stats.traces, step.stats.hits) == (1, 3)
    assert step.specialisations[0].compiled.report.cached  # what was compiled before is found
    with pytest.raises(TypeError, match=r"expected TensorSpec\(\(6, 4\).*got TensorSpec\(\(3, 4\)"):
        compiled(x[:3], y[:3])
    with pytest.raises(TypeError, match="structure"):
        compiled(x)


def test_gradients_of_results() -> None:
    f = jit(lambda x, w: F.relu(x @ w).square().sum())
    lowered = f.lower(TensorSpec((3, 4)), TensorSpec((4, 5), requires_grad=True))
    assert lowered.backward is not None and "f_backward" not in str(lowered.graph)
    assert "for backward" in lowered.explain() and "matmul" in str(lowered.backward)
    lowered.compile()
    w = jg.randn(4, 5, requires_grad=True)
    for _ in range(2):
        f(jg.randn(3, 4), w).backward()
    assert w.grad is not None and f.specialisations[0].compiled.report.cached


def test_examples_keywords_containers_and_modules() -> None:
    x = jg.randn(2, 3)
    f = jit(lambda batch, scale=1.0: batch["x"] * scale + batch["y"])
    text = str(f.lower({"x": x, "y": TensorSpec((3,))}, scale=2.0))
    assert "float32[2, 3]" in text and "mul" in text
    layer = jit(nn.Linear(3, 2))
    assert "matmul" in str(layer.lower(TensorSpec((5, 3))))
    assert "float64[5, 3]" in str(jit(lambda x: x + 1).lower(TensorSpec((5, 3), jg.float64)))


def test_what_cannot_be_lowered() -> None:
    with pytest.raises(CompileError, match="value"):
        jit(lambda x: x if x.sum() > 0 else -x).lower(TensorSpec((3,)))
    with pytest.raises(CompileError, match="test_lower.py:.*item"):
        jit(lambda x: x * x.sum().item()).lower(TensorSpec((3,)))
    with pytest.raises(RuntimeError, match=r"\[matmul\]"):
        jit(lambda x: x @ x).lower(TensorSpec((3, 4)))
    with pytest.raises(TypeError, match="shape of integers"):
        TensorSpec((2.5,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dtype"):
        TensorSpec((2,), "float32")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="0 or more"):
        TensorSpec((-2,))


# -- static arguments ----------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    scale: float


def test_static_arguments_by_position_and_name() -> None:
    def f(x: Any, config: Config, *, mode: str = "up") -> Any:
        y = x * config.scale
        return y + config.width if mode == "up" else y - config.width

    fast = jit(f, static_argnums=1, static_argnames="mode")
    x = jg.randn(4)
    for _ in range(2):
        for config in (Config(1, 2.0), Config(1, 3.0)):
            for mode in ("up", "down"):
                np.testing.assert_array_equal(
                    fast(x, config, mode=mode).numpy(), f(x, config, mode=mode).numpy()
                )
    assert (fast.stats.traces, fast.stats.hits) == (4, 4)
    fast(x, Config(1, 2.0), mode="up")  # another object that is equal
    assert fast.stats.hits == 5 and len(fast.specialisations) == 4
    assert "f[" in str(fast.explain()) or "mul(" in str(fast.explain())
    assert "mul" in str(fast.lower(TensorSpec((4,)), Config(1, 2.0)))


def test_values_of_other_types_are_others() -> None:
    fast = jit(lambda x, n: x + n if type(n) is int else x * n - 1, static_argnums=(1,))
    x = jg.ones(2)
    assert [fast(x, n).tolist() for n in (1, 1.0, True, 1)] == [[2, 2], [0, 0], [0, 0], [2, 2]]
    assert fast.stats.traces == 3


def test_methods_defaults_and_negative_positions() -> None:
    class Scaler:
        @jit(static_argnames=("factor",))
        def run(self, x: Any, factor: float = 2.0) -> Any:
            return x * factor

    x = jg.ones(2)
    s = Scaler()
    got = [s.run(x), s.run(x, 3.0), s.run(x, factor=4.0), s.run(x)]
    assert [y[0].item() for y in got] == [2, 3, 4, 2]
    last = jit(lambda x, y, n: (x + y) * n, static_argnums=-1)
    assert last(x, x, 3)[0].item() == 6 and last(x, x, 3)[0].item() == 6
    assert last.stats.hits == 1


def test_static_arguments_that_cannot_be() -> None:
    fast = jit(lambda x, n: x, static_argnums=1)
    with pytest.raises(ValueError, match=r"static argument 1 .*hashable.*list: \[1\]"):
        fast(jg.ones(2), [1])
    with pytest.raises(ValueError, match="tensor float32"):
        fast(jg.ones(2), jg.ones(2))
    with pytest.raises(ValueError, match="static_argnames has 'm'"):
        jit(lambda x, n: x, static_argnames="m")
    with pytest.raises(ValueError, match="static_argnums has 5"):
        jit(lambda x, n: x, static_argnums=5)
    with pytest.raises(TypeError, match="integers"):
        jit(lambda x, n: x, static_argnums="n")


def test_many_values_drop_the_oldest_and_say_so(monkeypatch: Any) -> None:
    from jitgrad import static_arguments

    monkeypatch.setattr(static_arguments, "MAX_VALUES", 3)
    fast = jit(lambda x, n: x * n, static_argnums=1)
    x = jg.ones(2)
    with pytest.warns(FallbackWarning, match="more than 3 values") as caught:
        for n in range(6):
            assert fast(x, n)[0].item() == n
    assert len(caught) == 1 and fast.stats.traces == 6
    gc.collect()
    assert len(fast.specialisations) == 3


def test_declared_sizes_are_symbolic() -> None:
    """As in calls: by name, all of them, or marked. The code serves all sizes."""

    def f(x: Any, w: Any) -> Any:
        return F.conv2d(x, w).relu().sum(1)

    fast = jit(f, dynamic_shapes={"x": {0: jg.Dim("n"), 2: jg.Dim("h")}})
    w = jg.randn(5, 3, 3, 3)
    lowered = fast.lower(TensorSpec((4, 3, 8, 9)), w)
    assert lowered.graph.env.hints == {"n": 4, "h": 8}
    run = lowered.compile()
    for n, h in ((6, 8), (6, 8), (3, 12)):
        x = jg.randn(n, 3, h, 9)
        assert jg.allclose(run(x, w), f(x, w), atol=1e-5)
    assert fast.stats.compiles == fast.stats.traces == 1 and fast.stats.hits == 2
    with pytest.raises(TypeError, match="as lowered"):
        run(jg.randn(4, 3, 8, 10), w)

    hints = jit(f, dynamic=True).lower(jg.randn(4, 3, 8, 9), w).graph.env.hints
    assert sorted(hints.values()) == [3, 4, 5, 8, 9]  # equal ones are one
    marked = jg.randn(4, 2)
    jg.mark_dynamic(marked, 0)
    assert len(jit(lambda x: x + 1).lower(marked).graph.env.hints) == 1
    fixing = jit(lambda x: x[: int(x.shape[0]) - 1], dynamic_shapes={"x": {0: jg.Dim("n")}})
    with pytest.raises(CompileError, match="declared to be dynamic, but code fixes"):
        fixing.lower(TensorSpec((4, 2)))
