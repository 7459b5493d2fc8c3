"""Long compiles show progress where somebody looks, and say whether they paid."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

import jitgrad as jg
from jitgrad import compile_cost
from jitgrad.compiler import progress
from jitgrad.jit import jit
from jitgrad.runtime.knobs import knob


@pytest.fixture
def long(monkeypatch: Any) -> None:
    """Every compile is a long one."""
    monkeypatch.setattr(progress, "LONG", 0.0)
    monkeypatch.setattr(compile_cost, "LONG", 0.0)


def calls(count: int = 25) -> Any:
    f = jit(lambda x: (x @ x).sin() + x.sum(0), fallback="error", name="work")
    x = jg.randn(8, 8)
    for _ in range(count):
        f(x)
    return f


def test_progress_and_verdict(long: None, capsys: Any) -> None:
    with knob(log="progress", cache=False):
        f = calls()
    err = capsys.readouterr().err
    assert re.search(r"\[compile\] work: code of kernel 1 of \d+ \(\d+ s\)\n", err)
    assert "machine code of kernel 1 of" in err
    assert re.search(r"\[compile\] work: \d+ nodes became \d+ kernels, in \d+\.\d s\n", err)
    assert err.count("compiling took") == 1
    assert re.search(r"it pays after \d+ calls|it does not pay", err)
    assert f.stats.hits == 24


def test_nothing_is_shown_to_nobody(long: None, capsys: Any) -> None:
    with knob(cache=False):
        calls()
    assert capsys.readouterr().err == ""


def test_short_compiles_are_silent(capsys: Any) -> None:
    with knob(log="progress", cache=False):
        calls()
    assert capsys.readouterr().err == ""


def test_a_terminal_has_one_line(long: None, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with knob(cache=False):
        calls(1)
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "\r[compile] work: fuse" in err and err.endswith("s\x1b[K\n")


def test_verdicts() -> None:
    slow = compile_cost.verdict(3.0, 0.011, [0.001, 0.001, 0.5])
    assert slow.endswith("it pays after 300 calls") and "1.00 ms" in slow
    assert "does not pay" in compile_cost.verdict(3.0, 0.001, [0.002])
