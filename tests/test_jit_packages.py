"""jit and code as packages are written: modules imported where they are used, loggers, variables of
the environment, configurations that are copied, functions that are asked for their attributes. None
of it ends a trace, and what is read is guarded.
"""

from __future__ import annotations

import builtins
import copy
import importlib
import importlib.util
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
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


class Finder:
    """An import hook that does what no trace could follow."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self.asked.append("{name}".format(**locals()))
        open(os.devnull).close()


def imported(x: Any) -> Any:
    import jg_first  # type: ignore[import-not-found]

    return x * jg_first.SCALE


def imported_by_name(x: Any) -> Any:
    return x * importlib.import_module("jg_first").SCALE


def not_there(x: Any) -> Any:
    try:
        import jg_nothing  # type: ignore[import-not-found] # noqa: F401
    except ImportError:
        return x * 2
    return x


def not_found(x: Any) -> Any:
    return x * 2 if importlib.util.find_spec("jg_nothing") is None else x


def found_and_imported(x: Any) -> Any:
    if importlib.util.find_spec("jg_first.part") is None:
        return x
    import jg_first

    return x * jg_first.SCALE


@pytest.mark.parametrize(
    "code", [imported, imported_by_name, not_there, not_found, found_and_imported]
)
def test_finders_of_modules_are_not_the_functions_code(
    code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jg_first"
    folder.mkdir()
    (folder / "__init__.py").write_text("SCALE = 2.0\n")
    (folder / "part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    f = jit(code)
    try:
        for _ in range(4):
            assert f(X).tolist() == [2.0, 4.0, 6.0]
        assert set(finder.asked) & {"jg_first", "jg_nothing"}
        assert f.stats.hits >= 2 and f.stats.segments == 0, f.explain()
    finally:
        for name in ("jg_first", "jg_first.part"):
            sys.modules.pop(name, None)


def test_a_module_that_was_looked_for_is_loaded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = jit(not_found)
    check(f, [2.0, 4.0, 6.0], 1)
    (tmp_path / "jg_nothing.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        importlib.import_module("jg_nothing")
        check(f, [1.0, 2.0, 3.0], 2)
        assert "jg_nothing" in f.explain_last_miss()
    finally:
        sys.modules.pop("jg_nothing", None)


# -- modules that are named, not imported ----------------------------------------------------------
def by_function(x: Any) -> Any:
    return x * __import__("jg_named").SCALE


def by_function_with_names(x: Any) -> Any:
    return x * __import__("jg_named", None, None, ["SCALE"], 0).SCALE


def by_variable(x: Any, name: str = "jg_named") -> Any:
    return x * __import__(name).SCALE


def by_key(x: Any) -> Any:
    return x * sys.modules["jg_named"].SCALE


def by_local_key(x: Any) -> Any:
    from sys import modules

    return x * modules["jg_named"].SCALE if "jg_named" in sys.modules else x


def by_get(x: Any) -> Any:
    found: Any = sys.modules.get("jg_named", None)
    return x * found.SCALE


_aliased = __import__


def by_alias(x: Any) -> Any:
    return x * _aliased("jg_named").SCALE


def by_attribute(x: Any) -> Any:
    return x * getattr(builtins, "__import__")("jg_named").SCALE  # noqa: B009


def by_map(x: Any) -> Any:
    for module in map(__import__, ["jg_named"]):
        x = x * module.SCALE
    return x


def by_item(x: Any) -> Any:
    names = ["jg_named"]
    return x * __import__(names[0]).SCALE


def by_expression(x: Any, end: str = "named") -> Any:
    return x * __import__("jg_" + end).SCALE


def by_computed_key(x: Any, name: str = "jg_named") -> Any:
    return x * sys.modules[name].SCALE


def by_method(x: Any) -> Any:
    for module in map(sys.modules.get, ["jg_named"]):
        x = x * getattr(module, "SCALE", 0.0)
    return x


def by_walking(x: Any) -> Any:
    for module in list(sys.modules.values()):
        if module.__name__ == "jg_named":
            return x * module.SCALE
    return x


WHOLE = [by_function, by_function_with_names, by_variable, by_key, by_get]
FOLLOWED = [
    by_local_key, by_alias, by_attribute, by_map, by_item, by_expression, by_computed_key,
    by_method, by_walking,
]  # fmt: skip


@pytest.mark.parametrize("code", [*WHOLE, *FOLLOWED])
def test_modules_that_are_named(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of them is guarded; where jit cannot tell which they are, Python runs."""
    first: Any = ModuleType("jg_named")
    first.SCALE = 2.0
    monkeypatch.setitem(sys.modules, "jg_named", first)
    f = jit(code)
    for scale in (2.0, 3.0, 5.0):
        if scale == 5.0:
            second: Any = ModuleType("jg_named")
            second.SCALE = scale
            monkeypatch.setitem(sys.modules, "jg_named", second)
        else:
            first.SCALE = scale
        for _ in range(2):
            assert f(X).tolist() == [scale, 2 * scale, 3 * scale]
    if code in WHOLE:
        assert f.stats.traces == f.stats.hits == 3 and f.stats.segments == 0, f.explain()


def looked_for(x: Any) -> Any:
    return x * 2 if "jg_absent" in sys.modules else x


def asked_for(x: Any) -> Any:
    return x * 2 if sys.modules.get("jg_absent") else x


def imported_by_function(x: Any) -> Any:
    try:
        __import__("jg_absent")
    except ImportError:
        return x
    return x * 2


@pytest.mark.parametrize("code", [looked_for, asked_for, imported_by_function])
def test_modules_that_are_not_there_yet(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f = jit(code)
    check(f, [1.0, 2.0, 3.0], 1)
    monkeypatch.setitem(sys.modules, "jg_absent", ModuleType("jg_absent"))
    check(f, [2.0, 4.0, 6.0], 2)


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
