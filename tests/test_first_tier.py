"""Every name of the first tier of the public API is where PyTorch has it, and can be called.

The list is first_tier.txt; what each of them does is tested elsewhere (tests/parity).
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import jitgrad

TEXT = (Path(__file__).parent / "first_tier.txt").read_text()
NAMES = {
    path: names.split() for path, names in re.findall(r"^\[(.*)\]\n([^\[]*)", TEXT, re.MULTILINE)
}
NOT_CALLED = {
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8",
    "bool", "half", "float", "double", "short", "int", "long", "complex64", "complex128",
    "__version__", "T", "mT", "H", "mH", "real", "imag", "shape", "ndim", "nbytes", "dtype",
    "device", "layout", "requires_grad", "is_leaf", "grad", "grad_fn", "data", "parametrize",
    "benchmark", "deterministic", "enabled", "matmul",
}  # fmt: skip


def places(path: str) -> list[Any]:
    if path == "functions and methods":
        return [jitgrad, jitgrad.Tensor]
    if path == "Tensor":
        return [jitgrad.Tensor]
    return [jitgrad if path == "top" else importlib.import_module(f"jitgrad.{path}")]


@pytest.mark.parametrize("path", NAMES)
def test_names(path: str) -> None:
    names = NAMES[path]
    assert names and len(names) == len(set(names))
    for where in places(path):
        assert [name for name in names if not hasattr(where, name)] == []
        called = set(names) - NOT_CALLED
        assert [name for name in called if not callable(getattr(where, name))] == []


@pytest.mark.parametrize("path", NAMES)
def test_each_has_words(path: str) -> None:
    """A docstring, for what is called and is no operator."""
    called = {name for name in NAMES[path] if not name.startswith("__")} - NOT_CALLED
    for where in places(path):
        assert [name for name in called if not inspect.getdoc(getattr(where, name))] == []


def test_modules_that_are_called() -> None:
    assert callable(jitgrad.jit) and callable(jitgrad.export)
