"""jit and code as packages are written: modules imported where they are used, loggers, variables of
the environment, configurations that are copied, functions that are asked for their attributes. None
of it ends a trace, and what is read is guarded.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.jit import JitFunction, jit
from jitgrad.runtime.knobs import knob

X = jg.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _strict() -> Any:
    with knob(fallback="error"):
        yield


def check(f: JitFunction, expected: list[float], traces: int) -> None:
    """Two calls give these numbers, from this many traces, one of them from compiled code."""
    before = f.stats.hits
    for _ in range(2):
        assert f(X).tolist() == expected
    assert f.stats.traces == traces, f.explain_last_miss()
    assert f.stats.hits > before and f.stats.segments == 0


def test_a_submodule_that_is_imported_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jg_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text("SCALE = 2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    package: Any = importlib.import_module("jg_package")

    def scaled(x: Any) -> Any:
        try:
            import jg_package.part  # type: ignore[import-not-found] # noqa: F401

            return x * package.part.SCALE
        except ImportError:
            return x

    try:
        f = jit(scaled)
        f(X)  # loads it; the next call is recorded
        check(f, [2.0, 4.0, 6.0], 2)
        package.part.SCALE = 3.0
        check(f, [3.0, 6.0, 9.0], 3)
    finally:
        for name in ("jg_package", "jg_package.part"):
            sys.modules.pop(name, None)


def test_attributes_that_functions_have_of_python() -> None:
    def helper(x: Any) -> Any:
        return x * 2

    helper.factor = None  # type: ignore[attr-defined]

    @jit
    def f(x: Any) -> Any:
        known = getattr(helper, "__annotations__", {})
        given = getattr(helper, "added", None)
        return helper(x) * len(known) if given is None else helper(x) * given

    check(f, [4.0, 8.0, 12.0], 1)
    helper.added = 5.0  # type: ignore[attr-defined]
    check(f, [10.0, 20.0, 30.0], 2)
    del helper.added  # type: ignore[attr-defined]
    check(f, [4.0, 8.0, 12.0], 2)


def test_levels_of_loggers() -> None:
    logger = logging.getLogger("jg.test_jit_packages")
    handler = logging.StreamHandler(sys.stdout)
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)

    @jit
    def f(x: Any) -> Any:
        if logger.level <= logging.DEBUG:
            return x * 3
        logger.debug("not shown")
        return x * 2

    try:
        check(f, [2.0, 4.0, 6.0], 1)
        logger.setLevel(logging.DEBUG)
        check(f, [3.0, 6.0, 9.0], 2)
    finally:
        logger.removeHandler(handler)


def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def f(x: Any) -> Any:
        if "JG_TEST_OTHER" in os.environ:
            return -x
        return x * float(os.environ.get("JG_TEST_SCALE", "1"))

    check(f, [1.0, 2.0, 3.0], 1)
    monkeypatch.setenv("JG_TEST_SCALE", "2")
    check(f, [2.0, 4.0, 6.0], 2)
    assert "JG_TEST_SCALE" in f.explain_last_miss()
    monkeypatch.setenv("JG_TEST_SCALE", "4")
    check(f, [4.0, 8.0, 12.0], 3)
    monkeypatch.setenv("JG_TEST_UNREAD", "4")
    check(f, [4.0, 8.0, 12.0], 3)
    monkeypatch.setenv("JG_TEST_OTHER", "")
    check(f, [-1.0, -2.0, -3.0], 4)
    monkeypatch.delenv("JG_TEST_OTHER")
    check(f, [4.0, 8.0, 12.0], 4)


class Config:
    def __init__(self) -> None:
        self.scale, self.sizes = 2.0, {"a": 1.0}


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy])
def test_a_configuration_that_is_copied_and_changed(copying: Any) -> None:
    config = Config()

    @jit
    def f(x: Any) -> Any:
        mine = copying(config)
        mine.scale = mine.scale + 1
        mine.extra = mine.sizes["a"]
        return x * mine.scale * mine.extra

    check(f, [3.0, 6.0, 9.0], 1)
    config.scale = 3.0
    check(f, [4.0, 8.0, 12.0], 2)
    config.sizes["a"] = 2.0
    check(f, [8.0, 16.0, 24.0], 3)
    assert not hasattr(config, "extra") and config.scale == 3.0


def test_many_names_asked_of_many_parameters() -> None:
    model = nn.ParameterList([nn.Parameter(jg.ones(())) for _ in range(300)])
    asked = "".join(f"    getattr(p, 'flag_{k}', None)\n" for k in range(80))
    names: dict[str, Any] = {}
    exec(f"def ask(p):\n{asked}    return getattr(p, 'scale', 1.0)\n", names)
    ask = names["ask"]

    @jit
    def f(x: Any) -> Any:
        return x * ask(model[0])

    check(f, [1.0, 2.0, 3.0], 1)
    model[1].unread = 3.0
    check(f, [1.0, 2.0, 3.0], 1)
    model[0].scale = 2.0
    check(f, [2.0, 4.0, 6.0], 2)
