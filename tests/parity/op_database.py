"""Runs PyTorch's own op database against jitgrad: every sample, by mode.

PyTorch's wheel carries `op_db`: for each public function the samples, error inputs and variants
that its own tests use. `examine(entry, ...)` runs one entry in both libraries and returns what
differed, by mode:

    value     the function on float32 (or the entry's integer or bool dtype): values, shapes, dtypes
    dtypes    the same on int64, bool, float64, float16, bfloat16 and uint8, one sample each
    strided   operands that are not contiguous
    method    the Tensor method
    in_place  the method that ends in _, and that it returns and changes its tensor
    gradient  derivatives in float64
    errors    the entry's error inputs raise, and the type is PyTorch's
    jit       compiled under fallback="error" equals eager, forward and backward (of float32)
    batch     vmap over all tensors, and over the first ones only, equals a loop of eager calls
    onnx      exported, and run by ONNX Runtime (where it has kernels for it), equals eager

A mode that an entry does not have is left out. The names of our functions are those of PyTorch;
where an entry wraps its function in Python, the wrapper runs with `torch` replaced.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pytest
from parity.compare import same, torch

import jitgrad

common = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations", reason="expecttest is not installed"
)

# That import forbids scripts to set torch.backends' flags; other tests of the process run some.
_FROZEN = "__allow_nonbracketed_mutation_flag"
torch.backends.disable_global_flags.__globals__[_FROZEN] = True

DTYPES = (
    torch.float32, torch.int64, torch.bool, torch.float64, torch.float16, torch.bfloat16,
    torch.uint8,
)  # fmt: skip
# Of one draw nothing but shape and dtype can be compared: the generators differ.
RANDOM = frozenset(
    [
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "nn.functional.alpha_dropout",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout",
        "nn.functional.rrelu",
        "normal",
        "pca_lowrank",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "svd_lowrank",
        "uniform",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
    ]
)
EMPTY = frozenset(
    {
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
        "resize_", "resize_as_",
    }
)  # fmt: skip


NOT_PUBLIC = frozenset(
    {
        # Samples that are views of larger memory, of which the driver's copies know nothing.
        "as_strided.partial_views",
        "max_pool2d_with_indices_backward",
        "to_sparse",
    }
)


def entries() -> list[Any]:
    """The database's entries of dense functions that the public can call."""
    return [
        e
        for e in common.op_db
        if label(e) not in NOT_PUBLIC
        and not e.name.startswith(("_", "jiterator", "masked.", "sparse.", "torch.", "signal."))
        or e.name.startswith("__")
    ]


def label(entry: Any) -> str:
    """The entry's name, with its variant's."""
    variant = entry.variant_test_name
    return f"{entry.name}.{variant}" if variant else entry.name


def lookup(name: str) -> Callable[..., Any] | None:
    """Our function of a name in PyTorch's namespace: a function, or a Tensor method."""
    found: Any = jitgrad
    for part in name.split("."):
        try:
            found = getattr(found, part, None)
        except ImportError:
            found = None
        if found is None or isinstance(found, jitgrad.DType):  # cfloat is a dtype and a method
            return getattr(jitgrad.Tensor, name, None) if "." not in name else None
    return found


class _Torch(types.ModuleType):
    """What a wrapper in PyTorch's tests sees as `torch`: jitgrad."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jitgrad, name)


def ours(function: Any, name: str) -> Callable[..., Any] | None:
    """Our counterpart of one of PyTorch's functions, of that name; None where it is missing."""
    if isinstance(function, functools.partial):
        inner = ours(function.func, name)
        return inner and functools.partial(inner, *function.args, **function.keywords)
    if getattr(function, "__module__", "") and str(function.__module__).startswith("torch.testing"):
        if isinstance(function, types.FunctionType):
            # Their wrappers freeze PyTorch's generator, which ours do not draw from.
            scope = {**function.__globals__, "torch": _Torch("torch")}
            scope["freeze_rng_state"] = contextlib.nullcontext
            scope["wrapper_set_seed"] = lambda op, *args, **kwargs: op(*args, **kwargs)
            return types.FunctionType(
                function.__code__, scope, function.__name__, function.__defaults__,
                function.__closure__,
            )  # fmt: skip
    return lookup(name)


# -- conversion ----------------------------------------------------------------------------------
def array_of(x: Any) -> np.ndarray:
    x = x.detach().resolve_conj().resolve_neg()
    return (x.float() if x.dtype is torch.bfloat16 else x).numpy(force=True)


