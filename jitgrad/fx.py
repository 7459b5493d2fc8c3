"""Names of torch.fx that model code uses. There is no symbolic tracing: `jit` records."""

from __future__ import annotations

from typing import Any

from jitgrad.missing import missing, names_module


def wrap(fn_or_name: Any) -> Any:
    """fn_or_name: functions need no mark to be recorded. Raises RuntimeError for anything else."""
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError(
            "Unsupported type for global function! Must be either a callable or string name"
        )
    return fn_or_name


class Proxy:
    """A value of symbolic tracing: nothing is one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("[fx.Proxy] symbolic tracing is not there; use jitgrad.jit")


class GraphModule(Proxy):
    """A module made by symbolic tracing: nothing is one."""


class Node(Proxy):
    """A node of symbolic tracing: nothing is one."""


def get_proxy_mode() -> None:
    """None: no mode of symbolic tracing is on."""


proxy_tensor = names_module(
    f"{__name__}.experimental.proxy_tensor",
    {"get_proxy_mode": get_proxy_mode},
    "Names of torch.fx.experimental.proxy_tensor.",
)
experimental = names_module(
    f"{__name__}.experimental", {"proxy_tensor": proxy_tensor}, "Names of torch.fx.experimental."
)

__getattr__ = missing(__name__, "symbolic tracing is not there; use jitgrad.jit (docs/jit.md)")
