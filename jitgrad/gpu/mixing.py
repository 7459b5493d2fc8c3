"""Operands on different devices: what jitgrad's own code made on the CPU follows the others.

A composite makes ranges, masks and random numbers without asking where its arguments are. Where
such a tensor meets one on a GPU it is copied there. Where the user's own tensors are on different
devices (arguments of the function that was called, what its modules, optimizers and distributions
hold), the op raises an error that names that function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from jitgrad.compiler.ops.record import OPS, same_device_text
from jitgrad.runtime.userline import FOLDERS, with_line
from jitgrad.tensor import Tensor

_PREFIXES = tuple(f"{f}/" for f in FOLDERS)
_PACKAGE = __name__.split(".", maxsplit=1)[0]
_DEPTH = 4
_JIT = ("/jit_function.py", "/jitted_module.py", "/segmented.py")


def device_among(operands: Iterable[Any]) -> str | None:
    """The GPU that one of the operands is on, where others with dims are on the CPU; else None."""
    found, mixed = None, False
    for x in operands:
        if x._type.device != "cpu":
            found = x._type.device
        elif x._type.shape:
            mixed = True
    return found if mixed else None


def settled(op: Any, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """The operands on one device; None where they are, but for numbers on the CPU. Raises
    RuntimeError where they are the user's."""
    devices = {x._type.device for x in operands if x._type.device != "cpu"}
    away = [x for x in operands if x._type.device == "cpu" and x._type.shape]
    if len(devices) == 1 and not away:
        return None
    frames = _frames()
    if len(devices) > 1 or (not _made_inside(frames) and _are_given(away, frames)):
        devices.update(x._type.device for x in away)
        called = next((f for f in reversed(frames) if not _is_jit(f)), frames[0])
        raise with_line(RuntimeError(same_device_text(name_of(called) or op.name, devices)))
    (device,) = devices
    return tuple(
        [OPS["to_device"](x, device=device) if any(x is y for y in away) else x for x in operands]
    )


def _frames() -> list[FrameType]:
    """The frames of ours, up to that of the function that the user's code called."""
    frames = [sys._getframe(2)]
    while (back := frames[-1].f_back) is not None and back.f_code.co_filename.startswith(_PREFIXES):
        frames.append(back)
    return frames


def _arguments(frame: FrameType) -> list[Any]:
    """The values of a frame's arguments."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return [frame.f_locals.get(name) for name in code.co_varnames[:count]]


def _made_inside(frames: list[FrameType]) -> bool:
    """Whether a public function between the user's call and the op got tensors of the GPU only:
    what is on the CPU was then made in it, whatever else the user's call got (a Module with a mask
    on the CPU that it does not use). Public functions have wrappers, which keep their arguments.
    What calls a Module that has gone on says nothing: the Module's own tensors may be anywhere."""
    for frame in frames:
        given = _arguments(frame)
        if any(True for _ in _modules(given, _DEPTH)):
            return False
        if frame.f_code.co_flags & 12 != 12:  # not f(*args, **kwargs)
            continue
        tensors = list(_direct(given, _DEPTH))
        if tensors and not any(map(_is_away, tensors)):
            return True
    return False


def name_of(frame: FrameType) -> str:
    """What the user called: a function, a method or a module; "" for an operator."""
    code, variables = frame.f_code, frame.f_locals
    name = code.co_name
    if "<locals>" in code.co_qualname:  # a wrapper, or a method made for a record
        name = str(variables.get("name") or getattr(variables.get("function"), "__name__", ""))
    elif name.startswith("__"):
        owner = variables.get("self")
        return "" if owner is None or isinstance(owner, Tensor) else type(owner).__name__
    return "" if name.startswith(("<", "_")) else name


def _are_given(away: list[Tensor], frames: list[FrameType]) -> bool:
    """Whether tensors on the CPU are the user's: the function that was called got such a tensor,
    whatever became of it, or a Module that was called holds them or gave one to a function."""
    given = [_without_host_arguments(f, _arguments(f)) for f in frames]
    if any(_is_away(x) for x in _direct(given[-1], _DEPTH)):
        return True
    modules = list(_modules(given, _DEPTH + 1))
    held = {id(x._storage) for module in modules for x in module.parameters()}
    held.update(id(x._storage) for module in modules for x in module.buffers())
    if not held:
        return False
    used = [*away, *(x for x in _direct(given, 3) if _is_away(x))]
    return any(id(x._storage) in held for x in used)


def _is_away(x: Tensor) -> bool:
    """Whether a tensor is on the CPU, and no number."""
    return x._type.device == "cpu" and bool(x._type.shape)


def _is_jit(frame: FrameType) -> bool:
    """Whether a frame is jit's, on the way to what it was made of."""
    return frame.f_code.co_filename.endswith(_JIT)


def _without_host_arguments(frame: FrameType, given: list[Any]) -> list[Any]:
    """The arguments of a function, or of a module's forward, of this frame or that it wraps,
    without those that may be on the CPU (functions.args.takes_on_host)."""
    variables = frame.f_locals
    owner, args = variables.get("self"), variables.get("args")
    cls: Any = type(owner)
    function = cls.forward if _is_module(owner) else variables.get("function")
    names = getattr(function, "on_host", ())
    if not names or function is None:
        return given
    if args is None:
        own = zip(frame.f_code.co_varnames, given, strict=False)
        return [x for name, x in own if name not in names]
    args = (owner, *args) if _is_module(owner) else args
    bound = inspect.signature(function).bind(*args, **variables.get("kwargs", {}))
    return [x for name, x in bound.arguments.items() if name not in names]


def _parts(x: Any) -> Iterable[Any]:
    """What a tuple, list, dict or an object of one of jitgrad's classes holds. Of a PackedSequence
    its data: its sizes are always on the CPU."""
    if hasattr(x, "batch_sizes"):
        return (x.data,)
    if isinstance(x, (tuple, list)):
        return x
    if not isinstance(x, dict):
        ours = any(c.__module__.partition(".")[0] == _PACKAGE for c in type(x).__mro__)
        x = getattr(x, "__dict__", {}) if ours else {}
    return list(x.values())


def _direct(x: Any, depth: int) -> Iterator[Tensor]:
    """Tensors in arguments, modules aside."""
    if isinstance(x, Tensor):
        yield x
    elif depth and not _is_module(x):
        for y in _parts(x):
            yield from _direct(y, depth - 1)


def _modules(x: Any, depth: int) -> Iterator[Any]:
    """Modules in arguments. Of their tensors some may be on the CPU: those count that are used."""
    if _is_module(x):
        yield x
    elif depth and not isinstance(x, Tensor):
        for y in _parts(x):
            yield from _modules(y, depth - 1)


def _is_module(x: Any) -> bool:
    return hasattr(x, "_parameters") and hasattr(x, "buffers")
