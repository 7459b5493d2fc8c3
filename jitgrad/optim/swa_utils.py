"""Averages of a model's weights over training (Izmailov et al. 2018), and what goes with them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

from jitgrad.autograd.modes import no_grad
from jitgrad.functions import where
from jitgrad.making import tensor
from jitgrad.nn.batchnorm import _BatchNorm
from jitgrad.nn.module import Module
from jitgrad.optim.lr_scheduler.base import LRScheduler, Rate, for_groups
from jitgrad.optim.optimizer import Optimizer
from jitgrad.state import state
from jitgrad.tensor import Tensor

Average = Callable[[Tensor, Tensor, Any], Tensor]
Averages = Callable[[list[Tensor], list[Tensor], Any], None]


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(
            f"Invalid decay value {decay} provided. Please provide a value in [0,1] range."
        )


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """avg_fn of an exponential moving average: decay * average + (1 - decay) * now."""
    _check_decay(decay)

    @no_grad()
    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        return ema_param * decay + current_param * (1 - decay)

    return ema_update


def get_swa_avg_fn() -> Average:
    """avg_fn of the mean of all models so far."""

    @no_grad()
    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


def _for_lists(average: Average) -> Averages:
    @no_grad()
    def update(averages: list[Tensor], params: list[Tensor], num_averaged: Any) -> None:
        for a, p in zip(averages, params, strict=True):
            a.copy_(average(a, p, num_averaged))

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """multi_avg_fn of an exponential moving average: on lists of tensors, in place."""
    return _for_lists(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Averages:
    """multi_avg_fn of the mean of all models so far: on lists of tensors, in place."""
    return _for_lists(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of a model whose parameters are an average of the model's: by avg_fn(average, now,
    n_averaged) for each, or multi_avg_fn(averages, nows, n_averaged) in place for all; by default
    the mean. The first update copies. `n_averaged` is a buffer, so updates compile.

    use_buffers: buffers are averaged, too; else they are copied at each update.
    """

    n_averaged: Tensor

    def __init__(
        self, model: Module, device: Any = None, avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None, use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Takes the model's parameters into the average."""
        averages: list[Tensor] = [*self.module.parameters()]
        now: list[Tensor] = [*model.parameters()]
        if self.use_buffers:
            averages += list(self.module.buffers())
            now += list(model.buffers())
        averages, now = [p.detach() for p in averages], [p.detach() for p in now]
        # In a recording, whether this is the first update is a value: one trace serves both.
        first: Any = self.n_averaged == 0
        if state.recorder is None:
            first = bool(first)
        if first is not True:
            self._average(averages, now)
        if first is not False:
            for a, p in zip(averages, now, strict=True):
                a.copy_(p if first is True else where(first, p, a))
        if not self.use_buffers:
            for a, b in zip(self.module.buffers(), model.buffers(), strict=True):
                a.detach().copy_(b.detach())
        self.n_averaged += 1

    def _average(self, averages: list[Tensor], now: list[Tensor]) -> None:
        if self.multi_avg_fn is not None:
            self.multi_avg_fn(averages, now, self.n_averaged)
            return
        average = self.avg_fn or get_swa_avg_fn()
        for a, p in zip(averages, now, strict=True):
            a.copy_(average(a, p, self.n_averaged))


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Computes the running statistics of all BatchNorm layers anew, from one pass over loader (of
    inputs, or of tuples and lists that begin with one)."""
    momenta = {m: m.momentum for m in model.modules() if isinstance(m, _BatchNorm)}
    if not momenta:
        return
    was_training = model.training
    model.train()
    for module in momenta:
        module.reset_running_stats()
        module.momentum = None  # the mean over all batches
    for batch in loader:
        x = batch[0] if isinstance(batch, (list, tuple)) else batch
        model(x if device is None else x.to(device))
    for module, momentum in momenta.items():
        module.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Anneals each group's rate to swa_lr in anneal_epochs, then keeps it; by half a cosine
    (anneal_strategy "cos") or a line ("linear")."""

    def __init__(
        self, optimizer: Optimizer, swa_lr: Any, anneal_epochs: int = 10,
        anneal_strategy: str = "cos", last_epoch: int = -1,
    ) -> None:  # fmt: skip
        for lr, group in zip(
            for_groups("swa_lr", optimizer, swa_lr), optimizer.param_groups, strict=True
        ):
            group["swa_lr"] = lr
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _part(self, step: int) -> float:
        """How much of the way is behind after so many steps."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self._anneal_strategy == "cos" else t

    def get_lr(self) -> list[Rate]:
        self._warn_outside_step()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._part(step - 1), self._part(step)
        rates = []
        for group in self.optimizer.param_groups:
            target = group["swa_lr"]
            if before == 1:
                start = target
            else:  # the rate that the annealing began with
                start = (group["lr"] - before * target) / (1 - before)
            rates.append(target * now + start * (1 - now))
        return rates


__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn",
    "get_swa_multi_avg_fn", "update_bn",
]  # fmt: skip
