"""Runs PyTorch's own module database against jitgrad: every sample of every layer and loss.

PyTorch's wheel carries `module_db`: for each class of torch.nn the constructor and forward inputs
that its own tests use, and inputs that must fail. `examine(entry)` makes each module in both
libraries, with one state, and returns what differed, by mode:

    state     repr, and the state_dict's keys, shapes and dtypes
    train     forward in training mode, and the gradients of inputs and parameters, in float64
    eval      the same in evaluation mode (where the modes differ)
    float32   forward in float32
    strided   operands that are not contiguous
    copies    deepcopy, pickle and a state_dict that was loaded give the same results
    jit       compiled under fallback="error" equals eager, forward and backward
    errors    constructor and forward inputs that must fail raise PyTorch's type of error

Modules that draw random numbers are compared in what is no draw (shapes, dtypes).
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parity.compare import copy_parameters, same, torch
from parity.op_database import convert, is_tensor, leaves

import jitgrad

common = pytest.importorskip(
    "torch.testing._internal.common_modules", reason="expecttest is not installed"
)

RANDOM = frozenset(
    {
        "AlphaDropout",
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "FeatureAlphaDropout",
        "RReLU",
    }
)


def entries() -> list[Any]:
    """The entries of classes that are first-tier: those of torch.nn."""
    return [e for e in common.module_db if e.module_cls.__module__.startswith("torch.nn.modules")]


def name_of(entry: Any) -> str:
    return str(entry.module_cls.__name__)


class Pair:
    """One sample: the module in both libraries, with PyTorch's state."""

    def __init__(self, entry: Any, sample: Any, dtype: Any) -> None:
        self.entry, self.sample = entry, sample
        given = sample.constructor_input
        args, kwargs = copy.deepcopy((given.args, given.kwargs))
        self.theirs = entry.module_cls(*args, **kwargs)
        ours = getattr(jitgrad.nn, name_of(entry))
        self.ours = ours(
            *map(module, given.args), **{k: module(v) for k, v in given.kwargs.items()}
        )
        self.dtype = dtype
        for m in (self.theirs, self.ours):
            m.to(getattr(torch if m is self.theirs else jitgrad, dtype))
        if entry.is_lazy:  # the first call makes the parameters
            with torch.no_grad():
                for m, (inputs, options) in zip(
                    (self.theirs, self.ours), self.inputs(), strict=True
                ):
                    m(*inputs, **options)
        copy_parameters(self.theirs, self.ours)

    def inputs(self, strided: bool = False) -> tuple[Any, Any]:
        """The forward inputs, theirs and ours: (args, kwargs) each."""
        given = self.sample.forward_input
        theirs = _fresh((given.args, given.kwargs)) if given else ((), {})
        return theirs, convert(theirs, strided)


def module(x: Any) -> Any:
    """A constructor's argument as ours: values as op_database's, activations by name."""
    if isinstance(x, torch.nn.TransformerEncoderLayer):
        layer = x.self_attn
        return jitgrad.nn.TransformerEncoderLayer(
            layer.embed_dim, layer.num_heads, x.linear1.out_features, x.dropout.p,
            convert(x.activation), x.norm1.eps, layer.batch_first, x.norm_first,
            x.linear1.bias is not None, dtype=convert(x.linear1.weight.dtype),
        )  # fmt: skip
    return convert(x)


