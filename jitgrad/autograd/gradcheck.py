"""gradcheck and gradgradcheck: derivatives compared with finite differences.

Every entry of the Jacobian is compared, or (fast_mode) its product with random vectors from both
sides. Reverse mode, forward mode, both by vmap too, and whether a second run gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad.autograd.engine import grad
from jitgrad.autograd.forward import jvp
from jitgrad.autograd.modes import no_grad
from jitgrad.creation import placed
from jitgrad.functions.complex_numbers import view_as_complex, view_as_real
from jitgrad.levels import Level
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor, wrap_array

Array = np.ndarray[Any, Any]


def _beside(x: Tensor, values: Array) -> Tensor:
    """A tensor of these values where x is."""
    return placed(wrap_array(values), x.device)


class GradcheckError(RuntimeError):
    """An analytical derivative differs from the numerical one."""


@dataclass(eq=False, repr=False)
class _Check:
    """One gradcheck: the function, its inputs, those of them that are checked, and tolerances."""

    func: Callable[..., Any]
    args: list[Any]
    places: list[int]
    eps: float
    atol: float
    rtol: float
    nondet_tol: float

    def outputs(self, args: Sequence[Any]) -> list[Tensor]:
        out = self.func(*args)
        many = out if isinstance(out, (tuple, list)) else (out,)
        reals = [real_form(y) for y in many if isinstance(y, Tensor)]
        return [y for y in reals if y.is_floating_point()]

    @property
    def inputs(self) -> list[Tensor]:
        return [self.args[i] for i in self.places]

    # -- numerical -------------------------------------------------------------------------------
    def moved(self, changes: dict[int, Array]) -> list[Array]:
        """All outputs, as float64 arrays, with these values of inputs (by place)."""
        args = list(self.args)
        for i, x in enumerate(args):
            if isinstance(x, Tensor):
                # Functions that take gradients themselves need the tape.
                fresh = _beside(x, changes[i]) if i in changes else x.detach()
                args[i] = fresh.requires_grad_(x.requires_grad)
        return [np.array(y.detach().cpu().numpy(), np.float64) for y in self.outputs(args)]

    def slope(self, i: int, direction: Array) -> list[Array]:
        """The central difference of all outputs along a direction of input i."""
        base = np.array(self.args[i].detach().cpu().numpy())
        high = self.moved({i: base + self.eps * direction})
        low = self.moved({i: base - self.eps * direction})
        return [(a - b) / (2 * self.eps) for a, b in zip(high, low, strict=True)]

    def numerical(self, i: int, count: int) -> list[Array]:
        """For each output, d output / d input i: (input elements, output elements)."""
        columns: list[list[Array]] = [[] for _ in range(count)]
        for direction in _units(self.args[i]):
            for k, d in enumerate(self.slope(i, direction)):
                columns[k].append(d.reshape(-1))
        sizes = [y.size for y in self.moved({})]
        return [np.stack(c) if c else np.zeros((0, n)) for c, n in zip(columns, sizes, strict=True)]

    # -- analytical ------------------------------------------------------------------------------
    def pull(self, y: Tensor, seed: Array) -> list[Array]:
        """The gradients of sum(y * seed) with respect to the checked inputs."""
        if not y.requires_grad:
            return [np.zeros(tuple(x.shape)) for x in self.inputs]
        g = _beside(y, seed.astype(y.dtype.np))
        found = grad([y], self.inputs, [g], retain_graph=True, allow_unused=True)
        for x, d in zip(self.inputs, found, strict=True):
            if d is not None and d._type.dtype is not x._type.dtype:
                raise GradcheckError(f"gradient of type {d._type} for an input of type {x._type}")
        return [
            np.zeros(tuple(x.shape)) if d is None else np.array(d.detach().cpu().numpy())
            for x, d in zip(self.inputs, found, strict=True)
        ]

    def rows(self, y: Tensor) -> list[Array]:
        """The Jacobian of one output by reverse mode, for each input: (input, output elements)."""
        columns = [self.pull(y, unit) for unit in _units(y)]
        return [
            np.stack([c[n].reshape(-1) for c in columns], 1)
            if columns
            else np.zeros((x.numel(), 0))
            for n, x in enumerate(self.inputs)
        ]

    def rows_by_vmap(self, y: Tensor) -> list[Array]:
        seeds = _beside(y, np.stack(list(_units(y))).astype(y.dtype.np))
        found = grad([y], self.inputs, [seeds], True, allow_unused=True, is_grads_batched=True)
        n = y.numel()
        return [
            np.zeros((x.numel(), n)) if d is None else d.detach().cpu().numpy().reshape(n, -1).T
            for x, d in zip(self.inputs, found, strict=True)
        ]

    def push(self, i: int, tangent: Tensor) -> list[Tensor]:
        """The derivative of all outputs along a tangent of input i, by forward mode."""

        def only(x: Any) -> Any:
            return self.outputs([x if j == i else a for j, a in enumerate(self.args)])

        return list(jvp(only, [self.args[i]], [tangent])[1])

    def pushed(self, i: int, direction: Array) -> list[Array]:
        tangent = _beside(self.args[i], direction.astype(self.args[i].dtype.np))
        return [np.array(t.detach().cpu().numpy()) for t in self.push(i, tangent)]

    def columns_by_vmap(self, i: int) -> list[Array]:
        x = self.args[i]
        level = Level(x.numel())
        basis = _beside(x, np.stack(list(_units(x))).astype(x.dtype.np))
        with level.inside():
            found = self.push(i, level.batch(basis))
            with level.outside():
                wide = [level.widened(t).detach().cpu().numpy() for t in found]
        return [w.reshape(x.numel(), -1) for w in wide]

    # -- comparing -------------------------------------------------------------------------------
    def compare(self, exact: Array, numerical: Array, k: int, i: int, what: str = "") -> None:
        if not np.allclose(exact, numerical, self.rtol, self.atol):
            raise GradcheckError(
                f"{what}Jacobian mismatch for output {k} with respect to input {i},\n"
                f"numerical:{numerical}\nanalytical:{exact}"
            )


def _units(x: Tensor) -> Sequence[Array]:
    """Ones at each element in turn, zeros else."""
    shape = tuple(x.shape)
    return [np.reshape(row, shape) for row in np.eye(x.numel())]


def real_form(x: Tensor) -> Tensor:
    """A complex tensor as its parts, in a last dim of 2; others as they are."""
    return view_as_real(x) if x.is_complex() else x


def _checked(
    func: Callable[..., Any], inputs: Any
) -> tuple[Callable[..., Any], list[Any], list[int]]:
    """The function, its arguments, and which of these are checked. Complex ones that are checked
    are handed over as their parts: the gradient of z = x + iy is dL/dx + i dL/dy."""
    args = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor) and x.requires_grad]
    if not places:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them "
            "have requires_grad=True."
        )
    for i in places:
        if args[i].dtype not in (dtypes.float64, dtypes.complex128):
            warn(
                f"Input #{i} requires gradient and is not a double precision floating point. This "
                f"check will likely fail if all the inputs are not of double precision; got "
                f"{args[i]._type}"
            )
    whole = [i for i in places if args[i].is_complex()]
    if not whole:
        return func, args, places
    for i in whole:
        args[i] = view_as_real(args[i].detach()).clone().requires_grad_()

    def of_parts(*given: Any) -> Any:
        return func(*(view_as_complex(x) if i in whole else x for i, x in enumerate(given)))

    return of_parts, args, places


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether the gradients of func with respect to the inputs that require grad are right.

    check_backward_ad, check_forward_ad: which modes; check_batched_grad and
    check_batched_forward_grad: by vmap, too. nondet_tol: how far a second backward may differ.
    fast_mode: one product with random vectors, not the whole Jacobian. Gradients of the wrong dtype
    and outputs without a gradient are always checked (check_grad_dtypes, check_undefined_grad);
    masked is for sparse tensors, which there are none of.

    Raises GradcheckError (or returns False) for the first Jacobian that differs by more than
    atol + rtol * |numerical|; ValueError when no input requires grad. Use float64.
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError(
            "Expected at least one of check_forward_ad or check_backward_ad to be True"
        )
    if check_batched_grad and not check_backward_ad:
        raise AssertionError(
            "Setting check_batched_grad=True requires check_backward_ad to be True"
        )
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError(
            "Setting check_batched_forward_grad=True requires check_forward_ad to be True"
        )
    func, args, places = _checked(func, inputs)
    check = _Check(func, args, places, eps, atol, rtol, nondet_tol)
    try:
        if fast_mode:
            _fast(check, check_backward_ad, check_forward_ad)
        else:
            _slow(check, check_backward_ad, check_forward_ad)
        if check_backward_ad:
            _repeated(check)
        if check_batched_grad:
            for k, y in enumerate(check.outputs(args)):
                if y.requires_grad and y.numel():
                    pairs = zip(places, check.rows_by_vmap(y), check.rows(y), strict=True)
                    for i, found, wanted in pairs:
                        check.compare(found, wanted, k, i, "Batched gradients: ")
        if check_batched_forward_grad:
            for i in places:
                if args[i].numel():
                    singly = [check.pushed(i, unit) for unit in _units(args[i])]
                    for k, found in enumerate(check.columns_by_vmap(i)):
                        wanted = np.stack([s[k].reshape(-1) for s in singly])
                        check.compare(found, wanted, k, i, "Batched forward gradients: ")
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _slow(check: _Check, backward: bool, forward: bool) -> None:
    """Every entry of every Jacobian."""
    outputs = check.outputs(check.args)
    jacobians = [check.rows(y) for y in outputs] if backward else []
    for n, i in enumerate(check.places):
        numerical = check.numerical(i, len(outputs))
        for k, jacobian in enumerate(jacobians):
            check.compare(jacobian[n], numerical[k], k, i)
        if forward and check.args[i].numel():
            columns = [check.pushed(i, unit) for unit in _units(check.args[i])]
            for k in range(len(outputs)):
                exact = np.stack([c[k].reshape(-1) for c in columns])
                check.compare(exact, numerical[k], k, i, "Forward mode: ")


def _fast(check: _Check, backward: bool, forward: bool) -> None:
    """u J v for random unit vectors u and v."""
    rng = np.random.default_rng(0)

    def unit(x: Tensor) -> Array:
        v = rng.standard_normal(tuple(x.shape))
        return v / max(float(np.linalg.norm(v)), 1e-30)

    outputs = check.outputs(check.args)
    seeds = [unit(y) for y in outputs]
    for n, i in enumerate(check.places):
        v = unit(check.args[i])
        numerical = check.slope(i, v)
        along = check.pushed(i, v) if forward else []
        for k, (y, u) in enumerate(zip(outputs, seeds, strict=True)):
            wanted = np.asarray((numerical[k] * u).sum())
            if backward:
                check.compare(np.asarray((check.pull(y, u)[n] * v).sum()), wanted, k, i)
            if forward:
                check.compare(np.asarray((along[k] * u).sum()), wanted, k, i, "Forward mode: ")


def _repeated(check: _Check) -> None:
    """A second backward gives the same."""
    for k, y in enumerate(check.outputs(check.args)):
        seed = np.ones(tuple(y.shape))
        pairs = zip(check.places, check.pull(y, seed), check.pull(y, seed), strict=True)
        for i, a, b in pairs:
            if not np.allclose(a, b, rtol=0, atol=check.nondet_tol, equal_nan=True):
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input and "
                    "grad_output multiple times gives different values, although analytical "
                    f"gradient matches numerical gradient. The tolerance for nondeterminism was "
                    f"{check.nondet_tol} (output {k}, input {i})."
                )


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """gradcheck of the gradient of func, for random cotangents (or grad_outputs).

    check_rev_over_rev, check_fwd_over_rev: the mode of the second derivative. Else as gradcheck.
    """
    func, args, places = _checked(func, inputs)
    plain = _Check(func, args, places, eps, atol, rtol, nondet_tol)
    with no_grad():
        outputs = plain.outputs(args)
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        seeds = []
        for y in outputs:
            values = rng.standard_normal(tuple(y.shape)).astype(y.dtype.np)
            if gen_non_contig_grad_outputs:
                values = np.stack([values, values], -1)[..., 0]
            seeds.append(_beside(y, np.asarray(values)).requires_grad_())
    else:
        given = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
        seeds = [real_form(g) for g in given]
    n = len(args)

    def first(*everything: Any) -> tuple[Any, ...]:
        own, cotangents = everything[:n], everything[n:]
        ys = plain.outputs(own)
        pairs = [(y, g) for y, g in zip(ys, cotangents, strict=True) if y.requires_grad]
        xs = [own[i] for i in places]
        found = grad([y for y, _ in pairs], xs, [g for _, g in pairs], create_graph=True,
                     allow_unused=True, materialize_grads=True)  # fmt: skip
        return tuple(found)

    return gradcheck(
        first, [*args, *seeds], eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
        nondet_tol=nondet_tol, check_batched_grad=check_batched_grad and check_rev_over_rev,
        check_forward_ad=check_fwd_over_rev, check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode,
    )  # fmt: skip