def convert(x: Any, strided: bool = False) -> Any:
    """A PyTorch argument as ours: tensors are copied; `strided` makes them non-contiguous."""
    if isinstance(x, torch.Tensor):
        a = np.array(array_of(x))
        if strided and a.ndim:
            wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
            wide[..., ::2] = a
            a = wide[..., ::2]
        made = jitgrad.from_numpy(a)
        if x.dtype is torch.bfloat16:
            made = made.bfloat16()
        return made.requires_grad_() if x.requires_grad else made
    if isinstance(x, torch.Size):
        return jitgrad.Size(x)
    if isinstance(x, (torch.dtype, torch.layout, torch.memory_format)):
        return getattr(jitgrad, str(x).rsplit(".", 1)[-1])
    if isinstance(x, torch.device):
        return jitgrad.device(str(x))
    if isinstance(x, (tuple, list)):
        items = [convert(item, strided) for item in x]
        return type(x)(items) if type(x) in (tuple, list) else type(x)(*items)
    if isinstance(x, dict):
        return {k: convert(v, strided) for k, v in x.items()}
    if isinstance(x, torch.nn.LinearCrossEntropyOptions):
        fields = {name: convert(getattr(x, name)) for name in x.__slots__}
        return jitgrad.nn.LinearCrossEntropyOptions(**fields)
    if isinstance(x, torch.nn.Module):  # a distance, made without arguments
        return getattr(jitgrad.nn, type(x).__name__)()
    if callable(x) and str(getattr(x, "__module__", "")).startswith("torch"):
        return lookup(f"nn.functional.{x.__name__}")
    if isinstance(x, slice):
        return slice(*(convert(i, strided) for i in (x.start, x.stop, x.step)))
    return x


def leaves(x: Any) -> Iterator[Any]:
    """The tensors and numbers of a result or argument, in order."""
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (tuple, list)) and not isinstance(x, (torch.Size, jitgrad.Size)):
        for item in x:
            yield from leaves(item)
    else:
        yield x


def is_tensor(x: Any) -> bool:
    return isinstance(x, (torch.Tensor, jitgrad.Tensor))


def compare(entry: Any, a: Any, b: Any, what: str) -> None:
    """Asserts that our result a is PyTorch's b."""
    mine, other = list(leaves(a)), list(leaves(b))
    assert len(mine) == len(other), f"{what}: {len(mine)} results, PyTorch has {len(other)}"
    for i, (x, y) in enumerate(zip(mine, other, strict=True)):
        name = f"{what} {i}" if len(mine) > 1 else what
        if not is_tensor(y):
            assert not is_tensor(x), f"{name}: a tensor, PyTorch gives {y!r}"
            equal = x == convert(y) or (x != x and y != y)
            if isinstance(y, float) and not equal:
                equal = bool(np.isclose(x, y, rtol=1e-6))
            assert equal, f"{name}: {x!r}, PyTorch gives {y!r}"
        elif entry.name in RANDOM or entry.name in EMPTY:
            assert tuple(x.shape) == tuple(y.shape), f"{name}: {x.shape} {y.shape}"
            assert str(x.dtype).split(".")[1] == str(y.dtype).split(".")[1], name
        else:
            same(x, y.detach().resolve_conj().resolve_neg(), name, scale=10)


# -- modes ---------------------------------------------------------------------------------------
@dataclass
class Findings:
    """What one entry gave: mode -> None (agrees) or what differs first."""

    name: str
    missing: bool = False
    modes: dict[str, str | None] = field(default_factory=dict)

    def failed(self) -> dict[str, str]:
        return {mode: text for mode, text in self.modes.items() if text is not None}


def samples_of(entry: Any, dtype: Any, grad: bool, limit: int) -> list[Any]:
    torch.manual_seed(1)
    samples = entry.sample_inputs("cpu", dtype, requires_grad=grad)
    return list(islice((s for s in samples if not _drops_out(entry, s)), limit))


def _drops_out(entry: Any, sample: Any) -> bool:
    """Whether attention draws a dropout mask: the generators differ."""
    if entry.name == "nn.functional.multi_head_attention_forward":
        return bool(sample.args[9])
    return bool(sample.kwargs.get("dropout_p", 0)) and entry.name not in RANDOM


def apply(function: Callable[..., Any], sample: Any, strided: bool = False) -> Any:
    """Our function on a sample of PyTorch's."""
    return function(
        convert(sample.input, strided),
        *convert(sample.args, strided),
        **convert(sample.kwargs, strided),
    )


