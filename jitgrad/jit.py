"""@jit, and torch.compile's and torch.jit's names for it.

Owns `jit`, `disable_jit`, `compile`, `script`, `trace`. The function that @jit makes is
jit_function.py. What jit promises: docs/jit.md.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from typing import Final as Final

from jitgrad import scripting
from jitgrad.callable_module import make_callable
from jitgrad.effects import is_module
from jitgrad.jit_function import JitFunction as JitFunction
from jitgrad.jitted_module import jitted_module
from jitgrad.missing import names_module, no_such
from jitgrad.runtime.knobs import knob
from jitgrad.scripting import Attribute as Attribute
from jitgrad.scripting import RecursiveScriptModule as RecursiveScriptModule
from jitgrad.scripting import ScriptFunction as ScriptFunction
from jitgrad.scripting import ScriptModule as ScriptModule
from jitgrad.scripting import _overload as _overload
from jitgrad.scripting import _overload_method as _overload_method
from jitgrad.scripting import _script_if_tracing as _script_if_tracing
from jitgrad.scripting import annotate as annotate
from jitgrad.scripting import export as export
from jitgrad.scripting import freeze as freeze
from jitgrad.scripting import ignore as ignore
from jitgrad.scripting import interface as interface
from jitgrad.scripting import is_scripting as is_scripting
from jitgrad.scripting import is_tracing as is_tracing
from jitgrad.scripting import load as load
from jitgrad.scripting import optimize_for_inference as optimize_for_inference
from jitgrad.scripting import optimized_execution as optimized_execution
from jitgrad.scripting import save as save
from jitgrad.scripting import script_if_tracing as script_if_tracing
from jitgrad.scripting import script_method as script_method
from jitgrad.scripting import set_fusion_strategy as set_fusion_strategy
from jitgrad.scripting import unused as unused
from jitgrad.static_arguments import StaticFunction


def jit(
    function: Any = None,
    *,
    fallback: str | None = None,
    pure: bool = False,
    check: bool = False,
    segments: bool | None = None,
    name: str | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    dynamic: bool | None = None,
    dynamic_shapes: Any = None,
    memory_limit: int | None = None,
    cuda_graphs: bool = False,
) -> Any:
    """Compiles a function (decorator), or a Module (a wrapper with the same state).

    The first call of each signature runs eagerly and is recorded; later calls run compiled code
    that does what the eager function would have done: same results, same in-place writes, same
    `.grad`s. What cannot be compiled runs eagerly, with a warning that says why.

    Args:
        fallback: "warn", "error" or "silent" when a call runs eagerly; default JITGRAD_FALLBACK.
        pure: Python side effects (print, counters) may be skipped.
        check: each call also runs the references, and raises naming the first op that differs.
        segments: whether calls that cannot be one graph (Python effects, values that Python reads)
            run as compiled segments, with Python between them; False: they run eagerly. Default
            JITGRAD_SEGMENTS.
        name: in reports and in the graph.
        static_argnums, static_argnames: arguments (positions, names) that code is made for, value
            by value; they must be hashable.
        dynamic: which sizes of arguments one recording serves: None, those of which a second value
            was seen; True, all; False, none.
        dynamic_shapes: sizes that are declared to differ, by argument, as torch.export takes them:
            `{"x": {0: Dim("batch", min=1, max=64)}}`.
        memory_limit: the most bytes that temporaries of a compiled call may take. What does not
            fit otherwise is computed again where it is needed again, with the same bits.
        cuda_graphs: on a GPU, launches of calls that use the same memory again are replayed as one
            (mode="reduce-overhead" of `compile`).

    Raises TypeError for what cannot be called and a memory_limit that is no number, ValueError for
    one below 0; calls raise MemoryLimitError, naming the largest tensors, where the limit cannot be
    kept.
    """
    if function is None:
        return functools.partial(
            jit, fallback=fallback, pure=pure, check=check, segments=segments, name=name,
            static_argnums=static_argnums, static_argnames=static_argnames, dynamic=dynamic,
            dynamic_shapes=dynamic_shapes, memory_limit=memory_limit, cuda_graphs=cuda_graphs,
        )  # fmt: skip
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError("[jit] expected a function; put @jit below @staticmethod or @classmethod")
    options: dict[str, Any] = {
        "fallback": fallback, "pure": pure, "check": check, "segments": segments, "name": name,
        "dynamic": dynamic, "dynamic_shapes": dynamic_shapes, "memory_limit": memory_limit,
        "cuda_graphs": cuda_graphs,
    }  # fmt: skip
    if static_argnums is not None or static_argnames is not None:
        if is_module(function):
            function, options["name"] = function.__call__, name or type(function).__name__
        return StaticFunction(function, static_argnums, static_argnames, options)
    if is_module(function):
        options["name"] = name or type(function).__name__
        return jitted_module(function, JitFunction, options)
    return JitFunction(function, **options)


@contextmanager
def disable_jit() -> Iterator[None]:
    """Inside, functions under @jit run eagerly (in this thread)."""
    with knob(jit=False):
        yield


# -- torch.compile and torch.jit ------------------------------------------------------------------
_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_GRAPHS = ("reduce-overhead", "max-autotune")
_EAGER_BACKENDS = ("eager", "aot_eager")


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    **jit_options: Any,
) -> Any:
    """`jit`, with torch.compile's arguments (and jit's own beside them).

    Args:
        fullgraph: what cannot be compiled as one graph raises (fallback="error", segments=False).
        dynamic: as jit's.
        backend: "inductor" (the default) is jitgrad's compiler; "eager" and "aot_eager" leave
            functions as they are.
        mode: one of PyTorch's words: "reduce-overhead" and "max-autotune" replay CUDA graphs on a
            GPU; else they choose nothing.
        options: there are none.
        disable: leaves functions as they are.

    Raises RuntimeError for another backend, mode or option.
    """
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if mode not in _MODES:
        raise RuntimeError(f"[compile] expected mode in {_MODES}; got {mode!r}")
    if options:
        raise RuntimeError(
            f"[compile] expected no options: there are none of {sorted(options)}; see jitgrad.jit"
        )
    if backend not in (None, "inductor", *_EAGER_BACKENDS):
        raise RuntimeError(
            f"[compile] expected backend 'inductor' (jitgrad's compiler), 'eager' or 'aot_eager'; "
            f"got {backend!r}"
        )
    if fullgraph:
        jit_options.setdefault("fallback", "error")
        jit_options.setdefault("segments", False)
    if mode in _GRAPHS:
        jit_options.setdefault("cuda_graphs", True)
    if disable or backend in _EAGER_BACKENDS:
        return (lambda function: function) if model is None else model
    return jit(model, dynamic=dynamic, **jit_options)


def script(
    obj: Any, optimize: Any = None, _frames_up: int = 0, _rcb: Any = None,
    example_inputs: Any = None,
) -> Any:  # fmt: skip
    """jit(obj): functions and Modules are compiled as Python. Classes come back as they are."""
    return obj if isinstance(obj, type) else jit(obj)


def trace(func: Any, example_inputs: Any = None, **options: Any) -> Any:
    """jit(func): what depends on Python values is guarded, so no examples are needed.

    Options are torch.jit.trace's; they choose nothing.
    """
    return jit(func)


def trace_module(mod: Any, inputs: Any, **options: Any) -> Any:
    """jit(mod)."""
    return jit(mod)


def __getattr__(name: str) -> Any:
    if name == "isinstance":  # not bound here, where the builtin is used
        return scripting.isinstance_
    raise no_such(__name__, name)


_LISTS = {f"BroadcastingList{n}": list for n in (1, 2, 3, 4, 5, 6)}
globals()["annotations"] = names_module(  # what __future__ brought is not asked for
    f"{__name__}.annotations",
    {**{n: getattr(typing, n) for n in ("Any", "Dict", "List", "Optional", "Tuple")}, **_LISTS},
    "Names of torch.jit.annotations: Python's own types.",
)

__all__ = ["JitFunction", "compile", "disable_jit", "jit", "script", "trace"]

make_callable(__name__, jit)  # `@jitgrad.jit`, also once this module hides the function
