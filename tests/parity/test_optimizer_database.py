"""PyTorch's own database of optimizers: every optimizer with every one of its inputs.

`torch.testing._internal.common_optimizers.optim_db` has, for each class, the hyper-parameters that
PyTorch's own tests use, the flags that it takes (foreach, fused, differentiable, capturable), and
inputs that must fail. Parameters, state and groups are compared after several steps; some
parameters miss gradients in some steps.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, same, torch
from parity.op_database import convert

import jitgrad

common = pytest.importorskip(
    "torch.testing._internal.common_optimizers", reason="expecttest is not installed"
)

# SparseAdam takes sparse gradients only, which are not there (docs/limits.md).
ENTRIES = [e for e in common.optim_db if e.name != "SparseAdam"]
SCALE = 300.0  # roundings that steps add up
# Muon's iteration rounds to bfloat16, so that roundings before it may move a last digit of that.
SCALES = {"Muon": 1e8}
# What PyTorch changes in place, and then cannot differentiate twice (and with amsgrad).
ONE_STEP = ("Adamax", "RMSprop", "Rprop")
SCRATCH = ("al",)  # of LBFGS: written before it is read


@contextmanager
def default_dtype(name: str) -> Iterator[None]:
    """Step counts, and what follows from them, are then of this dtype, in both libraries."""
    for lib in LIBS:
        lib.t.set_default_dtype(getattr(lib.t, name))
    yield
    for lib in LIBS:
        lib.t.set_default_dtype(lib.t.float32)


def inputs_of(entry: Any) -> list[dict[str, Any]]:
    """The hyper-parameters, those of GPUs included, which have `capturable`."""
    found = [i.kwargs for device in ("cpu", "cuda") for i in entry.optim_inputs_func(device)]
    return list({str(k): k for k in found}.values())


def flags_of(entry: Any) -> list[str]:
    """The flags that choose an implementation on the CPU."""
    return [f for f in entry.supported_impls if f != "fused" or "cpu" in entry.supports_fused_on]


def cases(flags: bool) -> list[Any]:
    """(entry, hyper-parameters), with each flag that chooses an implementation when `flags`."""
    out = []
    for entry in ENTRIES:
        chosen = [f for f in flags_of(entry) if flags and f != "differentiable"]
        for k in inputs_of(entry):
            out.append((entry, k))
            if not k.get("capturable"):
                out += [(entry, {**k, flag: True}) for flag in chosen]
    return [pytest.param(e, k, id=f"{e.name}-{text(k)}") for e, k in out]


def text(kwargs: dict[str, Any]) -> str:
    return ",".join(f"{k}={v}" for k, v in kwargs.items()).replace(" ", "") or "default"


def options(lib: Any, kwargs: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The hyper-parameters for a library, tensors of the dtype that numbers compute in. PyTorch's
    `capturable` is for GPUs only."""
    wide = dtype != "float32"

    def held(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(held(i) for i in x)
        return x.to(torch.float64 if wide else torch.float32) if torch.is_tensor(x) else x

    given = {k: held(v) for k, v in kwargs.items()}
    if lib is OURS:
        return dict(convert(given))
    return {k: v for k, v in copy.deepcopy(given).items() if k != "capturable"}


def parameters(lib: Any, entry: Any, dtype: str, seed: int = 0) -> list[Any]:
    """Matrices for Muon, else also a vector, a number and what has no element."""
    rng = np.random.default_rng(seed)
    shapes: list[tuple[int, ...]] = [(4, 3), (2, 5), (3, 1)]
    if entry.name != "Muon":
        shapes += [(3,), ()]
    if entry.name not in ("Muon", "Adafactor"):  # PyTorch's Adafactor divides by the size
        shapes.append((0, 2))
    return [lib.nn.Parameter(values(lib, rng, s, dtype)) for s in shapes]


def values(lib: Any, rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    a = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        a = a + 1j * rng.standard_normal(shape)
    return lib.t.from_numpy(np.asarray(a)).to(getattr(lib.t, dtype))


def loss_of(lib: Any, params: list[Any], step: int) -> Any:
    """A loss whose gradients change sign from step to step; every other parameter misses some."""
    rng = np.random.default_rng(100 + step)
    loss: Any = 0
    for i, p in enumerate(params):
        c = values(lib, rng, tuple(p.shape), str(p.dtype).split(".")[-1])
        if i % 2 == 0 or step % 3 != 1:
            z = c * p
            loss = loss + ((z.real if p.is_complex() else z) + 0.1 * (p * p.conj()).real).sum()
    return loss


def loss_with(coefficients: Any, params: list[Any]) -> Any:
    return sum((c * p + 0.1 * p * p).sum() for c, p in zip(coefficients, params, strict=True))


def take(lib: Any, params: list[Any], optimizer: Any, step: int) -> Any:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(lib, params, 0 if isinstance(optimizer, lib.optim.LBFGS) else step)
        loss.backward()
        return loss

    return optimizer.step(closure)


def same_parameters(ours: list[Any], theirs: list[Any], scale: float = SCALE) -> None:
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        same(a, b, f"parameter {i}", scale)


def same_value(a: Any, b: Any, what: str) -> None:
    """Numbers, tensors, None, and tuples and lists of them."""
    if isinstance(b, torch.Tensor):
        # State of complex parameters is in parts (docs/differences.md).
        same(a, torch.view_as_real(b) if b.is_complex() else b, what, SCALE)
    elif isinstance(b, (tuple, list)):
        assert type(a) is type(b) and len(a) == len(b), f"{what}: {a!r} {b!r}"
        for x, y in zip(a, b, strict=True):
            same_value(x, y, what)
    elif isinstance(b, float):
        np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=what)
    else:
        assert a == b and type(a) is type(b), f"{what}: {a!r} {b!r}"


def same_state(ours: Any, theirs: Any) -> None:
    """Two state_dicts; hyper-parameter `capturable` aside."""
    a, b = ours.state_dict(), theirs.state_dict()
    assert list(a["state"]) == list(b["state"])
    for number, state in b["state"].items():
        assert sorted(a["state"][number]) == sorted(state)
        for key, value in state.items():
            if key not in SCRATCH:
                same_value(a["state"][number][key], value, f"state {number}.{key}")
    assert len(a["param_groups"]) == len(b["param_groups"])
    for x, y in zip(a["param_groups"], b["param_groups"], strict=True):
        assert list(x) == list(y)
        for key, value in y.items():
            if key != "capturable":
                same_value(x[key], value, f"group {key}")


def made(entry: Any, kwargs: dict[str, Any], dtype: str) -> tuple[list[list[Any]], list[Any]]:
    """Parameters and optimizers, ours and theirs."""
    params = [parameters(lib, entry, dtype) for lib in LIBS]
    optimizers = [
        getattr(lib.optim, entry.name)(p, **options(lib, kwargs, dtype))
        for lib, p in zip(LIBS, params, strict=True)
    ]
    return params, optimizers


def dtypes_of(entry: Any, kwargs: dict[str, Any]) -> list[str]:
    """Complex ones, too, where PyTorch takes them (LBFGS does not here: docs/limits.md)."""
    if kwargs.get("fused") or kwargs.get("foreach"):
        return ["float64"]
    takes = entry.supports_complex and entry.name != "LBFGS"
    return ["float64", "float32", *(["complex128"] if takes else [])]


@pytest.mark.parametrize("entry,kwargs", cases(flags=True))
def test_steps(entry, kwargs):
    scale = SCALES.get(entry.name, SCALE)
    for dtype in dtypes_of(entry, kwargs):
        with default_dtype("float32" if dtype == "float32" else "float64"):
            params, optimizers = made(entry, kwargs, dtype)
            for step in range(4):
                losses = [take(*x, step) for x in zip(LIBS, params, optimizers, strict=True)]
                same(*losses, "loss", scale)
            same_parameters(*params, scale)
            if (entry.name, dtype) != ("LBFGS", "float32"):  # differences that cancel
                same_state(*optimizers)


@pytest.mark.parametrize("entry,kwargs", [c for c in cases(flags=False) if "LBFGS" not in c.id])
def test_compiled(entry, kwargs):
    """Steps compiled without fallback: what a step changes does not compile it again. (How often
    LBFGS evaluates depends on values.)"""
    params, optimizers = made(entry, kwargs, "float32")

    @jitgrad.jit(fallback="error")
    def step(*coefficients):
        optimizers[0].zero_grad()
        loss_with(coefficients, params[0]).backward()
        optimizers[0].step()

    for number in range(5):
        given = [
            [values(lib, np.random.default_rng(number), tuple(p.shape), "float32") for p in ps]
            for lib, ps in zip(LIBS, params, strict=True)
        ]
        step(*given[0])
        optimizers[1].zero_grad()
        loss_with(given[1], params[1]).backward()
        optimizers[1].step()
    same_parameters(*params)
    same_state(*optimizers)
    assert step.stats.fallbacks == 0 and step.stats.hits >= 3, step.stats


@pytest.mark.parametrize("entry,kwargs", cases(flags=False))
def test_state_goes_from_one_library_to_the_other(entry, kwargs):
    """What state_dict holds after two steps, loaded into new optimizers, goes on alike: PyTorch's
    in ours, ours in PyTorch's, and a deep copy and a pickled copy of ours."""
    with default_dtype("float64"):
        exchange(entry, kwargs)


def exchange(entry, kwargs):
    params, optimizers = made(entry, kwargs, "float64")
    for step in range(2):
        for x in zip(LIBS, params, optimizers, strict=True):
            take(*x, step)
    saved = [o.state_dict() for o in optimizers]
    start = [[lib.nn.Parameter(p.detach().clone()) for p in ps]
             for lib, ps in zip(LIBS, params, strict=True)]  # fmt: skip
    _, again = made(entry, kwargs, "float64")
    exchanged = [convert(saved[1]), theirs_of(saved[0])]
    for o, ps, state in zip(again, start, exchanged, strict=True):
        o.param_groups[0]["params"][:] = ps
        o.load_state_dict(state)
    copies = [copy.deepcopy((params[0], optimizers[0]))]
    copies.append(pickle.loads(pickle.dumps((params[0], optimizers[0]))))
    for step in range(2, 4):
        for x in zip(LIBS, params, optimizers, strict=True):
            take(*x, step)
        for x in zip(LIBS, start, again, strict=True):
            take(*x, step)
        for ps, o in copies:
            take(OURS, ps, o, step)
    scale = SCALES.get(entry.name, SCALE)
    for ps, o in [(params[0], optimizers[0]), (start[0], again[0]), *copies]:
        same_parameters(ps, params[1], scale)
        same_state(o, optimizers[1])
    same_parameters(params[0], start[1], scale)


def theirs_of(x: Any) -> Any:
    """A state_dict of ours as PyTorch's."""
    if isinstance(x, jitgrad.Tensor):
        return torch.from_numpy(np.array(x.detach().numpy()))
    if isinstance(x, dict):
        return {k: (False if k == "capturable" else theirs_of(v)) for k, v in x.items()}
    return type(x)(theirs_of(v) for v in x) if type(x) in (tuple, list) else x


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.supports_param_groups],
                         ids=lambda e: e.name)  # fmt: skip