def _first_dtype(entry: Any) -> Any:
    return next((d for d in DTYPES if d in entry.dtypes), None)


def _theirs(function: Callable[..., Any], sample: Any) -> Any:
    return function(sample.input, *sample.args, **sample.kwargs)


def _values(entry: Any, mine: Any, dtype: Any, limit: int, strided: bool = False) -> None:
    for sample in samples_of(entry, dtype, False, limit):
        theirs = _theirs(entry.op, _copy(sample))
        compare(entry, apply(mine, sample, strided), theirs, f"{dtype} {_text(sample)}")


def _copy(sample: Any) -> Any:
    return sample.transform(lambda x: x.clone() if isinstance(x, torch.Tensor) else x)


def _text(sample: Any) -> str:
    def show(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).split('.')[1]}{list(x.shape)}"
        if isinstance(x, (tuple, list)):
            return "(" + ", ".join(map(show, x)) + ")"
        return repr(x)

    parts = [show(sample.input), *map(show, sample.args)]
    parts += [f"{k}={show(v)}" for k, v in sample.kwargs.items()]
    return ("(" + ", ".join(parts) + ")")[:300]


def _value(entry: Any, mine: Any, limit: int) -> None:
    _values(entry, mine, _first_dtype(entry), limit)


def _dtypes(entry: Any, mine: Any, limit: int) -> None:
    for dtype in DTYPES[1:]:
        if dtype in entry.dtypes:
            _values(entry, mine, dtype, max(1, limit // 4))


def _strided(entry: Any, mine: Any, limit: int) -> None:
    _values(entry, mine, _first_dtype(entry), max(1, limit // 2), strided=True)


def _method(entry: Any, mine: Any, limit: int) -> None:
    name = entry.name.rsplit(".", 1)[-1]
    method = getattr(jitgrad.Tensor, name, None)
    assert method is not None, f"Tensor.{name} is missing"
    for sample in samples_of(entry, _first_dtype(entry), False, max(1, limit // 2)):
        if isinstance(sample.input, torch.Tensor):
            theirs = _theirs(entry.method_variant, _copy(sample))
            compare(entry, apply(method, sample), theirs, _text(sample))


def _in_place(entry: Any, mine: Any, limit: int) -> None:
    name = getattr(entry.inplace_variant, "__name__", "")
    method = ours(entry.inplace_variant, name if name.endswith("_") else entry.name)
    for sample in samples_of(entry, _first_dtype(entry), False, max(1, limit // 2)):
        if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
            continue
        try:
            theirs = _theirs(entry.inplace_variant, _copy(sample))
        except RuntimeError:
            continue  # the result does not fit the tensor
        assert method is not None, f"Tensor.{name} is missing"
        x = convert(sample.input)
        got = method(x, *convert(sample.args), **convert(sample.kwargs))
        assert got is x, f"{name} returned another tensor"
        compare(entry, x, theirs, _text(sample))


def _differentiable(values: Any) -> list[Any]:
    return [x for x in leaves(values) if is_tensor(x) and x.requires_grad]


def _backward(lib: Any, result: Any) -> bool:
    """Sends the same cotangents back in both libraries; whether there was anything to send."""
    rng = np.random.default_rng(7)
    total: Any = 0
    for r in _differentiable(result):
        weights = rng.standard_normal(tuple(r.shape))
        part = r * lib.from_numpy(np.asarray(weights)).to(r.dtype)
        if r.is_complex():
            part = lib.real(part)
        total = total + part.sum()
    if isinstance(total, int):
        return False
    total.backward()
    return True


def _gradient(entry: Any, mine: Any, limit: int) -> None:
    for sample in samples_of(entry, torch.float64, True, limit):
        for y in _differentiable((sample.input, sample.args, sample.kwargs)):
            y.grad = None  # samples may share tensors
        arguments = convert((sample.input, sample.args, sample.kwargs))
        result = mine(arguments[0], *arguments[1], **arguments[2])
        expected = _theirs(entry.op, sample)
        if sample.output_process_fn_grad is not None:
            try:
                result = sample.output_process_fn_grad(result)
            except (TypeError, AttributeError):
                continue  # written for PyTorch's tensors alone
            expected = sample.output_process_fn_grad(expected)
        if not _backward(torch, expected):
            continue
        assert _backward(jitgrad, result), f"{_text(sample)}: not differentiable here"
        pairs = zip(
            leaves(arguments), leaves((sample.input, sample.args, sample.kwargs)), strict=True
        )
        for x, y in pairs:
            if is_tensor(y) and y.requires_grad:
                what = f"gradient of {_text(sample)}"
                if y.grad is None:
                    assert x.grad is None or not x.grad.any(), f"{what}: PyTorch has none"
                else:
                    zero = x.grad if x.grad is not None else jitgrad.zeros_like(x)
                    _close(zero, y.grad.resolve_conj().resolve_neg(), what)


def _close(mine: Any, theirs: Any, what: str) -> None:
    """Derivatives in float64: to 1e-9 of the largest, and 1e-12 where all cancel to zero."""
    a, b = array_of(theirs), mine.detach().numpy()
    assert a.shape == b.shape and a.dtype == b.dtype, f"{what}: {b.shape} {b.dtype}"
    largest = np.abs(a[np.isfinite(a)]).max(initial=0)
    np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9 * largest + 1e-12, err_msg=what)


def _errors(entry: Any, mine: Any, limit: int) -> None:
    for case in islice(entry.error_inputs("cpu"), 4 * limit):
        try:
            sample = case.sample_input
            theirs_raises = False
            try:
                _theirs(entry.op, _copy(sample))
            except Exception:
                theirs_raises = True
            if not theirs_raises or case.error_type is Exception:
                continue  # the latter: numbers where PyTorch takes tensors only
            apply(mine, sample)
        except Exception as error:
            expected = case.error_type
            assert isinstance(error, expected), (
                f"{_text(sample)}: {type(error).__name__}({error}), PyTorch raises "
                f"{expected.__name__}: {case.error_regex}"
            )
        else:
            raise AssertionError(
                f"{_text(sample)}: nothing raised, PyTorch raises {case.error_type.__name__}: "
                f"{case.error_regex}"
            )


def _jit(entry: Any, mine: Any, limit: int) -> None:
    dtype = _first_dtype(entry)
    grad = dtype is torch.float32 and entry.supports_autograd
    for sample in samples_of(entry, dtype, grad, max(1, limit // 2)):
        arguments = convert((sample.input, sample.args, sample.kwargs))
        compiled = jitgrad.jit(
            lambda input, args, kwargs: mine(input, *args, **kwargs), fallback="error"
        )
        outcomes = []
        for function in (compiled, compiled, compiled.__wrapped__):
            jitgrad.manual_seed(3)
            held = _fresh(arguments)
            result = function(*held)
            sent = grad and _backward(jitgrad, result)
            grads = [x.grad for x in _differentiable(held)] if sent else []
            outcomes.append((list(leaves(result)), grads))
        for results, grads in outcomes[:2]:
            for x, y in zip(results, outcomes[2][0], strict=True):
                if not is_tensor(y):
                    assert x == y or (x != x and y != y), f"{_text(sample)}: {x!r} {y!r}"
                elif entry.name not in EMPTY:
                    same(x, y, f"compiled {_text(sample)}", scale=10)
            for x, y in zip(grads, outcomes[2][1], strict=True):
                assert (x is None) == (y is None), f"compiled gradient of {_text(sample)}"
                if y is not None:
                    what = f"compiled gradient of {_text(sample)}"
                    np.testing.assert_allclose(x.numpy(), y.numpy(), 1e-4, 1e-5, err_msg=what)


def _fresh(x: Any) -> Any:
    """The same arguments, their tensors copied (in-place functions write to them)."""
    if isinstance(x, jitgrad.Tensor):
        return x.detach().clone().requires_grad_(x.requires_grad)
    if isinstance(x, dict):
        return {k: _fresh(v) for k, v in x.items()}
    if type(x) in (tuple, list):
        return type(x)(_fresh(item) for item in x)
    return x


def _second(x: Any) -> Any:
    """Another argument that is as valid: floats nearer to 0, all else the same."""
    if isinstance(x, jitgrad.Tensor):
        return x * 0.875 if x.is_floating_point() or x.is_complex() else x
    if isinstance(x, dict):
        return {k: _second(v) for k, v in x.items()}
    if type(x) in (tuple, list):
        return type(x)(_second(item) for item in x)
    return x


def _place_of(x: Any, values: list[Any]) -> Any:
    """The same structure, its tensors replaced by the next values."""
    if isinstance(x, jitgrad.Tensor):
        return values.pop(0)
    if isinstance(x, dict):
        return {k: _place_of(v, values) for k, v in x.items()}
    if type(x) in (tuple, list):
        return type(x)(_place_of(item, values) for item in x)
    return x


def _tensors_of(x: Any) -> list[Any]:
    return [leaf for leaf in leaves(x) if isinstance(leaf, jitgrad.Tensor)]


def _batch(entry: Any, mine: Any, limit: int) -> None:
    mapped_once = False
    for sample in samples_of(entry, _first_dtype(entry), False, max(1, limit // 2)):
        arguments = convert((sample.input, sample.args, sample.kwargs))
        pair = [arguments, _second(arguments)]
        first = len(_tensors_of(arguments[0]))
        everything = len(_tensors_of(arguments))
        for count in dict.fromkeys((everything, first)):
            if count == 0:
                continue
            mapped_once = True
            both = zip(*map(_tensors_of, pair), strict=True)
            stacked = [jitgrad.stack(p) if k < count else p[0] for k, p in enumerate(both)]

            def call(*tensors: Any, arguments: Any = arguments) -> Any:
                input, args, kwargs = _place_of(arguments, list(tensors))
                return [r for r in leaves(mine(input, *args, **kwargs)) if is_tensor(r)]

            dims = tuple(0 if k < count else None for k in range(everything))
            results = jitgrad.vmap(call, dims)(*stacked)
            for i in range(2):
                given = [x[i].clone() if d == 0 else x for x, d in zip(stacked, dims, strict=True)]
                expected = call(*given)
                assert len(results) == len(expected)
                for x, y in zip(results, expected, strict=True):
                    if entry.name not in EMPTY:
                        same(x[i], y, f"example {i} of {_text(sample)}", scale=30)
    assert mapped_once or not _takes_tensors(entry), "nothing to map over"


def _takes_tensors(entry: Any) -> bool:
    sample = samples_of(entry, _first_dtype(entry), False, 1)
    return any(_tensors_of(convert((s.input, s.args, s.kwargs))) for s in sample)


def _onnx(entry: Any, mine: Any, limit: int) -> None:
    import onnxruntime

    for sample in samples_of(entry, _first_dtype(entry), False, max(1, limit // 4)):
        arguments = convert((sample.input, sample.args, sample.kwargs))
        given = _tensors_of(arguments)

        def call(*tensors: Any, arguments: Any = arguments) -> Any:
            input, args, kwargs = _place_of(arguments, list(tensors))
            return tuple(leaves(mine(input, *args, **kwargs)))

        expected = [r for r in call(*(x.clone() for x in given)) if is_tensor(r)]
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/entry.onnx"
            jitgrad.export(call, *given).onnx(path)
            try:
                session = onnxruntime.InferenceSession(path)
            except Exception as error:  # no kernel of its own for a dtype
                if "NOT_IMPLEMENTED" in str(error) or "NotImplemented" in type(error).__name__:
                    continue
                raise
        names = [x.name for x in session.get_inputs()]
        values = {n: x.numpy() for n, x in zip(names, given, strict=False)}
        for x, y in zip(session.run(None, values), expected, strict=True):
            if entry.name not in EMPTY:
                np.testing.assert_allclose(
                    np.asarray(x, np.float64), np.asarray(y.numpy(), np.float64), 2e-4, 1e-5,
                    err_msg=_text(sample),
                )  # fmt: skip


MODES: dict[str, Callable[[Any, Any, int], None]] = {
    "value": _value, "dtypes": _dtypes, "strided": _strided, "method": _method,
    "in_place": _in_place, "gradient": _gradient, "errors": _errors, "jit": _jit, "batch": _batch,
    "onnx": _onnx,
}  # fmt: skip


def has(entry: Any, mode: str) -> bool:
    if _first_dtype(entry) is None:
        return False
    if mode == "method":
        return entry.method_variant is not None
    if mode == "in_place":
        return entry.inplace_variant is not None
    if mode == "gradient":
        return (
            entry.supports_autograd
            and torch.float64 in entry.dtypes
            and (entry.name not in RANDOM | EMPTY)
        )
    if mode == "errors":
        return entry.error_inputs_func is not None
    if mode in ("batch", "onnx"):
        return entry.name not in RANDOM
    return True


def examine(entry: Any, limit: int = 4, modes: tuple[str, ...] = tuple(MODES)) -> Findings:
    """Runs an entry in the modes it has, on at most `limit` samples each."""
    found = Findings(label(entry))
    mine = ours(entry.op, entry.name)
    if mine is None:
        found.missing = True
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mode in modes:
            if not has(entry, mode):
                continue
            try:
                MODES[mode](entry, mine, limit)
                found.modes[mode] = None
            except Exception as error:
                found.modes[mode] = f"{type(error).__name__}: {error}".strip()
    return found
