"""The functions of the top-level namespace: with out=, in-place forms, copies of views.

Owns `collect`, what `jitgrad.name` is for every function that is made from a table: methods.py's
functions and creation's with an `out` argument, `abs_` and its kin, `view_copy` and its kin, and
the old typed constructors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from jitgrad import conversions, creation, inplace, making, promotion
from jitgrad.casting import as_given
from jitgrad.dispatch import assign
from jitgrad.functions import arrange, linalg, shape
from jitgrad.functions.args import expect_one_device, numpy_names
from jitgrad.functions.elementwise import records_in
from jitgrad.methods import FUNCTIONS
from jitgrad.promotion import can_cast, cast
from jitgrad.runtime.arguments import CAUGHT, apart, complete, expect_flags, located, locates
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.formats import contiguous_format
from jitgrad.runtime.overriding import recover
from jitgrad.runtime.userline import warn
from jitgrad.state import state
from jitgrad.storage import Storage, TypedStorage
from jitgrad.tensor import Tensor


# -- out= ----------------------------------------------------------------------------------------
def with_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with an argument `out`: the tensor (or tensors) that get its results.

    An `out` of another shape is resized; one of a dtype that cannot hold the result raises
    RuntimeError, and so does one that needs a gradient.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        try:
            if kwargs or len(args) > 2:
                expect_flags(function, args, kwargs)
            if out is not None:
                return _into(as_given(function), out, args, kwargs)
            made = function(*args, **kwargs)
            return made if getattr(made, "_view", made) is None else apart(made, args, kwargs)
        except CAUGHT as error:
            given = kwargs if out is None else {**kwargs, "out": out}
            if (found := recover(error, wrapper, args, given)) is not None:
                return found[0]
            complete(error, function, args, kwargs)
            raise

    vars(wrapper)["takes_out"] = True  # tests/stubs.py
    return locates(wrapper)


def _into(
    function: Callable[..., Any], out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    name = function.__name__
    outs = out if isinstance(out, (tuple, list)) else (out,)
    for x in outs:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(x).__name__}")
    if state.grad_enabled and any(_needs_grad(x) for x in (*outs, *args, *kwargs.values())):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    if kwargs.get("dtype") is None and "dtype" in _arguments(function):
        kwargs["dtype"] = outs[0].dtype
    result = function(*args, **kwargs)
    results = result if isinstance(result, (tuple, list)) else (result,)
    if len(results) != len(outs):
        raise TypeError(
            f"{name}(): argument 'out' must be a tuple of {len(results)} Tensors, not {len(outs)}"
        )
    given = _has_dims((*args, *kwargs.values()))
    for target, value in zip(outs, results, strict=True):
        if given or value.is_cuda:  # what is made from numbers follows out
            expect_one_device(name, target, value)
        _write(name, target, value)
    return out if isinstance(out, Tensor) else type(result)(*out) if _named(result) else tuple(out)


def _has_dims(values: Any) -> bool:
    """Whether a tensor with dims is among values, or in a sequence among them."""
    return any(
        bool(x._type.shape) if isinstance(x, Tensor) else _has_dims(x)
        for x in values
        if isinstance(x, (Tensor, tuple, list))
    )


def _named(result: Any) -> bool:
    return hasattr(result, "_fields")


def _needs_grad(x: Any) -> bool:
    if isinstance(x, (tuple, list)):
        return any(_needs_grad(y) for y in x)
    return isinstance(x, Tensor) and x.requires_grad


def _arguments(function: Any) -> tuple[str, ...]:
    """The names of a function's arguments ("dtype" among them, for what makes tensors)."""
    code = inspect.unwrap(function).__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


_EXACT_OUT = frozenset({"complex", "gather", "multinomial"})  # out= has the result's dtype


def _write(name: str, out: Tensor, value: Tensor) -> None:
    if name in _EXACT_OUT and out.dtype is not value.dtype:
        raise RuntimeError(
            f"{name}: Expected out tensor to have dtype {value.dtype}, but got {out.dtype} instead"
        )
    if not can_cast(value.dtype, out.dtype):
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {out.dtype} (in "
            f"{name}(out=...))"
        )
    if tuple(out._type.shape) != tuple(value._type.shape):
        if out.numel() != 0:
            warn(
                f"An output with one or more elements was resized since it had shape "
                f"{list(out.shape)}, which does not match the required output shape "
                f"{list(value.shape)} ({name}); resize it to 0 elements with out.resize_(0) first."
            )
        inplace.resize_(out, tuple(value._type.shape))
    assign(out, cast(value, out.dtype))


_NO_OUT = """allclose argwhere as_strided broadcast_to chunk diagonal equal flatten fliplr flipud
    isclose isfinite isreal moveaxis movedim narrow permute positive ravel reshape select split
    squeeze swapaxes swapdims t tensor_split tile transpose unbind unflatten unique unsqueeze
    unique_consecutive hsplit vsplit dsplit split_with_sizes cov corrcoef diagflat resolve_conj
    resolve_neg adjoint is_nonzero is_same_size histogramdd unravel_index detach
    as_strided_scatter bincount cdist clone conj cosine_similarity count_nonzero
    cumulative_trapezoid diag_embed diagonal_scatter dist empty_like fill flip full_like gradient
    imag index_fill index_put isinf isnan masked_fill masked_scatter ones_like pairwise_distance
    pdist put real repeat_interleave roll rot90 rsub select_scatter std_mean trace trapezoid trapz
    unsafe_chunk unsafe_split unsafe_split_with_sizes var_mean view_as_complex view_as_real
    zeros_like"""

