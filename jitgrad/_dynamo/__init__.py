"""Names of torch._dynamo that programs use: there is no rewriting of bytecode to configure."""

from __future__ import annotations

from typing import Any

from jitgrad._dynamo import config as config
from jitgrad.compiling import allow_in_graph as allow_in_graph
from jitgrad.compiling import disable as disable
from jitgrad.compiling import is_compiling as is_compiling
from jitgrad.compiling import list_backends as list_backends
from jitgrad.compiling import reset as reset
from jitgrad.jit import compile as _compile
from jitgrad.missing import missing


def optimize(backend: Any = "inductor", *, nopython: bool = False, **options: Any) -> Any:
    """A decorator: compile(backend=..., fullgraph=nopython)."""
    return lambda function: _compile(function, backend=backend, fullgraph=nopython, **options)


def mark_dynamic(t: Any, index: Any, **bounds: Any) -> None:
    """Nothing: each new shape is compiled for itself."""


maybe_mark_dynamic = mark_static = mark_dynamic


__getattr__ = missing(__name__)