def test_groups(entry):
    """Groups with rates of their own, one of them added later."""
    found = []
    for lib in LIBS:
        with default_dtype("float64"):
            params = parameters(lib, entry, "float64")
            optimizer = getattr(lib.optim, entry.name)(
                [{"params": params[:1]}, {"params": params[1:2], "lr": 0.03}], lr=0.02
            )
            take(lib, params, optimizer, 0)
            optimizer.add_param_group({"params": params[2:], "lr": lib.t.tensor(0.01)})
            for step in range(1, 4):
                take(lib, params, optimizer, step)
                optimizer.param_groups[1]["lr"] *= 0.5
            found.append((params, optimizer))
    (ours, our_optimizer), (theirs, their_optimizer) = found
    same_parameters(ours, theirs, SCALES.get(entry.name, SCALE))
    same_state(our_optimizer, their_optimizer)


@pytest.mark.parametrize(
    "entry", [e for e in ENTRIES if "differentiable" in e.supported_impls], ids=lambda e: e.name
)
def test_differentiable(entry):
    """The gradient of what steps give, by parameters and by each step's gradients."""
    for kwargs in inputs_of(entry):
        with default_dtype("float64"):
            ours, theirs = (differentiated(lib, entry, kwargs) for lib in LIBS)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert (a is None) == (b is None), f"{text(kwargs)} {i}: {a} {b}"
            if b is not None:  # SGD's first buffer is detached
                assert a.dtype is jitgrad.float64 and a.shape == tuple(b.shape)
                # What is 0 but for eps, and cancels, has fewer digits.
                np.testing.assert_allclose(
                    a.detach().numpy(), b.detach().numpy(), rtol=3e-11, atol=1e-15,
                    err_msg=f"{text(kwargs)} {i}",
                )  # fmt: skip


