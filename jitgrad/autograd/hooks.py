"""Hooks on tensors: register_hook, register_post_accumulate_grad_hook, retain_grad."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from jitgrad.state import bump_epoch
from jitgrad.tape.node import RemovableHandle, add_hook
from jitgrad.tensor import Tensor


def register_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """`hook(grad)` runs when the gradient of this tensor is computed; it may return another one.

    Returns a handle with `remove()`. Raises RuntimeError unless the tensor requires grad.
    """
    if not tensor.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if tensor._node is not None:
        return add_hook(tensor._node, tensor._out, hook)
    if tensor._hooks is None:
        tensor._hooks = OrderedDict()
    handle = RemovableHandle(tensor._hooks)
    tensor._hooks[handle.id] = hook
    bump_epoch()
    return handle


def register_post_accumulate_grad_hook(
    tensor: Tensor, hook: Callable[[Tensor], None]
) -> RemovableHandle:
    """`hook(tensor)` runs after backward has added to this leaf's `.grad`."""
    if not tensor.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if tensor._node is not None:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if tensor._post_hooks is None:
        tensor._post_hooks = OrderedDict()
    handle = RemovableHandle(tensor._post_hooks)
    tensor._post_hooks[handle.id] = hook
    bump_epoch()
    return handle


def retain_grad(tensor: Tensor) -> None:
    """backward also fills `.grad` of this tensor, which is no leaf."""
    if not tensor.requires_grad:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    node: Any = tensor._node
    if node is None or tensor._retains:
        return
    tensor._retains = True
    if node.retains is None:
        node.retains = {}
    node.retains[tensor._out] = weakref.ref(tensor)
