"""Names of torch.jit that describe code to TorchScript's compiler. There is none: they say no, or
give back what they got.

Owns what needs no @jit; `script` and `trace` are jit.py's, where all of these names are found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from jitgrad.runtime.errors import ArtifactError

F = TypeVar("F")


def is_scripting() -> bool:
    """False: code always runs as Python."""
    return False


def is_tracing() -> bool:
    """False: code always runs as Python."""
    return False


def unused(fn: F) -> F:
    """fn: nothing is left out."""
    return fn


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """A decorator that gives back the function, with or without arguments."""
    return drop if callable(drop) else lambda fn: fn


def export(fn: F) -> F:
    """fn: methods need no mark to be called."""
    return fn


def script_method(fn: F) -> F:
    """fn."""
    return fn


def interface(obj: F) -> F:
    """obj: Python's own classes are used."""
    return obj


def script_if_tracing(fn: F) -> F:
    """fn: functions called while another is recorded are recorded with it."""
    return fn


_script_if_tracing = script_if_tracing


def _overload(fn: F) -> F:
    """fn: Python tells overloads apart by their arguments."""
    return fn


_overload_method = _overload


def annotate(the_type: Any, the_value: F) -> F:
    """the_value."""
    return the_value


def isinstance_(obj: Any, target_type: Any) -> bool:
    """isinstance(obj, target_type), the type as an annotation of containers allowed."""
    return isinstance(obj, getattr(target_type, "__origin__", None) or target_type)


class Attribute:
    """A value and its type."""

    def __init__(self, value: Any, type: Any) -> None:
        self.value, self.type = value, type


def freeze(mod: F, preserved_attrs: Any = None, optimize_numerics: bool = True) -> F:
    """mod: compiled code reads its parameters at each call."""
    return mod


def optimize_for_inference(mod: F, other_methods: Any = None) -> F:
    """mod."""
    return mod


@contextmanager
def optimized_execution(should_optimize: bool) -> Iterator[None]:
    """A context that changes nothing."""
    yield


def set_fusion_strategy(strategy: Any) -> list[Any]:
    """Nothing to set: kernels are fused always. Returns the strategy from before: none."""
    return []


class ScriptModule:
    """The class of TorchScript's modules: nothing is one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "[jit.ScriptModule] expected a Module without TorchScript; derive from nn.Module and "
            "compile it with jitgrad.jit"
        )


class RecursiveScriptModule(ScriptModule):
    """The class of TorchScript's compiled modules: nothing is one."""


class ScriptFunction(ScriptModule):
    """The class of TorchScript's functions: nothing is one."""


def save(m: Any, f: Any, _extra_files: Any = None) -> None:
    """Writes what `jitgrad.export` gave to a `.jgx` file. Raises RuntimeError for anything else:
    there is no TorchScript, and a graph needs example inputs."""
    if type(m).__name__ == "Exported" and type(m).__module__ == "jitgrad.exported":
        m.save(f)
        return
    raise RuntimeError(
        f"[jit.save] expected what jitgrad.export(model, *example_inputs) gives; got "
        f"{type(m).__name__}: there is no TorchScript; jitgrad.save(model.state_dict(), path) "
        "saves the weights"
    )


def load(f: Any, map_location: Any = None, _extra_files: Any = None, **kwargs: Any) -> Any:
    """What jit.save wrote: an Exported, to be called. Raises RuntimeError for other files:
    TorchScript archives hold code that jitgrad cannot run."""
    try:
        return sys.modules["jitgrad"].load_exported(f)
    except ArtifactError as error:
        raise RuntimeError(
            "[jit.load] expected a file by jit.save (of what jitgrad.export gave): there is no "
            "TorchScript to run an archive with; load a state_dict with jitgrad.load(path); "
            f"{error}"
        ) from error
