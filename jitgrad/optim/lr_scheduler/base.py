"""LRScheduler: what all schedules share. Owns the counters, the warnings, and writing the rates.

A schedule writes group["lr"] (and momentum or betas), which compiled steps read as inputs: it does
not compile anew. Its counters are Python numbers: in a compiled function, `step()` is left to
Python, after each run.
"""

from __future__ import annotations

import types
from typing import Any

from jitgrad.optim.optimizer import Optimizer, steps_of
from jitgrad.runtime.userline import warn
from jitgrad.state import state
from jitgrad.tensor import Tensor

Rate = Any  # a float, or a 0-d tensor


def set_value(group: dict[str, Any], key: str, value: Rate) -> None:
    """group[key] = value; where a tensor is there, it is written in place."""
    have = group[key]
    if isinstance(have, Tensor):
        have.fill_(value.squeeze() if isinstance(value, Tensor) else value)
    else:
        group[key] = value


def values_of(optimizer: Optimizer, key: str) -> list[Rate]:
    """What all groups have for a key; tensors are copied."""
    return [_copy(group[key]) for group in optimizer.param_groups]


def for_groups(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """A value for each group: those of a list, or copies of one. Raises ValueError."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [_copy(value) for _ in range(count)]
    if len(value) != count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has "
            f"{len(value)} values, param_groups has {count}."
        )
    return [_copy(v) for v in value]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def warn_epoch() -> None:
    warn(
        "The epoch parameter in `scheduler.step()` is deprecated: call `scheduler.step()`. With "
        "an epoch, the closed form of the schedule is used where there is one."
    )


def left_to_python(scheduler: LRScheduler, epoch: Any = None) -> bool:
    """Called before a schedule counts. While a function is recorded, whether the step has been made
    and will be made after each run; else such a function runs in segments."""
    recorder = state.recorder
    if recorder is None:
        return False
    later = getattr(recorder, "call_later", None)
    if later is not None and epoch is None:
        if later(scheduler, "step", _parts(scheduler), scheduler.optimizer.param_groups):
            return True
    leave_trace("steps a scheduler to an epoch, or one that it reaches in no way jit can follow")
    return False


def _parts(scheduler: Any) -> list[Any]:
    """A scheduler and those that it is made of."""
    inner = getattr(scheduler, "_schedulers", ())
    return [scheduler, *(part for s in inner for part in _parts(s))]


def leave_trace(reason: str) -> None:
    """A function that is being recorded runs in segments."""
    if state.recorder is not None and hasattr(state.recorder, "give_up"):
        state.recorder.give_up(reason)


def state_of(function: Any) -> dict[str, Any] | None:
    """What state_dict keeps of a callable: the attributes of an object, nothing of a function."""
    return None if isinstance(function, types.FunctionType) else function.__dict__.copy()


class LRScheduler:
    """Base class. A subclass defines get_lr: the rates of all groups at self.last_epoch.

    Attributes:
        optimizer, base_lrs (the groups' "initial_lr"), last_epoch (-1 before the first).

    last_epoch: an epoch to go on from; groups then need "initial_lr" (else KeyError).
    """

    _get_lr_called_within_step = False
    _is_initial = False
    _NOT_SAVED: tuple[str, ...] = ("optimizer", "_step_function", "_begin")

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _copy(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming "
                    "scheduler with last_epoch >= 0; load the optimizer's state first, or leave "
                    "last_epoch out"
                )
        self.base_lrs: list[Rate] = values_of(optimizer, "initial_lr")
        self.last_epoch: Any = last_epoch
        self._step_function = _function(optimizer)
        self._begin = _progress(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer (and functions)."""
        return {k: v for k, v in self.__dict__.items() if k not in self._NOT_SAVED}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what state_dict() returned."""
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list[Rate]:
        """The rates that the last step set."""
        leave_trace("asks a scheduler for its rates")
        return self._last_lr

    def get_lr(self) -> list[Rate]:
        """The rates at last_epoch. Called by step; users want get_last_lr."""
        raise NotImplementedError(f"[{type(self).__name__}] expected the subclass to define get_lr")

    def step(self, epoch: int | None = None) -> None:
        """Advances by one epoch (or to `epoch`; deprecated), and sets the groups' rates."""
        if left_to_python(self, epoch):
            return
        if self._step_count == 1:
            self._warn_order()
        self._step_count += 1
        if epoch is not None:
            warn_epoch()
        self._update_lr(epoch)

    def _warn_order(self) -> None:
        if _function(self.optimizer) is not self._step_function:
            warn(
                "Seems like `optimizer.step()` has been overridden after learning rate scheduler "
                "initialization. Please call `optimizer.step()` before `lr_scheduler.step()`."
            )
        elif _progress(self.optimizer) == self._begin:
            warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in "
                "the opposite order: otherwise the first value of the schedule is skipped."
            )

    def _update_lr(self, epoch: int | None = None) -> None:
        with _Within(self):
            if epoch is None:
                self.last_epoch += 1
                values = self.get_lr()
            else:
                self.last_epoch = epoch
                values = getattr(self, "_get_closed_form_lr", self.get_lr)()
        for group, lr in zip(self.optimizer.param_groups, values, strict=True):
            set_value(group, "lr", lr)
        self._last_lr = values_of(self.optimizer, "lr")

    def _warn_outside_step(self) -> None:
        if not self._get_lr_called_within_step:
            warn(
                "To get the last learning rate computed by the scheduler, please use "
                "`get_last_lr()`."
            )

    # -- what formulas are made of -------------------------------------------------------------
    def _same(self) -> list[Rate]:
        return values_of(self.optimizer, "lr")

    def _times(self, factor: float) -> list[Rate]:
        """The present rates times a factor."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]

    def _of_base(self, factor: float) -> list[Rate]:
        """The base rates times a factor."""
        return [lr * factor for lr in self.base_lrs]


_LRScheduler = LRScheduler
"""The class's former name, which public code derives from."""


class _Within:
    """While step runs: get_lr may be called."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self.scheduler = scheduler

    def __enter__(self) -> None:
        self.scheduler._get_lr_called_within_step = True

    def __exit__(self, *error: object) -> None:
        self.scheduler._get_lr_called_within_step = False


def _function(optimizer: Optimizer) -> Any:
    return getattr(optimizer.step, "__func__", optimizer.step)


def _progress(optimizer: Optimizer) -> tuple[int, int]:
    """What changes when the optimizer steps: in Python, or compiled, by writing parameters."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return steps_of(optimizer), sum(p._storage.version for p in params)
