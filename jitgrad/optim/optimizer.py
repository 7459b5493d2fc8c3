"""Optimizer: what all optimizers share. Owns groups, state, state_dict and the walk over params.

A subclass says its defaults and one rule for one parameter (`update`). Hyper-parameters that are
floats are lifted, so that a schedule changes an input of the compiled step, not its code.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jitgrad.autograd.modes import enable_grad, no_grad
from jitgrad.hostscalar import lift
from jitgrad.nn.module import clear_grad
from jitgrad.state import state as modes
from jitgrad.tensor import Tensor

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class Optimizer:
    """Base class, as torch.optim.Optimizer.

    Attributes:
        param_groups: dicts with "params" and this group's hyper-parameters.
        state: parameter -> its state (tensors, by PyTorch's keys).
        defaults: hyper-parameters of groups that do not set them.
    """

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                f"[{type(self).__name__}] expected an iterable of tensors or dicts; got a Tensor; "
                "pass [tensor]"
            )
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        items: list[Any] = list(params)
        if not items:
            raise ValueError(f"[{type(self).__name__}] got an empty parameter list")
        if not isinstance(items[0], dict):
            items = [{"params": items}]
        for group in items:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, {"params": tensors, ...}; missing hyper-parameters are the defaults.

        Raises TypeError for what are no tensors in order, ValueError for tensors that are no leaves
        or are there already.
        """
        name = type(self).__name__
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f"[{name}] expected a dict with 'params'; got {param_group!r:.60}")
        group = dict(param_group)
        params = group["params"]
        if isinstance(params, (set, frozenset)):
            raise TypeError(
                f"[{name}] expected parameters in an ordered collection; got a set, whose order "
                "changes from run to run; pass a list"
            )
        params = [params] if isinstance(params, Tensor) else list(params)
        params = [p[1] if isinstance(p, tuple) else p for p in params]
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"[{name}] expected tensors; got {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError(
                    f"[{name}] can't optimize a non-leaf Tensor; got {p.dtype} {tuple(p.shape)}, "
                    "the result of an op; pass the leaf, or .detach() it"
                )
        known = {id(p) for g in self.param_groups for p in g["params"]}
        if any(id(p) in known for p in params) or len({id(p) for p in params}) != len(params):
            raise ValueError(
                f"[{name}] some parameters appear in more than one parameter group, or twice in "
                "one; pass each once"
            )
        group["params"] = params
        for name, value in self.defaults.items():
            group.setdefault(name, value)
        self.param_groups.append(group)

    # -- the rule ------------------------------------------------------------------------------
    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], h: dict[str, Any]) -> None:
        """Updates p in place. `state` is p's; `h` the group's hyper-parameters, floats lifted."""
        raise NotImplementedError(f"[{type(self).__name__}] expected the subclass to define update")

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient.

        closure: recomputes the loss (with gradients enabled) and returns it; then so does step.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group, h in self._hyper():
            for p in group["params"]:
                grad = p.grad
                if grad is None:
                    continue
                self.update(p, -grad if group.get("maximize") else grad, self.state[p], h)
        return loss

    def _hyper(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Each group, and its hyper-parameters with floats lifted."""
        for group in self.param_groups:
            yield (
                group,
                {
                    k: lift(v, group, k) if type(v) is float else v
                    for k, v in group.items()
                    if k != "params"
                },
            )

    def init_state(self, state: dict[str, Any], key: str, value: Tensor) -> Tensor:
        """Puts a new tensor into a parameter's state (seen by a recording)."""
        state[key] = value
        if modes.recorder is not None:
            modes.recorder.rebind(state, key, value)
        return value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                clear_grad(p, set_to_none)

    # -- state_dict ----------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: state}, "param_groups": [...]}, parameters by number, as PyTorch."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
            packed = {k: v for k, v in group.items() if k != "params"}
            groups.append({**packed, "params": [numbers[id(p)] for p in group["params"]]})
        # A parameter that has no state yet is left out.
        state = {numbers[id(p)]: dict(s) for p, s in self.state.items() if s and id(p) in numbers}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what state_dict() returned. Raises ValueError where the groups do not match."""
        groups, saved = self.param_groups, state_dict["param_groups"]
        if len(groups) != len(saved):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if any(len(g["params"]) != len(s["params"]) for g, s in zip(groups, saved, strict=True)):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                "optimizer's group"
            )
        numbers = [n for s in saved for n in s["params"]]
        params = [p for g in groups for p in g["params"]]
        by_number = dict(zip(numbers, params, strict=True))
        if strange := set(state_dict["state"]) - set(by_number):
            raise ValueError(f"loaded state dict has state of unknown parameters: {strange}")
        self.state.clear()
        for number, values in state_dict["state"].items():
            p = by_number[number]
            self.state[p] = {
                k: self._loaded(k, v, p) if isinstance(v, Tensor) else v for k, v in values.items()
            }
        for group, s in zip(groups, copy.deepcopy(saved), strict=True):
            group.update({k: v for k, v in s.items() if k != "params"})

    def _loaded(self, key: str, value: Tensor, p: Tensor) -> Tensor:
        value = value.detach()
        if key != "step" and p.is_floating_point():
            value = value.to(p.dtype)
        return value.clone()

    def __repr__(self) -> str:
        out = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            out.append(f"Parameter Group {i}")
            out += [f"    {k}: {group[k]}" for k in sorted(group) if k != "params"]
        return "\n".join([*out, ")"])


def check_at_least(op: str, name: str, value: Any, low: float) -> None:
    """Raises ValueError for a hyper-parameter below `low`."""
    if not low <= value:
        raise ValueError(f"[{op}] invalid {name}: {value}; expected at least {low}")
