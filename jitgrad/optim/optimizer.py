"""Optimizer: what all optimizers share. Owns groups, the walk over parameters, and hooks of step.

A subclass says its defaults, the state that a parameter begins with (`begin`) and one rule for one
parameter (`update`). Hyper-parameters that are floats are lifted, so that a schedule changes an
input of the compiled step, not its code. What state_dict writes and reads is in state_dict.py.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from jitgrad import dispatch
from jitgrad.autograd.modes import enable_grad, set_grad_enabled
from jitgrad.compiler.ops.record import OPS
from jitgrad.creation import zeros, zeros_like
from jitgrad.dispatch import apply, assign
from jitgrad.functions import where
from jitgrad.functions.complex_numbers import view_as_real
from jitgrad.nn.module import clear_grad
from jitgrad.optim.group import Group
from jitgrad.optim.state_dict import StateDict
from jitgrad.optim.straight import Updates, numbers_only
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.state import defaults as modes
from jitgrad.state import is_ours, unwatched
from jitgrad.state import state as thread
from jitgrad.tape.node import RemovableHandle
from jitgrad.tensor import Tensor

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
ParamsT = Params  # PyTorch's name
State = dict[str, Any]
Hyper = dict[str, Any]


class _Required:
    """A default that says: each group must set this."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()
_BY_COUNT = "results by step count"

_pre_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
_post_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
_steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
"""How often step ran in Python, for a warning of schedulers. No attribute of the optimizer: what a
recorded step changes of those would be seen as an effect."""

