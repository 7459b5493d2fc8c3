"""torch.utils.checkpoint: what a function saves for backward is computed again, not kept.

Through the hooks on saved tensors: nodes made inside keep a number each; when backward asks for the
first of them, the function runs again and hands out what it saves, in the same order. Draws of
random numbers are noted, so the second run draws the same (random.DrawLog). Under `@jit` the
recomputation is recorded as part of the backward; the compiler may merge it with the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jitgrad.autograd.graph import saved_tensors_hooks
from jitgrad.autograd.modes import enable_grad, no_grad
from jitgrad.casting import set_casting
from jitgrad.pytree import flatten
from jitgrad.random import DrawLog
from jitgrad.runtime.userline import warn
from jitgrad.state import state
from jitgrad.tensor import Tensor

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


class CheckpointError(RuntimeError):
    """The second run of a checkpointed function saved other tensors than the first."""


def noop_context_fn() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """No contexts: the default of `context_fn`."""
    return nullcontext(), nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Contexts = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """function(*args, **kwargs), whose intermediate values are computed again in backward.

    use_reentrant: True is PyTorch's older form, here the same but for this: when no tensor argument
    requires grad, the result does not. preserve_rng_state=False (a keyword): the second run draws
    new random numbers. context_fn gives two contexts, for the first and the second run.
    determinism_check: "default" compares types of what the two runs save, "none" does not.
    early_stop: the second run ends when all that is needed is there. debug: errors name the line of
    the forward operation, as they do anyway.

    Raises CheckpointError in backward when the second run differs, ValueError for options that do
    not go together.
    """
    if use_reentrant is None:
        warn(
            "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. "
            "use_reentrant=False is recommended; without it, use_reentrant=True is taken."
        )
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    if determinism_check not in ("default", "none"):
        raise ValueError(
            f"determinism_check should be one of ['default', 'none'], but got {determinism_check}"
        )
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug:
            raise ValueError(
                "Passing `context_fn` or `debug` is only supported when use_reentrant=False."
            )
        if state.grad_enabled and not any(
            isinstance(x, Tensor) and x.requires_grad for x in flatten(args)[0]
        ):
            warn("None of the inputs have requires_grad=True. Gradients will be None")
            with no_grad():
                return function(*args)
    first, second = context_fn()
    if not state.grad_enabled:
        with first:
            return function(*args, **kwargs)
    again = _Again(function, args, kwargs, second, determinism_check, early_stop, preserve)
    with first, again.noting():
        return function(*args, **kwargs)


class _Enough(Exception):
    """The second run saved all that the first did."""


class _Again:
    """A function's second run: what it saves, by number.

    `types` of what the first run saved; `found` by the second run, until each is taken. Each run of
    backward computes anew.
    """

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any,
        context: AbstractContextManager[Any], check: str, early_stop: bool, preserve: bool,
    ) -> None:  # fmt: skip
        self.function, self.args, self.kwargs = function, args, kwargs
        self.context, self.check, self.early_stop = context, check, early_stop
        self.draws = DrawLog() if preserve else None
        self.casting = state.casting
        self.types: list[Any] = []
        self.found: dict[int, Tensor] = {}
        self.run: Any = None
        self.versions = [(x, _version(x)) for x in self.tensors()]

    def tensors(self) -> list[Tensor]:
        """The arguments that the second run computes with."""
        return [x for x in flatten((self.args, self.kwargs))[0] if isinstance(x, Tensor)]

    def noting(self) -> AbstractContextManager[Any]:
        return _Both(saved_tensors_hooks(self._note, self._take), self._drawing(False))

    def _drawing(self, again: bool) -> AbstractContextManager[Any]:
        return nullcontext() if self.draws is None else self.draws.on(again)

    def _note(self, x: Tensor) -> int:
        self.types.append(x._type)
        return len(self.types) - 1

    def _take(self, number: int) -> Tensor:
        if self.run is not state.backward or number not in self.found:
            self.run = state.backward
            self._compute()
        if number not in self.found:
            raise CheckpointError(
                "torch.utils.checkpoint: A different number of tensors was saved during the "
                "original forward and recomputation.\nNumber of tensors saved during forward: "
                f"{len(self.types)}\nNumber of tensors saved during recomputation: "
                f"{len(self.found)}.\nThe function must do the same when it runs again"
            )
        return self.found.pop(number)

    def _compute(self) -> None:
        for x, version in self.versions:
            if _version(x) != version:
                raise RuntimeError(
                    "[checkpoint] expected arguments that are not changed in place between forward "
                    f"and backward, as they are computed with again; {x._type} is at version "
                    f"{_version(x)}, was at {version}; pass a clone()"
                )
        self.found = {}
        count = [0]

        def keep(x: Tensor) -> None:
            number = count[0]
            count[0] += 1
            if number >= len(self.types):
                raise CheckpointError(
                    "torch.utils.checkpoint: trying to save more tensors during recomputation than "
                    "during the original forward pass."
                )
            if self.check == "default" and x._type != self.types[number]:
                raise CheckpointError(
                    "torch.utils.checkpoint: Recomputed values for the following tensors have "
                    f"different metadata than during the forward pass.\ntensor at position "
                    f"{number}: saved metadata {self.types[number]}, recomputed metadata {x._type}"
                )
            self.found[number] = x.detach()
            if self.early_stop and count[0] == len(self.types):
                raise _Enough

        hooks = saved_tensors_hooks(keep, _never)
        before, run, casts = state.casting, state.casting_run, state.casts
        set_casting(self.casting)
        state.casts = None
        try:
            with enable_grad(), self.context, hooks, self._drawing(True):
                self.function(*self.args, **self.kwargs)
        except _Enough:
            pass
        finally:
            set_casting(before)
            state.casting_run, state.casts = run, casts


def _version(x: Tensor) -> int:
    return x._storage.version - x._storage.hidden


def _never(packed: Any) -> Tensor:
    raise CheckpointError(
        "torch.utils.checkpoint: backward inside a checkpointed function, in its second run, is "
        "not supported; checkpoint the part before it"
    )


class _Both:
    """Two contexts as one."""

    def __init__(self, a: Any, b: AbstractContextManager[Any]) -> None:
        self._a, self._b = a, b

    def __enter__(self) -> None:
        self._a.__enter__()
        self._b.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._b.__exit__(*exc)
        self._a.__exit__(*exc)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Modules one after another, in `segments` parts of which all but the last are checkpointed.

    functions: a Sequential or a list of functions of one argument. Raises ValueError for unknown
    keywords.
    """
    if use_reentrant is None:
        warn(
            "torch.utils.checkpoint.checkpoint_sequential: the use_reentrant parameter should be "
            "passed explicitly. use_reentrant=False is recommended; without it, "
            "use_reentrant=True is taken."
        )
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    children = getattr(functions, "children", None)
    parts: Sequence[Any] = list(children()) if children is not None else list(functions)

    def run(own: Sequence[Any]) -> Callable[[Any], Any]:
        def forward(x: Any) -> Any:
            for part in own:
                x = part(x)
            return x

        return forward

    size = len(parts) // segments
    at = 0
    for _ in range(segments - 1):
        input = checkpoint(
            run(parts[at : at + size]), input, use_reentrant=use_reentrant,
            preserve_rng_state=preserve,
        )  # fmt: skip
        at += size
    return run(parts[at:])(input)


def get_device_states(*args: Any) -> tuple[list[int], list[Tensor]]:
    """(devices, states of their generators) of the tensors in args that are on GPUs: none, as there
    is one generator for all devices, `get_rng_state()`."""
    return [], []


def set_device_states(
    devices: Sequence[int], states: Sequence[Tensor], *, device_type: str | None = None
) -> None:
    """Sets what get_device_states gave: nothing. Raises RuntimeError for states of devices."""
    if len(devices) or len(states):
        raise RuntimeError(
            "[set_device_states] expected no states, as get_device_states gives; got those of "
            f"devices {list(devices)}; one generator draws for all devices: use set_rng_state()"
        )


__all__ = [
    "CheckpointError", "checkpoint", "checkpoint_sequential", "get_device_states",
    "noop_context_fn", "set_device_states",
]  # fmt: skip