_MAKERS: tuple[Callable[..., Any], ...] = (
    making.arange, creation.bernoulli, making.empty, making.eye, making.full,
    making.full_like, making.linspace, making.logspace, creation.multinomial,
    making.normal, making.ones, making.ones_like, making.empty_like, making.zeros_like,
    making.rand, making.randint, making.randn, making.randperm, making.range,
    making.scalar_tensor, making.zeros, shape.cat, shape.column_stack, shape.dstack, shape.hstack,
    shape.stack, shape.vstack, linalg.chain_matmul,
)  # fmt: skip

# -- in-place forms and copies of views ------------------------------------------------------------
_IN_PLACE = """addmv arccos arccosh arcsin arcsinh arctan arctanh as_strided clamp clamp_max
    clamp_min clip deg2rad detach fill fix frac gcd index_put lcm ldexp logit nan_to_num
    negative rad2deg resize_as square xlogy zero"""

_COPIES = """as_strided detach diagonal expand narrow permute select split split_with_sizes squeeze
    t transpose unbind unfold unsqueeze view"""


_ALSO_METHODS = ("is_conj", "is_neg", "is_distributed", "detach", "is_signed", "is_inference",
                 "get_device")  # fmt: skip


def _copying(view: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(view)
    def function(*args: Any, **kwargs: Any) -> Any:
        made = view(*args, **kwargs)
        if isinstance(made, Tensor):
            return shape.clone(made, memory_format=contiguous_format)
        return tuple(shape.clone(x, memory_format=contiguous_format) for x in made)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name[: -len('_copy')]}`, as a copy."
    return function


def _method(name: str) -> Callable[..., Any]:
    return getattr(Tensor, name)


# Of two functions of PyTorch's that are Python, `out` has a place among the arguments.
_norm, _tensordot = with_out(FUNCTIONS["norm"]), with_out(FUNCTIONS["tensordot"])


def norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None,
    dtype: Any = None,
) -> Tensor:  # fmt: skip
    """The p-norm over dims (2 for "fro"; "nuc", of matrices: the sum of singular values)."""
    result: Tensor = _norm(input, p, dim, keepdim, dtype=dtype, out=out)
    return result


def tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: Any = None) -> Tensor:
    """Products summed over pairs of dims (the last n of a with the first n of b for an int)."""
    result: Tensor = _tensordot(a, b, dims, out=out)
    return result


def result_type(tensor: Any, other: Any) -> DType:
    """The dtype of an arithmetic op on two tensors or numbers."""
    return promotion.result_type(tensor, other)


def is_storage(obj: Any) -> bool:
    """Whether obj is a storage."""
    return isinstance(obj, (Storage, TypedStorage))


def collect() -> dict[str, Any]:
    """What `jitgrad.name` is, for the names that tables give. Called after methods.attach()."""
    without = frozenset(_NO_OUT.split())
    names: dict[str, Any] = {
        name: located(function) if name in without else with_out(function)
        for name, function in FUNCTIONS.items()
    }
    for make in _MAKERS:
        name, function = make.__name__, numpy_names(make)
        names[name] = located(function) if name in without else with_out(function)
    unary = [r.name for r in records_in("") if r.in_place and r.arity == 1]
    for name in (*unary, *_IN_PLACE.split()):
        if hasattr(Tensor, name + "_"):
            names[name + "_"] = _method(name + "_")
    for name in _COPIES.split():
        if hasattr(Tensor, name):
            names[name + "_copy"] = with_out(_copying(_method(name), name + "_copy"))
    for own in (arrange.block_diag, arrange.cartesian_prod, arrange.combinations, arrange.vander,
                making.makes(arrange.tril_indices), making.makes(arrange.triu_indices),
                shape.atleast_1d, shape.atleast_2d, shape.atleast_3d,
                shape.broadcast_tensors, shape.meshgrid, linalg.einsum,
                making.rand_like, making.randn_like, making.randint_like):  # fmt: skip
        names[own.__name__] = located(own)
    names["norm"], names["tensordot"] = norm, tensordot
    names["result_type"] = result_type
    names["alias_copy"] = with_out(_copying(shape.alias, "alias_copy"))
    for name in _ALSO_METHODS:
        if hasattr(Tensor, name):
            names.setdefault(name, _method(name))
    names["constant_pad_nd"] = located(shape.pad_constant)
    for name in ("as_tensor", "asarray", "empty_permuted", "empty_strided", "tensor"):
        names[name] = getattr(making, name)
    names["is_storage"] = is_storage
    names.update(conversions.TENSOR_TYPES)
    names["set_default_tensor_type"] = conversions.set_default_tensor_type
    return names