_updates: weakref.WeakKeyDictionary[Optimizer, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""Updates as straight code, as `_steps` no attribute."""


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(optimizer, args, kwargs)` runs before step of every optimizer; see
    Optimizer.register_step_pre_hook."""
    return _add(_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Callable[..., None]) -> RemovableHandle:
    """`hook(optimizer, args, kwargs)` runs after step of every optimizer."""
    return _add(_post_hooks, hook)


def _add(hooks: OrderedDict[int, Any], hook: Callable[..., Any]) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _with_hooks(function: Callable[..., Any]) -> Callable[..., Any]:
    """A class's step with the hooks around it."""

    @functools.wraps(function)
    def hooked(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        _steps[self] = steps_of(self) + 1
        everywhere_before, everywhere_after = self._common_hooks
        for hook in (*everywhere_before.values(), *self._optimizer_step_pre_hooks.values()):
            found = hook(self, (self, *args), kwargs)
            if found is None:
                continue
            if not (isinstance(found, tuple) and len(found) == 2):
                raise RuntimeError(
                    f"[{type(self).__name__}.step] a pre-hook must return None or a tuple of "
                    f"(new_args, new_kwargs); got {found!r:.60}"
                )
            (_, *args), kwargs = found
        out = function(self, *args, **kwargs)
        for hook in (*self._optimizer_step_post_hooks.values(), *everywhere_after.values()):
            hook(self, (self, *args), kwargs)
        return out

    hooked.hooked = True  # type: ignore[attr-defined]
    return hooked


def parts_of(x: Tensor) -> Tensor:
    """A complex parameter or gradient as two real ones, a view, as PyTorch takes it."""
    return view_as_real(x) if x.is_complex() else x


class Optimizer(StateDict):
    """Base class, as torch.optim.Optimizer.

    Attributes:
        param_groups: dicts with "params" and this group's hyper-parameters (and "param_names"
            where the parameters came with names).
        state: parameter -> its state (tensors, by PyTorch's keys).
        defaults: hyper-parameters of groups that do not set them.
        by_element: whether the rule treats elements alike, so that a complex parameter is updated
            as its parts (its state has a last dim of 2); others refuse complex parameters.
    """

    by_element = True
    _skip: Tensor | None
    _own = False  # one of jitgrad's own classes

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._own = cls.__module__.startswith(__package__ + ".")
        step = vars(cls).get("step")
        if step is not None and not getattr(step, "hooked", False):
            cls.step = _with_hooks(step)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """With hooks: wrappers of optimizers do not always call __init__ of this class."""
        made = super().__new__(cls)
        made._make_hooks()
        return made

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                f"[{type(self).__name__}] expected an iterable of tensors or dicts; got a Tensor; "
                "pass [tensor]"
            )
        self.defaults = defaults
        self.state: defaultdict[Tensor, State] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        items: list[Any] = list(params)
        if not items:
            raise ValueError(f"[{type(self).__name__}] optimizer got an empty parameter list")
        if not isinstance(items[0], dict):
            items = [{"params": items}]
        for group in items:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, {"params": tensors or (name, tensor) pairs, ...}; missing hyper-parameters
        are the defaults.

        Raises TypeError for what are no tensors in order, ValueError for tensors that are no leaves
        or are in another group already, for some with and some without names.
        """
        name = type(self).__name__
        if not isinstance(param_group, dict):
            raise TypeError(f"[{name}] param_group must be a dict; got {type(param_group)}")
        group = param_group
        given = group["params"]
        if isinstance(given, (set, frozenset)):
            raise TypeError(
                f"[{name}] expected parameters in an ordered collection; got a set, whose order "
                "changes from run to run; pass a list"
            )
        given = [given] if isinstance(given, Tensor) else list(given)
        names = [p[0] for p in given if isinstance(p, tuple)]
        params = [p[1] if isinstance(p, tuple) else p for p in given]
        if names and len(names) != len(params):
            raise ValueError(
                f"[{name}] all optimizer params should be with/without names; "
                f"{len(names)} of {len(params)} have one"
            )
        for p in params:
            self._check_parameter(p)
        for key, value in self.defaults.items():
            if value is required and key not in group:
                raise ValueError(
                    f"[{name}] parameter group didn't specify a value of required optimization "
                    f"parameter {key}"
                )
            # A tuple of the group's own: a schedule replaces it in one group at a time.
            group.setdefault(key, (*value,) if type(value) is tuple else value)
        if len({id(p) for p in params}) != len(params):
            warn(
                "optimizer contains a parameter group with duplicate parameters; it updates them "
                "more than once in a step"
            )
        known: set[int] = set()
        for other in self.param_groups:
            known.update(id(p) for p in other["params"])
            if bool(names) != ("param_names" in other):
                raise ValueError(
                    f"[{name}] all optimizer param groups should be with/without names; cannot "
                    f"add one {'with' if names else 'without'} names"
                )
        if any(id(p) in known for p in params):
            raise ValueError(
                f"[{name}] some parameters appear in more than one parameter group; pass each once"
            )
        group["params"] = params
        if names:
            group["param_names"] = names
        self.param_groups.append(Group(group))

    def _check_parameter(self, p: Any) -> None:
        name = type(self).__name__
        if not isinstance(p, Tensor):
            raise TypeError(
                f"[{name}] optimizer can only optimize Tensors, but one of the params is a "
                f"{type(p).__name__}"
            )
        if not (self.defaults.get("differentiable") or p.is_leaf or p._retains):
            raise ValueError(
                f"[{name}] can't optimize a non-leaf Tensor; got {p.dtype} {tuple(p.shape)}, "
                "the result of an op; pass the leaf, or .detach() it"
            )
        if p.is_complex() and not self.by_element:
            raise RuntimeError(
                f"[{name}] does not support complex parameters; got {p.dtype} {tuple(p.shape)}; "
                "pass a real parameter, and use view_as_complex of it"
            )

    # -- the rule ------------------------------------------------------------------------------
    def has_state(self, h: Hyper) -> bool:
        """Whether parameters have state, with these hyper-parameters."""
        return True

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        """Makes the state that p begins with, by `init_state`; run where p has none."""

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        """Updates p in place. `state` is p's; `h` the group's hyper-parameters, floats lifted."""
        raise NotImplementedError(
            f"[{type(self).__name__}] expected the subclass to define update, or step"
        )

    @_with_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient.

        closure: recomputes the loss (with gradients enabled) and returns it; then so does step.
        """
        with set_grad_enabled(bool(self.defaults.get("differentiable"))):
            loss = None
            if closure is not None:
                with enable_grad():
                    loss = closure()
            known = self._known_updates()
            if thread.recorder is not None and self._has_our_rule():
                if not (thread.levels or thread.grad_enabled):
                    thread.recorder.begin_before(self.state, self._begin_all)
            for group, h in self.hyper():
                stateful, maximize = self.has_state(h), group.get("maximize")
                updates = None
                if known is not None and not maximize and numbers_only(h):
                    updates = Updates(known, h, self.update)
                closed = thread.watcher is not None and self._is_closed(h)
                for p in group["params"]:
                    if closed and is_ours(type(p)):
                        unwatched(self._step_one, p, h, stateful, maximize, updates)
                    else:
                        self._step_one(p, h, stateful, maximize, updates)
        return loss

    step.masks = True  # type: ignore[attr-defined]

    def _known_updates(self) -> dict[Any, Any] | None:
        """What is known of updates as straight code; None where none may run."""
        modes = thread.__dict__
        if (
            modes["recorder"] is not None or modes["watcher"] is not None or modes["levels"]
            or modes["abstract"] or modes["grad_enabled"] or self._skip is not None
            or dispatch.timing is not None or not self._has_our_rule()
        ):  # fmt: skip
            return None
        found = _updates.get(self)
        if found is None:
            found = _updates[self] = {}
        return found

    def _has_our_rule(self) -> bool:
        """Whether the rule is ours: no subclass, and no function put in the place of ours."""
        cls = type(self)
        ours = cls._own and is_ours(cls.update) and is_ours(cls.begin)
        return ours and not any(map(callable, vars(self).values()))

    def _is_closed(self, h: Hyper) -> bool:
        """Whether none but our code runs for a parameter: our rule, on numbers and tensors."""
        return self._has_our_rule() and all(map(_is_plain, h.values()))

    def _step_one(
        self, p: Tensor, h: Hyper, stateful: bool, maximize: Any, updates: Updates | None
    ) -> None:
        """One update of a parameter, if it has a gradient; by `updates` where that can do it."""
        grad = p.grad
        if grad is None:
            return
        state = self.state[p] if stateful else {}
        if updates is not None and bool(state) is stateful and updates.run(p, grad, state):
            return
        if p._type.dtype.is_complex:
            p, grad = parts_of(p), parts_of(grad)
        if stateful and not state:
            self.begin(p, grad, state, h)
        if maximize:
            grad = -grad
        if self._skip is None:
            self.update(p, grad, state, h)
        else:
            self._update_unless(self._skip, p, grad, state, h)

    def _begin_all(self) -> None:
        """Makes the state of all parameters that have a gradient and no state yet."""
        for group, h in self.hyper():
            if self.has_state(h):
                for p in group["params"]:
                    if (grad := p.grad) is not None and not (state := self.state[p]):
                        if p.is_complex():
                            p, grad = parts_of(p), parts_of(grad)
                        self.begin(p, grad, state, h)

    @contextmanager
    def skipping(self, skip: Tensor) -> Iterator[None]:
        """Inside, `step` leaves all as it was where the 0-d bool `skip` is true."""
        self._skip = skip
        try:
            yield
        finally:
            self._skip = None

    def _update_unless(self, skip: Tensor, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        """`update`, undone where the 0-d bool `skip` is true (how GradScaler skips a step in a
        compiled function)."""
        before = {key: value.clone() for key, value in state.items() if isinstance(value, Tensor)}
        old = p.clone()
        skip = skip.to(p.device)
        self.update(p, grad, state, h)
        p.copy_(where(skip, old, p))
        for key, value in before.items():
            state[key].copy_(where(skip, value, state[key]))
        if new := set(state) - set(before):
            self.skipped_begin(skip, {key: state[key] for key in new}, h)

    def skipped_begin(self, skip: Tensor, new: State, h: Hyper) -> None:
        """What state tensors that `update` made become where `skip` is true."""

    def hyper(self) -> Iterator[tuple[dict[str, Any], Hyper]]:
        """Each group, and its hyper-parameters: floats lifted (Group does that), one-element
        tensors 0-d."""
        for group in self.param_groups:
            yield group, {k: _hyper(v) for k, v in group.items() if k != "params"}

    def init_state(self, state: State, key: str, value: Tensor) -> Tensor:
        """Puts a new tensor into a parameter's state (seen by a recording)."""
        if thread.recorder is not None:
            thread.recorder.rebind(state, key, value)
        state[key] = value
        return value

    def init_scalar(self, p: Tensor, state: State, key: str, value: Any = 0.0) -> Tensor:
        """A new 0-d tensor of state: float64 where that is the default dtype (not of fused
        optimizers), else float32. It is on p's device, so that a step on a GPU does not wait for
        it."""
        wide = modes.dtype is dtypes.float64 and not self.defaults.get("fused")
        dtype = dtypes.float64 if wide else dtypes.float32
        made = zeros((), dtype=dtype, device=p.device if p.is_cuda else None)
        return self.init_state(state, key, made + value)

    def init_zeros(self, state: State, p: Tensor, *keys: str) -> None:
        """New zeros like p, for each key."""
        for key in keys:
            self.init_state(state, key, zeros_like(p))

    def keep(self, state: State, key: str, value: Tensor) -> Tensor:
        """A state tensor becomes `value`. Returns what to go on with: the state tensor, written in
        place, or, where the step is differentiated, the value."""
        if thread.grad_enabled:
            state[key] = value
            return value
        have: Tensor = state[key]
        if value._type is not have._type or thread.levels:
            return have.copy_(value)
        assign(have, value)
        return have

    def advance(self, state: State) -> Tensor:
        """Adds one to the step count; returns it, as float64."""
        return self.count(state).to(dtypes.float64)

    def count(self, state: State) -> Tensor:
        """Adds one to the step count; returns it."""
        return self.keep(state, "step", state["step"] + 1)

    def by_count(
        self, count: Tensor, p: Tensor, h: Hyper, of: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """of(count as float64): 0-d tensors that depend on the count and h only, as operands
        beside p (in its dtype, where it has dims).

        Eager code computes it once in a step for all parameters of a group that have taken as many
        steps. (A recording computes it for each: their counts differ in other calls, maybe.)
        """
        modes = thread.__dict__
        data = count._data
        dtype = p._type.dtype if p._type.shape else None
        there = count.is_cuda  # its value is not looked at
        if data is None or there or modes["recorder"] is not None or modes["grad_enabled"]:
            return _in_dtype(of(count.to(dtypes.float64)), dtype)
        known = h.setdefault(_BY_COUNT, {})
        key = (float(data), dtype)
        found = known.get(key)
        if found is None:
            found = known[key] = _in_dtype(of(count.to(dtypes.float64)), dtype)
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters: they become None, or zeros in place."""
        for group in self.param_groups:
            for p in group["params"]:
                clear_grad(p, set_to_none)

    # -- hooks ---------------------------------------------------------------------------------
    def _make_hooks(self) -> None:
        self._common_hooks = (_pre_hooks, _post_hooks)
        self._skip = None
        self._optimizer_step_pre_hooks: OrderedDict[int, Any] = OrderedDict()
        self._optimizer_step_post_hooks: OrderedDict[int, Any] = OrderedDict()
        super()._make_hooks()

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(optimizer, args, kwargs)` runs before step, and may return (new args, new kwargs).
        args begins with the optimizer. Returns a handle with `remove()`."""
        return _add(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """`hook(optimizer, args, kwargs)` runs after step."""
        return _add(self._optimizer_step_post_hooks, hook)

    # -- copies --------------------------------------------------------------------------------
    def __getstate__(self) -> dict[str, Any]:
        return {
            "defaults": self.defaults, "state": self.state, "param_groups": self.param_groups,
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.setdefault("differentiable", False)

    def __repr__(self) -> str:
        text = f"{type(self).__name__} ("
        for i, group in enumerate(self.param_groups):
            text += f"\nParameter Group {i}\n"
            text += "".join(f"    {k}: {group[k]}\n" for k in sorted(group) if k != "params")
        return text + ")"


def decrease(p: Tensor, step: Tensor) -> None:
    """p -= step, in place."""
    if step._type is not p._type or thread.levels:
        p.sub_(step)
    else:
        assign(p, apply(OPS["sub"], (p, step), {}))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str) or is_ours(type(value))


def _in_dtype(xs: tuple[Tensor, ...], dtype: Any) -> tuple[Tensor, ...]:
    return xs if dtype is None else tuple([x.to(dtype) for x in xs])


def _hyper(value: Any) -> Any:
    return value.squeeze() if isinstance(value, Tensor) and value.ndim else value


def steps_of(optimizer: Optimizer) -> int:
    """How often step ran in Python (a compiled step does not)."""
    return _steps.get(optimizer, 0)


# -- checks of arguments -------------------------------------------------------------------------
def check_lr(op: str, lr: Any) -> None:
    """Raises ValueError unless lr is a number, or a tensor of one element, of at least 0."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"[{op}] Tensor lr must be 1-element; got {lr._type}")
    check_at_least(op, "learning rate", lr, 0.0)


def check_at_least(op: str, name: str, value: Any, low: float) -> None:
    """Raises ValueError for a hyper-parameter below `low`."""
    if not low <= value:
        raise ValueError(f"[{op}] invalid {name}: {value}; expected at least {low}")


def check_betas(op: str, betas: Any) -> None:
    """Raises ValueError unless all of betas are in [0, 1)."""
    for i, b in enumerate(betas):
        if not 0.0 <= b < 1.0:
            raise ValueError(f"[{op}] invalid beta parameter at index {i}: {b}; expected [0, 1)")


def check_modes(op: str, foreach: Any, fused: Any, differentiable: bool) -> None:
    """Raises RuntimeError for flags that exclude each other. (One implementation serves them all:
    the compiler fuses the update of all parameters.)"""
    if fused and differentiable:
        raise RuntimeError(f"[{op}] `fused` does not support `differentiable`; set one of them")
    if fused and foreach:
        raise RuntimeError(f"[{op}] `fused` and `foreach` cannot be `True` together")


def has(value: Any) -> bool:
    """Whether a hyper-parameter is not zero (of a lifted one, that is guarded, not its value)."""
    return isinstance(value, Tensor) or bool(value)


def decayed(grad: Tensor, p: Tensor, weight_decay: Any) -> Tensor:
    """The gradient of the loss with weight_decay / 2 * p * p added."""
    return grad + p * weight_decay if has(weight_decay) else grad
