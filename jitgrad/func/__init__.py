"""Function transforms: the public names of `torch.func`.

grad, vjp and their kin are the tape, jvp and its kin forward mode, vmap a level
(jitgrad/levels.py). They nest with each other, with backward(), and with `@jit`.
"""

from __future__ import annotations

from jitgrad.func.forward import jacfwd, jvp
from jitgrad.func.mapping import vmap
from jitgrad.func.reverse import grad, grad_and_value, hessian, jacrev, linearize, vjp
from jitgrad.func.stateless import (
    functional_call,
    replace_all_batch_norm_modules_,
    stack_module_state,
)
from jitgrad.missing import missing

__getattr__ = missing(__name__)

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "replace_all_batch_norm_modules_",
    "stack_module_state",
    "vjp",
    "vmap",
]
