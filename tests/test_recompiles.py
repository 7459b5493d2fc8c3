"""Recordings that should not be: why, refused by no_recompile(), and warned of when many."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import jitgrad as jg
from jitgrad.jit import jit
from jitgrad.runtime.errors import CompileError, FallbackWarning
from jitgrad.runtime.knobs import knob


def test_no_recompile_names_the_cause() -> None:
    f = jit(lambda x, n=1: x * n)
    with jg.no_recompile(), pytest.raises(jg.RecompileError, match="not been recorded yet"):
        f(jg.ones(3))
    f(jg.ones(3))
    with jg.no_recompile():
        assert f(jg.ones(3)).tolist() == [1, 1, 1]
        with pytest.raises(RuntimeError, match=r"type of x: float32\[3\] -> float32\[4\].*Dim"):
            f(jg.ones(4))
        with pytest.raises(RuntimeError, match="structure of the arguments"):
            f(jg.ones(3), n=1)
    f(jg.ones(4))
    assert f.stats.traces == 2
    g = jit(lambda x, n: x * n)
    g(jg.ones(3), 1)
    with jg.no_recompile(), pytest.raises(RuntimeError, match="n.*1.*2.*number"):
        g(jg.ones(3), 2)


def test_no_recompile_leaves_what_runs_eagerly() -> None:
    f = jit(lambda x: x * id(x) * 0 + x.sum().item(), fallback="silent")
    f(jg.ones(3))
    with jg.no_recompile():
        before = f.stats.traces
        try:
            f(jg.ones(3))
        except jg.RecompileError:
            pytest.fail("what runs eagerly by decision is not recorded")
        assert f.stats.traces == before


@pytest.mark.parametrize(("calls", "cause", "advice"), [
    ([(jg.ones(i), 1) for i in range(2, 14)], r"type of x: float32\[\d+\]", "Dim"),
    ([(jg.ones(3), i) for i in range(12)], r"n == 7 .*n = 8", "0-d tensor"),
    ([(jg.ones(3), str(i)) for i in range(12)], r"n: '7' -> '8'", "argument"),
])  # fmt: skip
def test_a_storm_warns_once_with_cause_and_way_out(calls: Any, cause: str, advice: str) -> None:
    f = jit(lambda x, n: x * len(str(n)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, n in calls:
            f(x, n)
    storms = [str(w.message) for w in caught if w.category is FallbackWarning]
    if f.stats.traces < 9:
        pytest.skip("sizes became symbolic before it was a storm")
    assert len(storms) == 1 and advice in storms[0]
    import re

    assert re.search(cause, storms[0]) and "9th time" in storms[0]


def test_logging_of_recompiles(capsys: Any) -> None:
    f = jit(lambda x: x + 1, name="adder")
    with knob(log="recompiles"):
        f(jg.ones(3)), f(jg.ones(3).double())
    err = capsys.readouterr().err
    assert "[jit] adder is recorded anew: 0: type of x: float32[3] -> float64[3]" in err


def test_bytes_of_code_are_counted() -> None:
    f = jit(lambda x: (x.exp() * 2).sum())
    assert f.stats.bytes == 0
    f(jg.ones(300)), f(jg.ones(300))
    held = f.stats.bytes
    assert 500 < held < 200_000
    w = jg.ones(3, requires_grad=True)
    f(w).backward()
    f(w).backward()
    assert f.stats.bytes > held
    f.clear()
    assert f.stats.bytes == 0


def test_past_the_limit_each_signature_runs_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitgrad.jit_function.MAX_SPECIALISATIONS", 2)
    f = jit(lambda x: x * 2 + 1, fallback="error")
    dtypes = [jg.float32, jg.float64, jg.int64, jg.int32, jg.int16]
    for _ in range(3):
        for dtype in dtypes:
            found = f(jg.ones(2, dtype=dtype))
            assert found.dtype is dtype and found.tolist() == [3, 3]
    assert f.stats.fallbacks == 0 and f.stats.segments == 3  # met for the third time


def test_past_the_limit_each_signature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitgrad.jit_function.MAX_SPECIALISATIONS", 2)
    f = jit(lambda x: x * 2, fallback="error", segments=False)
    f(jg.ones(2)), f(jg.ones(2).double())
    for dtype in (jg.int64, jg.int32, jg.int64):
        with pytest.raises(CompileError, match="it has 2 specialisations already"):
            f(jg.ones(2, dtype=dtype))
    assert f(jg.ones(2)).tolist() == [2, 2]
    f = jit(lambda x: x * 2, segments=False)
    f(jg.ones(2)), f(jg.ones(2).double())
    with pytest.warns(FallbackWarning, match="it has 2 specialisations already"):
        f(jg.ones(2, dtype=jg.int64))
    for dtype in (jg.int32, jg.int64):
        assert f(jg.ones(2, dtype=dtype)).tolist() == [2, 2]
    assert f.stats.fallbacks == 3
