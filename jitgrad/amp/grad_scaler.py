"""GradScaler: a loss is scaled so that float16 gradients do not vanish; steps with inf are skipped.

In a compiled function the skip is a select over the updated tensors, so nothing reads a value.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from enum import Enum
from typing import Any

from jitgrad.autograd.modes import no_grad
from jitgrad.creation import full, zeros
from jitgrad.functions import where
from jitgrad.runtime import cuda, dtypes
from jitgrad.runtime.userline import warn
from jitgrad.state import state
from jitgrad.tensor import Tensor


class OptState(Enum):
    """How far an optimizer is since the last update."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


_used: weakref.WeakSet[GradScaler] = weakref.WeakSet()
"""Scalers that scaled something. For an error message only, so no attribute: what a recorded
function changes of those would be seen as an effect."""


def _any(found: list[Tensor]) -> Tensor:
    """The sum of 0-d tensors, on the first one's device."""
    return sum((x.to(found[0].device) for x in found[1:]), found[0])


class GradScaler:
    """scale(loss).backward(); step(optimizer); update().

    step divides the gradients by the scale (unless unscale_ did), and skips the optimizer's step
    where one is inf or NaN. update multiplies the scale by backoff_factor if a step was skipped, or
    by growth_factor after growth_interval steps without. Not enabled, it passes everything through;
    for device "cuda" it warns and is not enabled where there is no GPU.

    Raises AssertionError for a growth_factor of at most 1 or a backoff_factor of at least 1.
    """

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        self._device = device
        if enabled and device == "cuda" and not cuda.device.count():
            warn("torch.cuda.amp.GradScaler is enabled, but CUDA is not available. Disabling.")
            enabled = False
        self._enabled = enabled
        if not enabled:
            return
        if growth_factor <= 1.0:
            raise AssertionError(f"The growth factor must be > 1.0; got {growth_factor}")
        if backoff_factor >= 1.0:
            raise AssertionError(f"The backoff factor must be < 1.0; got {backoff_factor}")
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._scale = full((), float(init_scale), dtype=dtypes.float32)
        self._growth_tracker = zeros((), dtype=dtypes.int32)
        # Emptied by update: a recorded step leaves it as it was.
        self._per_optimizer_states: dict[int, tuple[OptState, Tensor | None]] = {}

    # -- the four steps ------------------------------------------------------------------------
    def scale(self, outputs: Any) -> Any:
        """outputs (a tensor, or an iterable of them at any depth) times the scale."""
        if not self._enabled:
            return outputs
        _used.add(self)
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError(
            f"[GradScaler.scale] outputs must be a Tensor or an iterable of Tensors; got "
            f"{type(outputs).__name__}"
        )

    def unscale_(self, optimizer: Any) -> None:
        """Divides the optimizer's gradients by the scale, in place; once before each step.

        Raises RuntimeError when it was done already, ValueError for float16 gradients.
        """
        if not self._enabled:
            return
        self._expect_used("unscale_")
        stage, _ = self._stage(optimizer)
        if stage is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if stage is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        found = self._unscale_grads(optimizer)
        self._per_optimizer_states[id(optimizer)] = (OptState.UNSCALED, found)

    @no_grad()
    def _unscale_grads(self, optimizer: Any) -> Tensor | None:
        """1.0 where a gradient is not finite, else 0.0; None where there are no gradients."""
        inverse = self._scale.to(dtypes.float64).reciprocal().to(dtypes.float32)
        found: dict[str, Tensor] = {}  # for each device
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad
                if grad.dtype is dtypes.float16:
                    raise ValueError(
                        "[GradScaler.unscale_] Attempting to unscale FP16 gradients; keep the "
                        f"parameters in float32 (one is {p.dtype} {tuple(p.shape)})"
                    )
                bad = grad.isfinite().logical_not().any()
                here = found.get(grad.device)
                found[grad.device] = bad if here is None else here.logical_or(bad)
                grad.mul_(inverse)
        return _any([x.to(dtypes.float32) for x in found.values()]) if found else None

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step(*args, **kwargs) on unscaled gradients, unless one is inf or NaN. Returns
        its result (None where it was skipped).

        Raises RuntimeError for a closure, or when it was called already since update.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._expect_used("step")
        stage, _ = self._stage(optimizer)
        if stage is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if stage is OptState.READY:
            self.unscale_(optimizer)
        _, found = self._stage(optimizer)
        if found is None:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        out = None
        if state.recorder is not None and getattr(optimizer.step, "masks", False):
            with optimizer.skipping(found != 0):
                out = optimizer.step(*args, **kwargs)
        elif not found.item():
            out = optimizer.step(*args, **kwargs)
        self._per_optimizer_states[id(optimizer)] = (OptState.STEPPED, found)
        return out

    @no_grad()
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """The next scale: new_scale, or by what the steps since the last update found."""
        if not self._enabled:
            return
        self._expect_used("update")
        if new_scale is not None:
            if isinstance(new_scale, Tensor):
                if new_scale.numel() != 1 or new_scale.requires_grad:
                    raise AssertionError(
                        "new_scale should be a float or a 1-element tensor with "
                        f"requires_grad=False; got {new_scale._type}"
                    )
                self._scale.copy_(new_scale.reshape(()))
            else:
                self._scale.fill_(float(new_scale))
        else:
            found = [f for _, f in self._per_optimizer_states.values() if f is not None]
            if not found:
                raise AssertionError("No inf checks were recorded prior to update.")
            self._adapt(_any(found) != 0)
        self._per_optimizer_states.clear()

    def _adapt(self, skipped: Tensor) -> None:
        count = self._growth_tracker + 1
        full_count = count == self._growth_interval
        grown = self._scale * self._growth_factor
        grown = where(full_count & grown.isfinite(), grown, self._scale)
        self._scale.copy_(where(skipped, self._scale * self._backoff_factor, grown))
        self._growth_tracker.copy_(where(skipped | full_count, 0, count))

    def _stage(self, optimizer: Any) -> tuple[OptState, Tensor | None]:
        return self._per_optimizer_states.get(id(optimizer), (OptState.READY, None))

    def _expect_used(self, name: str) -> None:
        if self not in _used:
            raise AssertionError(
                f"Attempted {name} but _scale is None. This may indicate your script did not use "
                "scaler.scale(loss or outputs) earlier in the iteration."
            )

    # -- settings ------------------------------------------------------------------------------
    def is_enabled(self) -> bool:
        """Whether it scales."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale now; 1.0 where it is not enabled. Ends a trace."""
        return float(self._scale.item()) if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale grows by."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets what the scale grows by."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale shrinks by."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets what the scale shrinks by."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """After how many steps without inf the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets after how many steps without inf the scale grows."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        return int(self._growth_tracker.item()) if self._enabled else 0

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors, interval and count as numbers; {} where it is not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(), "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor, "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what state_dict() returned. Raises RuntimeError for that of one not enabled."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled "
                "instance of GradScaler."
            )
        self._scale.fill_(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker.fill_(state_dict["_growth_tracker"])

    def __getstate__(self) -> dict[str, Any]:
        if self._enabled and self._per_optimizer_states:
            raise AssertionError(
                "A GradScaler instance may only be pickled at the beginning of an iteration, or at "
                "the end after scaler.update()."
            )
        return self.__dict__.copy()

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
