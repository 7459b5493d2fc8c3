"""Hooks of Modules: registering them, and calling a Module through them.

Owns `Hooked`, the part of Module that does so, and the tape functions behind backward hooks.
Registering and removing bumps the epoch; a hook's id is never used again, so guards of compiled
functions need to look at the ids of the four kinds that run in calls only.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from jitgrad.autograd.function import Function, FunctionCtx
from jitgrad.autograd.given import all_changed
from jitgrad.nn.global_hooks import EVERYWHERE
from jitgrad.runtime.userline import warn
from jitgrad.state import bump_epoch, state
from jitgrad.tape.node import RemovableHandle
from jitgrad.tensor import Tensor

Hook = Callable[..., Any]
Grads = tuple[Tensor | None, ...]


class InPlaceHook:
    """A state_dict hook that changes the dict in place and must return None."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __call__(self, *args: Any) -> None:
        if self.hook(*args) is not None:
            raise RuntimeError("[state_dict] state_dict post-hook must return None")


HOOK_DICTS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks",
    "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
"""The dicts {id: hook} of a Module, by PyTorch's names (..._with_kwargs and ..._always_called:
{id: True})."""


class Hooked:
    """The hooks of a Module."""

    _forward_hooks: OrderedDict[int, Hook]
    _forward_hooks_with_kwargs: OrderedDict[int, bool]
    _forward_hooks_always_called: OrderedDict[int, bool]
    _forward_pre_hooks: OrderedDict[int, Hook]
    _forward_pre_hooks_with_kwargs: OrderedDict[int, bool]
    _backward_hooks: OrderedDict[int, Hook]
    _backward_pre_hooks: OrderedDict[int, Hook]
    _state_dict_hooks: OrderedDict[int, Hook]
    _state_dict_pre_hooks: OrderedDict[int, Hook]
    _load_state_dict_pre_hooks: OrderedDict[int, Hook]
    _load_state_dict_post_hooks: OrderedDict[int, Hook]
    _is_full_backward_hook: bool | None

    # -- registering ---------------------------------------------------------------------------
    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """hook(module, args) -> None or new args, before each forward.

        with_kwargs: hook(module, args, kwargs) -> None or (new args, new kwargs). prepend: before
        the hooks there are.
        """
        handle = _add(self._forward_pre_hooks, hook, prepend)
        if with_kwargs:
            self._forward_pre_hooks_with_kwargs[handle.id] = True
        return handle

    def register_forward_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:  # fmt: skip
        """hook(module, args, output) -> None or a new output, after each forward.

        with_kwargs: hook(module, args, kwargs, output). always_call: also when forward raises.
        """
        handle = _add(self._forward_hooks, hook, prepend)
        if with_kwargs:
            self._forward_hooks_with_kwargs[handle.id] = True
        if always_call:
            self._forward_hooks_always_called[handle.id] = True
        return handle

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """hook(module, grad_output) -> None or new grad_output, before gradients go through the
        module; grad_output is a tuple."""
        return _add(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """hook(module, grad_input, grad_output) -> None or new grad_input, when the gradients of
        the module's positional inputs are known; both are tuples, None for what is no tensor."""
        self._expect_kind(True)
        return _add(self._backward_hooks, hook, prepend)

    def register_backward_hook(self, hook: Hook) -> RemovableHandle:
        """The deprecated form: grad_input is that of the last op of forward. Use
        register_full_backward_hook."""
        self._expect_kind(False)
        return _add(self._backward_hooks, hook, False)

    def _expect_kind(self, full: bool) -> None:
        if self._is_full_backward_hook is (not full):
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single "
                "Module. Please use only one of them."
            )
        self._is_full_backward_hook = full

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """hook(module, prefix, keep_vars), before state_dict collects the module's state."""
        return _add(self._state_dict_pre_hooks, hook, False)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """hook(module, state_dict, prefix, local_metadata), after it; changes the dict in place."""
        return _add(self._state_dict_hooks, InPlaceHook(hook), False)

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        """As register_state_dict_post_hook; what it returns, unless None, replaces the dict."""
        return _add(self._state_dict_hooks, hook, False)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
        error_msgs), before the module's state is loaded."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(
        self, hook: Hook, with_module: bool = False
    ) -> RemovableHandle:
        bound = functools.partial(hook, self) if with_module else hook
        return _add(self._load_state_dict_pre_hooks, bound, False)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """hook(module, incompatible_keys), after load_state_dict has loaded the module's state; may
        change the two lists in place, not return anything."""
        return _add(self._load_state_dict_post_hooks, hook, False)

    # -- calling -------------------------------------------------------------------------------
    def _call_hooked(self, forward: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """forward(*args, **kwargs) with all hooks around it."""
        called: set[int] = set()
        try:
            return self._call_through(forward, args, kwargs, called)
        except Exception:
            for key, entry in EVERYWHERE.of("forward"):
                if entry.always_call and key not in called:
                    self._call_in_spite(entry.hook, entry.with_kwargs, args, kwargs)
            for key in self._forward_hooks_always_called:
                if key not in called and key in self._forward_hooks:
                    keywords = key in self._forward_hooks_with_kwargs
                    self._call_in_spite(self._forward_hooks[key], keywords, args, kwargs)
            raise

    def _call_through(
        self, forward: Hook, args: tuple[Any, ...], kwargs: dict[str, Any], called: set[int]
    ) -> Any:
        every = [(key, entry.hook) for key, entry in EVERYWHERE.of("pre")]
        for key, hook in [*every, *self._forward_pre_hooks.items()]:
            if key in self._forward_pre_hooks_with_kwargs:
                changed = hook(self, args, kwargs)
                if changed is not None:
                    if not (isinstance(changed, tuple) and len(changed) == 2):
                        raise RuntimeError(
                            "forward pre-hook must return None or a tuple of (new_args, "
                            f"new_kwargs), but got {changed}."
                        )
                    args, kwargs = changed
            else:
                changed = hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        watch, last = self._backward_watch()
        if watch is not None:
            args = watch.enter(args)
        result = forward(*args, **kwargs)
        own = [
            (key, hook, key in self._forward_hooks_with_kwargs)
            for key, hook in self._forward_hooks.items()
        ]
        of_all = [(key, e.hook, e.with_kwargs) for key, e in EVERYWHERE.of("forward")]
        for key, hook, keywords in [*of_all, *own]:
            called.add(key)
            changed = hook(self, args, kwargs, result) if keywords else hook(self, args, result)
            if changed is not None:
                result = changed
        if watch is not None:
            result = watch.leave(result)
        if last:
            _hook_last_op(self, last, result)
        return result

    def _backward_watch(self) -> tuple[_BackwardHooks | None, list[Hook]]:
        """What calls the full backward hooks of this call, if there are any; and the others."""
        every = [entry for _, entry in EVERYWHERE.of("backward")]
        full = [entry.hook for entry in every if entry.full]
        last = [entry.hook for entry in every if not entry.full]
        (full if self._is_full_backward_hook else last).extend(self._backward_hooks.values())
        pre = [entry.hook for _, entry in EVERYWHERE.of("backward_pre")]
        pre += self._backward_pre_hooks.values()
        return (_BackwardHooks(self, full, pre) if full or pre else None), last

    def _call_in_spite(
        self, hook: Hook, keywords: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A hook with always_call, when forward has raised; its own exception is only reported."""
        try:
            hook(self, args, kwargs, None) if keywords else hook(self, args, None)
        except Exception as error:
            warn(
                "module forward hook with ``always_call=True`` raised an exception that was "
                f"silenced as another error was raised in forward: {error}"
            )


def _add(hooks: OrderedDict[int, Hook], hook: Hook, prepend: bool) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    bump_epoch()
    return handle


# -- backward hooks --------------------------------------------------------------------------------
class _BackwardHooks:
    """One call of a module with full backward hooks: its inputs pass `enter`, its results `leave`.
    Both are the identity on the tape; their backward calls the hooks."""

    def __init__(self, module: Any, hooks: list[Hook], pre_hooks: list[Hook]) -> None:
        self.module, self.hooks, self.pre_hooks = module, hooks, pre_hooks
        self.inputs = self.outputs = 0
        self.in_places: list[int] = []
        self.out_places: list[int] = []
        self.entered = False
        self.grad_outputs: Grads | None = None

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.inputs = len(args)
        self.in_places = _tensor_places(args)
        self.entered = state.grad_enabled and any(args[k].requires_grad for k in self.in_places)
        return self._through(_Enter, args, self.in_places) if self.entered else args

    def leave(self, result: Any) -> Any:
        if not isinstance(result, (Tensor, tuple)):
            warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of "
                f"Tensors but received {type(result)}"
            )
            return result
        many = (result,) if isinstance(result, Tensor) else result
        self.outputs = len(many)
        self.out_places = _tensor_places(many)
        if not state.grad_enabled or not any(many[k].requires_grad for k in self.out_places):
            return result
        found = self._through(_Leave, many, self.out_places)
        return found[0] if isinstance(result, Tensor) else found

    def _through(
        self, function: Any, values: tuple[Any, ...], places: list[int]
    ) -> tuple[Any, ...]:
        passed = list(values)
        for k, x in zip(places, function.apply(self, *(values[k] for k in places)), strict=True):
            passed[k] = x
        return tuple(passed)

    def left(self, grads: Grads) -> Grads:
        """Gradients of the results have arrived."""
        full = _spread(grads, self.out_places, self.outputs)
        for hook in self.pre_hooks:
            full = _changed("full backward pre-hook", hook, hook(self.module, full), full)
        self.grad_outputs = full
        if not self.entered:
            nothing: Grads = (None,) * self.inputs
            for hook in self.hooks:
                found = hook(self.module, nothing, full)
                if found is not None and any(g is not None for g in found):
                    raise RuntimeError(
                        "Backward hook for Modules where no input requires gradient should always "
                        "return None or None for all gradients."
                    )
        return tuple(full[k] for k in self.out_places)

    def arrived(self, grads: Grads) -> Grads:
        """Gradients of the inputs are known."""
        if self.grad_outputs is None:
            raise RuntimeError(
                f"Module backward hook for {type(self.module).__name__} is called before the "
                "grad_output one. This happens because the gradient in your nn.Module flows to "
                "the Module's input without passing through the Module's output."
            )
        full = _spread(grads, self.in_places, self.inputs)
        for hook in self.hooks:
            found = hook(self.module, full, self.grad_outputs)
            full = _changed("full backward hook", hook, found, full)
        self.grad_outputs = None
        return tuple(full[k] for k in self.in_places)


def _tensor_places(values: tuple[Any, ...]) -> list[int]:
    return [k for k, x in enumerate(values) if isinstance(x, Tensor)]


def _spread(grads: Grads, places: list[int], count: int) -> Grads:
    full: list[Tensor | None] = [None] * count
    for k, g in zip(places, grads, strict=True):
        full[k] = g
    return tuple(full)


def _changed(what: str, hook: Hook, found: Any, before: Grads) -> Grads:
    if found is None:
        return before
    found = found if isinstance(found, tuple) else (found,)
    if len(found) != len(before):
        raise RuntimeError(
            f"[{what}] hook has returned an incorrect number of gradients: got {len(found)}, "
            f"expected {len(before)}"
        )
    return all_changed(hook, found, before)


class _Pass(Function):
    """The identity on tensors. Those that do not require grad stay so."""

    @staticmethod
    def forward(ctx: FunctionCtx, watch: _BackwardHooks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.watch = watch  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(*(x for x in tensors if not x.requires_grad))
        return tensors


class _Enter(_Pass):
    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return None, *ctx.watch.arrived(grads)


class _Leave(_Pass):
    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return None, *ctx.watch.left(grads)


def _hook_last_op(module: Any, hooks: list[Hook], result: Any) -> None:
    """Hooks of the deprecated kind, on the node of the (first) result."""
    while not isinstance(result, Tensor):
        if isinstance(result, dict):
            result = next(x for x in result.values() if isinstance(x, Tensor))
        else:
            result = result[0]
    node = result.grad_fn
    if node is not None:
        for hook in hooks:
            node.register_hook(functools.partial(hook, module))
