"""Names of torch._dynamo that programs use: there is no rewriting of bytecode to configure."""

from __future__ import annotations

from typing import Any

from jitgrad._dynamo import config as config
from jitgrad._dynamo import eval_frame as eval_frame
from jitgrad._dynamo import utils as utils
from jitgrad._dynamo.eval_frame import OptimizedModule as OptimizedModule
from jitgrad.compiling import allow_in_graph as allow_in_graph
from jitgrad.compiling import assume_constant_result as assume_constant_result
from jitgrad.compiling import disable as disable
from jitgrad.compiling import is_compiling as is_compiling
from jitgrad.compiling import list_backends as list_backends
from jitgrad.compiling import reset as reset
from jitgrad.dims import mark_dynamic as mark_dynamic
from jitgrad.dims import mark_static as mark_static
from jitgrad.jit import compile as _compile
from jitgrad.missing import missing, names_module


def optimize(backend: Any = "inductor", *, nopython: bool = False, **options: Any) -> Any:
    """A decorator: compile(backend=..., fullgraph=nopython)."""
    return lambda function: _compile(function, backend=backend, fullgraph=nopython, **options)


def maybe_mark_dynamic(t: Any, index: Any) -> None:
    """Nothing: sizes that change become symbolic by themselves."""


def mark_static_address(t: Any, guard: bool = True) -> None:
    """Nothing: compiled code reads captured tensors afresh at every call."""


class TransformGetItemToIndex:
    """A context in which `x[i]` takes 0-d tensors inside vmap, as it does here anyway."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class Unsupported(RuntimeError):
    """What PyTorch raises for code that it cannot compile. jit's errors are others."""


_trace_wrapped_higher_order_op = names_module(
    f"{__name__}._trace_wrapped_higher_order_op",
    {"TransformGetItemToIndex": TransformGetItemToIndex},
    "Names of torch._dynamo._trace_wrapped_higher_order_op.",
)
exc = names_module(f"{__name__}.exc", {"Unsupported": Unsupported}, "Names of torch._dynamo.exc.")

__getattr__ = missing(__name__)
