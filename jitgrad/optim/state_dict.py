"""state_dict and load_state_dict of optimizers, in PyTorch's layout, with their hooks."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jitgrad.creation import as_tensor, tensor
from jitgrad.functions.complex_numbers import view_as_real
from jitgrad.optim.group import Group
from jitgrad.runtime import dtypes
from jitgrad.state import defaults as modes
from jitgrad.tape.node import RemovableHandle
from jitgrad.tensor import Tensor


class StateDict:
    """The part of Optimizer that saves and loads."""

    defaults: dict[str, Any]
    state: defaultdict[Tensor, dict[str, Any]]
    param_groups: list[dict[str, Any]]

    SCALARS: tuple[str, ...] = ("step",)
    """State that is a 0-d tensor; a number that is loaded becomes one."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes attributes over; subclasses complete older states here."""
        self.__dict__.update(state)

    def _make_hooks(self) -> None:
        self._state_hooks: dict[str, OrderedDict[int, Any]] = {
            kind: OrderedDict() for kind in ("save_pre", "save_post", "load_pre", "load_post")
        }

    def _register(self, kind: str, hook: Callable[..., Any], prepend: bool) -> RemovableHandle:
        hooks = self._state_hooks[kind]
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        return handle

    def register_state_dict_pre_hook(
        self, hook: Callable[..., None], prepend: bool = False
    ) -> RemovableHandle:
        """`hook(optimizer)` runs before state_dict; prepend: before all others."""
        return self._register("save_pre", hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """`hook(optimizer, state_dict)` runs after state_dict, and may return another dict."""
        return self._register("save_post", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """`hook(optimizer, state_dict)` runs before load_state_dict, on a shallow copy; it may
        return another dict."""
        return self._register("load_pre", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., None], prepend: bool = False
    ) -> RemovableHandle:
        """`hook(optimizer)` runs after load_state_dict."""
        return self._register("load_post", hook, prepend)

    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: state}, "param_groups": [...]}, parameters by number.

        The tensors are those of the state, not copies. A parameter that has no state is left out.
        """
        for hook in self._state_hooks["save_pre"].values():
            hook(self)
        numbers: dict[int, int] = {}
        groups: list[dict[str, Any]] = []
        count = 0
        for group in self.param_groups:
            for i, p in enumerate(group["params"], count):
                numbers.setdefault(id(p), i)
            count += len(group["params"])
            packed = {k: v for k, v in group.items() if k != "params"}
            groups.append({**packed, "params": [numbers[id(p)] for p in group["params"]]})
        state = {
            numbers[id(p)] if isinstance(p, Tensor) else p: dict(s)
            for p, s in self.state.items()
            if s
        }
        out: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in self._state_hooks["save_post"].values():
            found = hook(self, out)
            out = out if found is None else found
        return out

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads what state_dict() returned, here or in PyTorch: tensors may be NumPy arrays, or
        anything that NumPy reads. What is loaded is copied.

        State goes to its parameter's device, floating state gets its dtype, too; 0-d state (`step`)
        keeps its own. Raises ValueError where the groups do not match.
        """
        source = dict(state_dict)
        for hook in self._state_hooks["load_pre"].values():
            found = hook(self, source)
            source = source if found is None else found
        groups, saved = self.param_groups, copy.deepcopy(source["param_groups"])
        op = type(self).__name__
        if len(groups) != len(saved):
            raise ValueError(
                f"[{op}] loaded state dict has a different number of parameter groups: "
                f"{len(saved)}, where the optimizer has {len(groups)}"
            )
        for i, (g, s) in enumerate(zip(groups, saved, strict=True)):
            if len(g["params"]) != len(s["params"]):
                raise ValueError(
                    f"[{op}] loaded state dict contains a parameter group that doesn't match the "
                    f"size of optimizer's group: group {i} has {len(s['params'])} parameters, "
                    f"here {len(g['params'])}"
                )
        numbers = [n for s in saved for n in s["params"]]
        params = [p for g in groups for p in g["params"]]
        by_number = dict(zip(numbers, params, strict=True))
        state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for number, values in source["state"].items():
            p = by_number.get(number)
            if p is None:
                state[number] = values
            else:
                state[p] = {k: self._loaded(k, v, p) for k, v in values.items()}
        for group, s in zip(groups, saved, strict=True):
            s["params"] = group["params"]
            if "param_names" in group:
                s.setdefault("param_names", group["param_names"])
            for key, value in self.defaults.items():
                s.setdefault(key, value)
        # In the order that the groups have: compiled steps guard it.
        loaded = [
            Group({**{k: s[k] for k in g if k in s}, **s})
            for g, s in zip(groups, saved, strict=True)
        ]
        self.__setstate__({"state": state, "param_groups": loaded})
        for hook in self._state_hooks["load_post"].values():
            hook(self)

    def _loaded(self, key: str | None, value: Any, p: Tensor) -> Any:
        if not isinstance(value, Tensor) and hasattr(value, "__array__"):
            value = as_tensor(np.array(value))
        if isinstance(value, Tensor):
            value = value.detach()
            if value.is_complex() and p.is_complex():  # as PyTorch saves it
                value = view_as_real(value)
            if key not in self.SCALARS and p.is_floating_point():
                value = value.to(p.dtype)
            return value.clone() if value.device == p.device else value.to(p.device)
        if key in self.SCALARS and isinstance(value, (int, float)):
            dtype = dtypes.float64 if modes.dtype is dtypes.float64 else dtypes.float32
            return tensor(float(value), dtype=dtype, device=p.device)
        if isinstance(value, dict):
            return {k: self._loaded(k, v, p) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)([self._loaded(None, v, p) for v in value])
        return value