def differentiated(lib: Any, entry: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The parameter after the steps, and gradients."""
    rng = np.random.default_rng(4)
    steps = 1 if entry.name in ONE_STEP or kwargs.get("amsgrad") else 3
    leaf, *grads = (values(lib, rng, (3, 2), "float64").requires_grad_() for _ in range(steps + 1))
    p = leaf.clone()
    given = {**options(lib, kwargs, "float64"), "differentiable": True}
    optimizer = getattr(lib.optim, entry.name)([p], **given)
    for g in grads:
        p.grad = g
        optimizer.step()
    out = (p * values(lib, rng, (3, 2), "float64")).sum()
    return [p, *lib.t.autograd.grad(out, [leaf, *grads], allow_unused=True)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_errors(entry):
    """Inputs that must fail raise PyTorch's type of error, or warn as PyTorch does."""
    tried = 0
    for case in entry.optim_error_inputs_func("cpu", torch.float32):
        given = case.optimizer_error_input
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(case.error_type):
                attempt(THEIRS, entry, given)
            with pytest.raises(case.error_type):
                attempt(OURS, entry, given)
        tried += 1
    assert tried >= 1


def attempt(lib: Any, entry: Any, given: Any) -> None:
    """The constructor and one step."""
    params = given.params
    if params is None:
        params = [torch.nn.Parameter(torch.randn(2, 3))]
    params = parameters_of(lib, params, {})
    optimizer = getattr(lib.optim, entry.name)(
        params, **(convert(given.kwargs) if lib is OURS else given.kwargs)
    )
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                p.grad = lib.t.ones_like(p)
    optimizer.step()


def parameters_of(lib: Any, x: Any, seen: dict[int, Any]) -> Any:
    """A copy of PyTorch's parameters in groups (which constructors change), the same for the same
    one."""
    if isinstance(x, torch.Tensor):
        if lib is THEIRS:
            return x
        if id(x) not in seen:
            p = jitgrad.nn.Parameter(convert(x.detach()))
            p.grad = None if x.grad is None else convert(x.grad)
            seen[id(x)] = p
        return seen[id(x)]
    if isinstance(x, dict):
        return {k: parameters_of(lib, v, seen) for k, v in x.items()}
    return type(x)(parameters_of(lib, v, seen) for v in x) if isinstance(x, (tuple, list)) else x
