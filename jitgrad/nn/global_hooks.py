"""Hooks of all Modules at once: register_module_forward_hook and its kin.

Owns where they are kept. Modules run them before their own (hooks.py, module.py). Which there are
is a setting that compiled functions guard.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from jitgrad.state import bump_epoch, defaults
from jitgrad.tape.node import RemovableHandle

Hook = Callable[..., Any]


class Entry(NamedTuple):
    """A hook, and when it is called: "pre", "forward", "backward_pre", "backward" (with `full`, or
    the deprecated form), "parameter", "buffer" or "module"."""

    kind: str
    hook: Hook
    with_kwargs: bool = False
    always_call: bool = False
    full: bool = True


class _Everywhere(OrderedDict[int, Entry]):
    """The hooks by the ids of their handles, in the order of registration."""

    def __setitem__(self, key: int, value: Entry) -> None:
        super().__setitem__(key, value)
        self._tell()

    def __delitem__(self, key: int) -> None:
        super().__delitem__(key)
        self._tell()

    def _tell(self) -> None:
        defaults.settings = {**defaults.settings, "module_hooks": tuple(self)}
        bump_epoch()

    def of(self, kind: str) -> list[tuple[int, Entry]]:
        """The hooks of a kind."""
        return [(key, entry) for key, entry in self.items() if entry.kind == kind]


EVERYWHERE = _Everywhere()


def _add(entry: Entry) -> RemovableHandle:
    handle = RemovableHandle(EVERYWHERE)
    EVERYWHERE[handle.id] = entry
    return handle


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """hook(module, args) -> None or new args, before the forward of every Module."""
    return _add(Entry("pre", hook))


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """hook(module, args, output) -> None or a new output, after the forward of every Module.

    with_kwargs: hook(module, args, kwargs, output). always_call: also when forward raises.
    """
    return _add(Entry("forward", hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """hook(module, grad_output) -> None or new grad_output, before gradients go through a
    Module."""
    return _add(Entry("backward_pre", hook))


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """hook(module, grad_input, grad_output) -> None or new grad_input, after gradients went through
    a Module. Raises RuntimeError where hooks of the deprecated kind are registered."""
    _expect_kind(True)
    return _add(Entry("backward", hook))


def register_module_backward_hook(hook: Hook) -> RemovableHandle:
    """The deprecated form: grad_input is that of the last op of forward. Use
    register_module_full_backward_hook."""
    _expect_kind(False)
    return _add(Entry("backward", hook, full=False))


def _expect_kind(full: bool) -> None:
    if any(entry.full is not full for _, entry in EVERYWHERE.of("backward")):
        raise RuntimeError(
            "Cannot use both regular backward hooks and full backward hooks as a global Module "
            "hook. Please use only one of them."
        )


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """hook(module, name, parameter) -> None or a parameter to register instead."""
    return _add(Entry("parameter", hook))


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """hook(module, name, buffer) -> None or a buffer to register instead."""
    return _add(Entry("buffer", hook))


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """hook(module, name, submodule) -> None or a Module to register instead."""
    return _add(Entry("module", hook))


def registered(kind: str, module: Any, name: str, value: Any) -> Any:
    """What the registration hooks of a kind make of a value."""
    for _, entry in EVERYWHERE.of(kind):
        changed = entry.hook(module, name, value)
        if changed is not None:
            value = changed
    return value
