"""gradcheck and gradgradcheck: derivatives compared with finite differences.

Every entry of the Jacobian is compared (as torch.autograd.gradcheck's slow mode). Use float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.autograd.engine import grad
from jitgrad.autograd.modes import no_grad
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor, wrap_array


class GradcheckError(RuntimeError):
    """An analytical derivative differs from the numerical one."""


def _outputs(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    out = function(*inputs)
    many = out if isinstance(out, (tuple, list)) else (out,)
    return [y for y in many if isinstance(y, Tensor) and y.is_floating_point()]


def _checked(inputs: Any) -> tuple[list[Any], list[int]]:
    args = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor) and x.requires_grad]
    if not places:
        raise ValueError("gradcheck expects at least one input that requires grad")
    for i in places:
        if args[i].dtype is not dtypes.float64:
            raise ValueError(
                f"gradcheck needs float64 inputs, for finite differences; input {i} is "
                f"{args[i]._type}"
            )
    return args, places


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    fast_mode: bool = False,
    **ignored: Any,
) -> bool:
    """Whether the gradients of func with respect to the inputs that require grad are right.

    Raises GradcheckError (or returns False) for the first Jacobian that differs by more than
    atol + rtol * |numerical|.
    """
    args, places = _checked(inputs)
    try:
        count = len(_outputs(func, args))
        for k in range(count):
            analytical = _analytical(func, args, places, k)
            for i, exact in zip(places, analytical, strict=True):
                numerical = _numerical(func, args, i, k, eps)
                if not np.allclose(exact, numerical, rtol, atol):
                    raise GradcheckError(
                        f"Jacobian mismatch for output {k} with respect to input {i},\n"
                        f"numerical:{numerical}\nanalytical:{exact}"
                    )
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _analytical(
    func: Callable[..., Any], args: list[Any], places: list[int], k: int
) -> list[np.ndarray[Any, Any]]:
    """d output k / d input for each place, (input elements, output elements)."""
    y = _outputs(func, args)[k]
    xs = [args[i] for i in places]
    jacobians = [np.zeros((x.numel(), y.numel())) for x in xs]
    if not y.requires_grad:
        return jacobians
    for j in range(y.numel()):
        seed = np.zeros(y.numel())
        seed[j] = 1.0
        g = wrap_array(seed.reshape(tuple(y.shape)).astype(y.dtype.np))
        found = grad([y], xs, [g], retain_graph=True, allow_unused=True)
        for jacobian, part in zip(jacobians, found, strict=True):
            if part is not None:
                jacobian[:, j] = part.detach().numpy().reshape(-1)
    return jacobians


def _numerical(
    func: Callable[..., Any], args: list[Any], i: int, k: int, eps: float
) -> np.ndarray[Any, Any]:
    x = args[i]
    base = np.array(x.detach().numpy())
    columns = []

    def run(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        changed = list(args)
        changed[i] = wrap_array(array)
        # Functions that take gradients themselves need the tape.
        changed = [
            a.detach().requires_grad_(a.requires_grad or j == i) if isinstance(a, Tensor) else a
            for j, a in enumerate(changed)
        ]
        return np.array(_outputs(func, changed)[k].detach().numpy(), np.float64).reshape(-1)

    for position in np.ndindex(*base.shape):
        high, low = base.copy(), base.copy()
        high[position] += eps
        low[position] -= eps
        columns.append((run(high) - run(low)) / (2 * eps))
    if not columns:
        return np.zeros((0, run(base).size))
    return np.stack(columns)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    **ignored: Any,
) -> bool:
    """gradcheck of the gradient of func, for random cotangents."""
    args, places = _checked(inputs)
    with no_grad():
        shapes = [(tuple(y.shape), y.dtype) for y in _outputs(func, args)]
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        seeds = [
            wrap_array(rng.standard_normal(s).astype(d.np)).requires_grad_() for s, d in shapes
        ]
    else:
        seeds = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    n = len(args)

    def first(*everything: Any) -> tuple[Any, ...]:
        own, cotangents = everything[:n], everything[n:]
        ys = _outputs(func, own)
        pairs = [(y, g) for y, g in zip(ys, cotangents, strict=True) if y.requires_grad]
        xs = [own[i] for i in places]
        found = grad([y for y, _ in pairs], xs, [g for _, g in pairs], create_graph=True,
                     allow_unused=True, materialize_grads=True)  # fmt: skip
        return tuple(found)

    return gradcheck(
        first, [*args, *seeds], eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception
    )
