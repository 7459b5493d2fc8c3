"""doctor() and `python -m jitgrad doctor`: what works here, and the way out of what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jitgrad as jg
from jitgrad import doctoring
from jitgrad.command_line import main
from jitgrad.doctoring import FAULT, LIMIT, OK
from jitgrad.runtime.knobs import knob


def test_a_machine_that_works() -> None:
    found = jg.doctor()
    assert found.ok and found["compiling"].state == OK and "ms" in found["compiling"].text
    text = str(found)
    for word in (
        "jitgrad",
        "Python",
        "NumPy",
        "llvmlite",
        "vectors of",
        "entries",
        "linker",
        "GPU",
    ):
        assert word in text
    assert text.endswith("everything works")
    with pytest.raises(KeyError):
        found["astrology"]


def test_what_does_not_work_says_so(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(doctoring, "find_linker", lambda: None)
    monkeypatch.setattr(doctoring, "_version_of", lambda name: None)

    def broken() -> Any:
        raise OSError("no such machine")

    monkeypatch.setattr(doctoring, "host", broken)
    with knob(cache=False):
        found = jg.doctor()
    assert not found.ok
    assert found["linker"].state == LIMIT and "ziglang" in found["linker"].advice
    assert found["LLVM"].state == FAULT and "pip install llvmlite" in found["LLVM"].advice
    assert found["cpu"].state == FAULT and "no such machine" in found["cpu"].text
    assert found["cache"].state == LIMIT and "!! " in str(found)


def test_the_command(capsys: Any) -> None:
    assert main(["doctor"]) == 0
    assert "compiled in" in capsys.readouterr().out


def test_a_fault_is_an_exit_status(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(doctoring, "_version_of", lambda name: None)
    assert main(["doctor"]) == 2
    assert "does not work" in capsys.readouterr().err
