"""Environment variables: parsing, errors, overrides, and their table for the docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import typing
import warnings

import pytest

from jitgrad.runtime import knobs as module
from jitgrad.runtime.knobs import TABLE, Knobs, knob, knobs, markdown, read


def test_defaults():
    values = read({})
    assert values["jit"] is True and values["fallback"] == "warn" and values["eager"] == "auto"
    assert values["dump"] == values["log"] == frozenset()
    assert values["verify"] is False and values["cache"] is True
    assert values["cache_size"] == 2**30 and values["num_threads"] is None
    assert values["opt"] == "2"


@pytest.mark.parametrize(
    "variable, text, value",
    [
        ("JIT", "0", False),
        ("JIT", "off", False),
        ("VERIFY", "1", True),
        ("VERIFY", "True", True),
        ("FALLBACK", "error", "error"),
        ("EAGER", "numpy", "numpy"),
        ("DUMP", "graph, llvm", {"graph", "llvm"}),
        ("DUMP", "", frozenset()),
        ("LOG", "recompiles", {"recompiles"}),
        ("CACHE_SIZE", "512M", 512 << 20),
        ("CACHE_SIZE", "1.5GiB", 3 << 29),
        ("CACHE_SIZE", "1000", 1000),
        ("CACHE_DIR", "/x/y", "/x/y"),
        ("NUM_THREADS", "3", 3),
        ("CPU", "znver3", "znver3"),
        ("OPT", "0", "0"),
    ],
)
def test_values(variable, text, value):
    assert read({"JITGRAD_" + variable: text})[variable.lower()] == value


@pytest.mark.parametrize(
    "variable, text, expected",
    [
        ("JIT", "maybe", "0 or 1"),
        ("FALLBACK", "raise", "warn or error or silent"),
        ("DUMP", "graph,grpah", "graph,fused,plan,loops,llvm,asm"),
        ("CACHE_SIZE", "big", "bytes; 512M, 2G"),
        ("CACHE_SIZE", "-1", "bytes; 512M, 2G"),
        ("NUM_THREADS", "two", "a number"),
        ("NUM_THREADS", "-2", "a number above 0"),
        ("NUM_THREADS", "0", "a number above 0"),
        ("OPT", "9", "0 or 1 or 2 or 3"),
    ],
)
def test_bad_values(variable, text, expected):
    pattern = re.escape(f"JITGRAD_{variable}={text!r}: expected") + ".*" + re.escape(expected)
    with pytest.raises(ValueError, match=pattern):
        read({"JITGRAD_" + variable: text})


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_an_empty_variable_is_as_none(entry):
    assert read({entry.variable: ""}) == read({})


def test_a_cpu_that_llvm_does_not_know_is_refused_before_llvm_ends_the_process():
    host = pytest.importorskip("jitgrad.compiler.codegen.target").host
    with knob(cpu="no-such-cpu"), pytest.raises(ValueError, match="JITGRAD_CPU='no-such-cpu': exp"):
        host()
    known = "x86-64-v3" if host().arch in ("x86_64", "amd64") else "generic"
    with knob(cpu=known):
        assert host().cpu == known


def test_a_misspelt_variable_is_reported():
    with pytest.warns(UserWarning, match="JITGRAD_FALBACK is no variable.*JITGRAD_FALLBACK"):
        read({"JITGRAD_FALBACK": "error"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read({"PATH": "/bin", "OTHER_JITGRAD_X": "1"})


def test_a_bad_variable_stops_the_import():
    done = subprocess.run(
        [sys.executable, "-c", "import jitgrad.runtime.knobs"],
        env={**os.environ, "JITGRAD_FALLBACK": "never"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "JITGRAD_FALLBACK='never': expected warn or error or silent" in done.stderr


def test_override():
    before = knobs.fallback, knobs.dump
    with knob(fallback="silent", dump="graph,asm"):
        assert knobs.fallback == "silent" and knobs.dump == {"graph", "asm"}
        with knob(fallback="warn", dump=["llvm"]):
            assert knobs.fallback == "warn" and knobs.dump == {"llvm"}
        assert knobs.fallback == "silent"
        with pytest.raises(KeyError), knob(fallback="error"):
            raise KeyError
        assert knobs.fallback == "silent"
    assert (knobs.fallback, knobs.dump) == before


def test_override_holds_for_its_thread_only():
    seen = []
    with knob(verify=True, jit=False):
        thread = threading.Thread(target=lambda: seen.append((knobs.verify, knobs.jit)))
        thread.start()
        thread.join()
    assert seen == [(module._process_values["verify"], module._process_values["jit"])]


def test_bad_overrides():
    with pytest.raises(TypeError, match="there is no knob 'fallbck'"), knob(fallbck="x"):
        pass
    with pytest.raises(ValueError, match="JITGRAD_FALLBACK='x': expected warn"), knob(fallback="x"):
        pass
    with pytest.raises(ValueError, match="jit=3: expected 0 or 1"), knob(jit=3):
        pass
    with pytest.raises(ValueError, match="num_threads"), knob(num_threads=-1):
        pass
    assert knobs.jit == module._process_values["jit"]


def test_every_knob_is_annotated_and_documented():
    assert list(typing.get_type_hints(Knobs)) == [entry.name for entry in TABLE]
    text = markdown()
    for entry in TABLE:
        assert entry.doc.endswith(".") and f"`{entry.variable}`" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1