def _fresh(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().clone().requires_grad_(x.requires_grad)
    if isinstance(x, (tuple, list)):
        items = [_fresh(i) for i in x]
        return type(x)(items) if type(x) in (tuple, list) else type(x)(*items)
    if isinstance(x, dict):
        return {k: _fresh(v) for k, v in x.items()}
    return x


def samples(entry: Any, dtype: str, training: bool, limit: int) -> list[Any]:
    """The first and last samples, and those between at equal distances: at most `limit`."""
    torch.manual_seed(3)
    found = entry.module_inputs_func(
        entry, device="cpu", dtype=getattr(torch, dtype), requires_grad=True, training=training
    )
    chosen = np.unique(np.linspace(0, len(found) - 1, min(limit, len(found))).astype(int))
    return [found[i] for i in chosen]


def text(sample: Any) -> str:
    """How a sample's module is made."""
    given = sample.constructor_input
    parts = [str(x)[:40] for x in given.args] + [
        f"{k}={str(v)[:40]}" for k, v in given.kwargs.items()
    ]
    return f"({', '.join(parts)})"


def _same(entry: Any, ours: Any, theirs: Any, what: str) -> None:
    mine, other = list(leaves(ours)), list(leaves(theirs))
    assert len(mine) == len(other), f"{what}: {len(mine)} results, PyTorch has {len(other)}"
    for i, (x, y) in enumerate(zip(mine, other, strict=True)):
        if not is_tensor(y):
            assert x == y or x is y, f"{what}: {x!r} {y!r}"
        elif name_of(entry) in RANDOM:
            assert tuple(x.shape) == tuple(y.shape), what
        else:
            same(x, y, f"{what} {i}", scale=20)


def _with_gradient(x: Any) -> list[Any]:
    """What may have a gradient."""
    return [t for t in leaves(x) if is_tensor(t) and t.requires_grad and t.is_leaf]


def _differentiated(m: Any, inputs: Any, cast: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    """Results, and gradients of inputs and parameters of a weighted sum of them."""
    args, kwargs = inputs
    results = m(*args, **kwargs)
    total: Any = 0
    for i, y in enumerate(t for t in leaves(results) if is_tensor(t) and t.requires_grad):
        rng = np.random.default_rng(i)
        weight = rng.uniform(0.5, 1.5, tuple(y.shape)).reshape(tuple(y.shape))
        total = total + (y * cast(np.asarray(weight)).to(y.dtype)).sum()
    grads: list[Any] = []
    if is_tensor(total):
        total.backward()
        grads = [x.grad for x in (*_with_gradient(args), *_with_gradient(kwargs), *m.parameters())]
    return results, grads


def _compare_run(pair: Pair, strided: bool, wrap: Callable[[Any], Any] | None, what: str) -> None:
    theirs, ours = pair.inputs(strided)
    expected, their_grads = _differentiated(pair.theirs, theirs, torch.from_numpy)
    found, our_grads = _differentiated(
        wrap(pair.ours) if wrap else pair.ours, ours, jitgrad.from_numpy
    )
    _same(pair.entry, found, expected, what)
    assert len(our_grads) == len(their_grads), f"{what}: {len(our_grads)} gradients"
    for i, (x, y) in enumerate(zip(our_grads, their_grads, strict=True)):
        assert (x is None) == (y is None), f"{what}: gradient {i} is {x!r}, PyTorch's {y!r}"
        if y is not None:
            _same(pair.entry, x, y, f"{what} gradient {i}")


def _runs(
    entry: Any, limit: int, *, training: bool = True, dtype: str = "float64", strided: bool = False,
    wrap: Callable[[Any], Any] | None = None,
) -> None:  # fmt: skip
    for sample in samples(entry, dtype, training, limit):
        pair = Pair(entry, sample, dtype)
        pair.theirs.train(training), pair.ours.train(training)
        _compare_run(pair, strided, wrap, text(sample))


def _state(entry: Any, limit: int) -> None:
    for sample in samples(entry, "float32", True, limit):
        pair = Pair(entry, sample, "float32")
        what = text(sample)
        assert repr(pair.ours) == repr(pair.theirs), f"{what}: {pair.ours!r} {pair.theirs!r}"
        assert pair.ours.extra_repr() == pair.theirs.extra_repr(), what
        ours, theirs = pair.ours.state_dict(), pair.theirs.state_dict()
        assert list(ours) == list(theirs), f"{what}: {list(ours)} {list(theirs)}"
        for k, y in theirs.items():
            same(ours[k], y, f"{what} {k}")
        names = [n for n, _ in pair.theirs.named_parameters()]
        assert [n for n, _ in pair.ours.named_parameters()] == names, what


def _copies(entry: Any, limit: int) -> None:
    for sample in samples(entry, "float32", False, max(1, limit // 4)):
        pair = Pair(entry, sample, "float32")
        if name_of(entry) in RANDOM:
            continue
        m = pair.ours.eval()
        expected = [y for y in leaves(_call(m, pair.inputs()[1])) if is_tensor(y)]
        for made in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
            found = [y for y in leaves(_call(made, pair.inputs()[1])) if is_tensor(y)]
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_array_equal(x.detach().numpy(), y.detach().numpy())
            assert repr(made) == repr(m)


def _call(m: Any, inputs: Any) -> Any:
    args, kwargs = inputs
    return m(*args, **kwargs)


def _compiled(entry: Any, limit: int) -> None:
    if name_of(entry) in RANDOM:
        return

    def wrap(m: Any) -> Any:
        made = jitgrad.jit(m, fallback="error")

        def twice(*args: Any, **kwargs: Any) -> Any:
            saved = {k: v.clone() for k, v in m.state_dict().items()}
            made(*args, **kwargs)
            m.load_state_dict(saved)
            m.zero_grad()
            return made(*args, **kwargs)

        twice.parameters = m.parameters  # type: ignore[attr-defined]
        return twice

    _runs(entry, max(1, limit // 4), dtype="float32", wrap=wrap)


def _errors(entry: Any, limit: int) -> None:
    torch.manual_seed(3)
    found = entry.module_error_inputs_func(
        entry, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    for case in found:
        sample = case.module_error_input
        given = sample.constructor_input
        ours = getattr(jitgrad.nn, name_of(entry))
        kind: tuple[type, ...] = (case.error_type,)
        kwargs = {k: module(v) for k, v in given.kwargs.items()}
        if case.error_on is common.ModuleErrorEnum.CONSTRUCTION_ERROR:
            _must_raise(kind, lambda: ours(*map(module, given.args), **kwargs), text(sample))  # noqa: B023
        else:
            m = ours(*map(module, given.args), **kwargs)
            args, options = convert((sample.forward_input.args, sample.forward_input.kwargs))
            _must_raise(kind, lambda: m(*args, **options), text(sample))  # noqa: B023


def _must_raise(kind: tuple[type, ...], call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except kind:
        return
    except Exception as error:
        raise AssertionError(
            f"{what}: {type(error).__name__}, PyTorch raises {kind}: {error}"
        ) from error
    raise AssertionError(f"{what}: accepted, PyTorch raises {kind}")


def examine(entry: Any, limit: int = 8) -> dict[str, str]:
    """What differs, by mode; at most `limit` samples of each."""
    modes: dict[str, Callable[[], None]] = {
        "state": lambda: _state(entry, limit),
        "train": lambda: _runs(entry, limit),
        "float32": lambda: _runs(entry, limit, dtype="float32"),
        "strided": lambda: _runs(entry, max(1, limit // 2), strided=True),
        "copies": lambda: _copies(entry, limit),
        "jit": lambda: _compiled(entry, limit),
    }
    if entry.train_and_eval_differ:
        modes["eval"] = lambda: _runs(entry, limit, training=False)
    if entry.module_error_inputs_func:
        modes["errors"] = lambda: _errors(entry, limit)
    out = {}
    for mode, run in modes.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run()
            except Exception as error:
                out[mode] = f"{type(error).__name__}: {error}"
    return out
