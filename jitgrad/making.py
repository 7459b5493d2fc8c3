"""Factories as the user calls them: on the default device, in pinned memory where that is asked.

Owns `makes`, which gives a function that makes tensors from numbers the default device
(set_default_device, `with device(...)`) and pin_memory, and the factories of creation.py with it,
for the public namespace and for what modules make. jitgrad's other code calls creation.py's own:
what it makes is on the CPU unless it says where.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from jitgrad import creation
from jitgrad.conversions import pin_memory as pinned
from jitgrad.device import place
from jitgrad.state import state

Function = TypeVar("Function", bound=Callable[..., Any])


def makes(function: Function, follows: bool = False) -> Function:
    """`function`, which makes a tensor and has an argument `device`: its result is on that device,
    or else on the default one, and is in pinned memory with pin_memory=True.

    follows: by default the result is where an argument is, not on the default device.
    """
    code: Any = getattr(function, "__code__")  # noqa: B009
    positional = code.co_varnames[: code.co_argcount]
    at = positional.index("device") if "device" in positional else None
    leaves = "requires_grad" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        pin = kwargs.get("pin_memory")
        where = kwargs.get("device") if at is None or len(args) <= at else args[at]
        if where is None and not follows and state.device is not None:
            where = kwargs["device"] = state.device
        if not pin and where is None:
            return function(*args, **kwargs)
        grad = leaves and kwargs.pop("requires_grad", False)
        out = function(*args, **kwargs)
        if where is not None and out._type.device != place(where):
            out = creation.placed(out, where)
        if pin:
            out = pinned(out)
        return out.requires_grad_(grad) if grad else out

    vars(made)["makes"] = True  # function_modes.py
    return made  # type: ignore[return-value]


arange, eye, linspace, logspace, range = (
    makes(creation.arange), makes(creation.eye), makes(creation.linspace),
    makes(creation.logspace), makes(creation.range),
)  # fmt: skip
empty, ones, zeros, full = (
    makes(creation.empty), makes(creation.ones), makes(creation.zeros), makes(creation.full)
)  # fmt: skip
empty_permuted, empty_strided = makes(creation.empty_permuted), makes(creation.empty_strided)
rand, randn, randint, randperm = (
    makes(creation.rand), makes(creation.randn), makes(creation.randint), makes(creation.randperm)
)  # fmt: skip
as_tensor, asarray, scalar_tensor, tensor = (
    makes(creation.as_tensor), makes(creation.asarray), makes(creation.scalar_tensor),
    makes(creation.tensor),
)  # fmt: skip
empty_like, ones_like, zeros_like, full_like = (
    makes(creation.empty_like, True), makes(creation.ones_like, True),
    makes(creation.zeros_like, True), makes(creation.full_like, True),
)  # fmt: skip
rand_like, randn_like, randint_like, normal = (
    makes(creation.rand_like, True), makes(creation.randn_like, True),
    makes(creation.randint_like, True), makes(creation.normal, True),
)  # fmt: skip
