"""Attaches methods to Tensor: public functions, in-place forms, operators, conversions.

Owns the tables of what becomes a method. The functions themselves are in functions/; every in-place
method `f_` is the function f and an assign.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import creation, indexing, printing
from jitgrad.autograd import engine, hooks
from jitgrad.compiler.ops.record import OPS
from jitgrad.device import device as Device
from jitgrad.dispatch import apply, assign, check_inplace
from jitgrad.functions import distance, elementwise, linalg, reduce, select, shape
from jitgrad.promotion import NUMBERS, can_cast, cast
from jitgrad.random import Generator
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.state import bump_epoch, defaults, state
from jitgrad.tensor import Tensor

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Every public function that takes a tensor first, by its public name."""


def _collect() -> None:
    FUNCTIONS.update(elementwise.generated)
    for module, names in _TABLE.items():
        for name in names.split():
            FUNCTIONS[name] = getattr(module, name)
    FUNCTIONS["diagonal"] = shape.diagonal_view
    for alias, name in elementwise.ALIASES.items():
        FUNCTIONS[alias] = FUNCTIONS[name]
    FUNCTIONS["swapaxes"] = FUNCTIONS["swapdims"] = shape.transpose
    FUNCTIONS["moveaxis"] = shape.movedim
    FUNCTIONS["concat"] = FUNCTIONS["concatenate"] = shape.cat
    FUNCTIONS["row_stack"] = shape.vstack


_TABLE: dict[Any, str] = {
    elementwise: "add sub rsub mul div pow float_power where masked_fill clamp clamp_min clamp_max "
    "square sgn frac signbit round logit lerp addcmul addcdiv hypot logaddexp logaddexp2 xlogy "
    "heaviside nan_to_num fmax fmin deg2rad rad2deg isposinf isneginf isreal positive isclose "
    "allclose equal",
    reduce: "sum prod mean var std var_mean std_mean amax amin aminmax max min argmax argmin any "
    "all count_nonzero nansum nanmean logsumexp softmax log_softmax cumsum cumprod sort argsort "
    "msort topk kthvalue median norm diff",
    shape: "reshape permute transpose t movedim flatten unflatten ravel squeeze unsqueeze "
    "broadcast_to narrow select unbind split chunk tensor_split clone flip fliplr flipud tile "
    "repeat_interleave roll rot90 tril triu diag diag_embed",
    linalg: "matmul mm bmm mv dot vdot inner outer ger addmm addmv addr baddbmm addbmm tensordot "
    "kron cross trace",
    distance: "cdist cosine_similarity pairwise_distance pdist",
    select: "gather take_along_dim take scatter scatter_add scatter_reduce index_select index_add "
    "index_copy index_fill nonzero argwhere masked_select masked_scatter bincount unique "
    "searchsorted bucketize",
}

ONLY_METHODS: dict[str, Callable[..., Any]] = {
    "view": shape.view,
    "view_as": shape.view_as,
    "reshape_as": shape.reshape_as,
    "expand": shape.expand,
    "expand_as": shape.expand_as,
    "repeat": shape.repeat,
    "unfold": shape.unfold,
    "contiguous": shape.contiguous,
    "register_hook": hooks.register_hook,
    "register_post_accumulate_grad_hook": hooks.register_post_accumulate_grad_hook,
    "retain_grad": hooks.retain_grad,
    "index_put_": indexing.index_put_,
}

NOT_METHODS = {
    "where": "self is the second argument", "cat": "", "stack": "", "hstack": "", "vstack": "",
    "bucketize": "", "searchsorted": "", "rsub": "", "concat": "", "concatenate": "",
    "row_stack": "", "tensordot": "", "var_mean": "", "std_mean": "", "cdist": "",
    "cosine_similarity": "", "pairwise_distance": "", "pdist": "",
}  # fmt: skip

IN_PLACE = (
    "abs", "neg", "sign", "sgn", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "rsqrt", "square", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "floor", "ceil", "round",
    "trunc", "frac", "relu", "add", "sub", "mul", "div", "true_divide", "divide", "multiply",
    "subtract", "pow", "floor_divide", "remainder", "fmod", "atan2", "copysign", "eq", "ne", "lt",
    "le", "gt", "ge", "clamp", "clip", "clamp_min", "clamp_max", "lerp", "addcmul", "addcdiv",
    "hypot", "xlogy", "nan_to_num", "masked_fill", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not", "bitwise_left_shift", "bitwise_right_shift", "logical_and", "logical_or",
    "logical_xor", "logical_not", "tril", "triu", "scatter", "scatter_add", "scatter_reduce",
    "index_add", "index_copy", "index_fill", "masked_scatter", "addmm", "addmv", "addr",
    "baddbmm", "cumsum", "cumprod", "logit", "deg2rad", "rad2deg", "float_power", "absolute",
    "negative", "sinc",
)  # fmt: skip


# -- in-place ------------------------------------------------------------------------------------
def store(target: Tensor, value: Tensor, name: str) -> Tensor:
    """target's elements become value's: shapes equal, dtype castable. Returns target."""
    if value._type.shape != target._type.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(value.shape)} (in {name})"
        )
    if value._type.dtype is not target._type.dtype:
        if not can_cast(value.dtype, target.dtype):
            raise RuntimeError(
                f"result type {value.dtype} can't be cast to the desired output type "
                f"{target.dtype} (in {name}); use the out-of-place form"
            )
        value = cast(value, target._type.dtype)
    assign(target, value)
    return target


def _in_place(function: Callable[..., Any], name: str) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return store(self, function(self, *args, **kwargs), name)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In-place form of `{name[:-1]}`."
    return method


def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Elements become src's, broadcast and converted to this dtype."""
    if not isinstance(src, Tensor):
        src = creation.as_tensor(src)
    value = cast(src, self.dtype)
    if tuple(value._type.shape) != tuple(self._type.shape):
        value = value.expand(tuple(self._type.shape))
    assign(self, value)
    return self


def fill_(self: Tensor, value: Any) -> Tensor:
    """All elements become the value."""
    assign(self, select.fill_values(self, value))
    return self


def zero_(self: Tensor) -> Tensor:
    """All elements become 0."""
    return fill_(self, 0)


def _random_fill(self: Tensor, values: Tensor) -> Tensor:
    assign(self, cast(values, self.dtype))
    return self


def _draw_dtype(self: Tensor) -> DType:
    if not self.dtype.is_floating_point:
        raise RuntimeError(
            f"expected a floating tensor to fill with random numbers; got {self._type}"
        )
    return self.dtype


def normal_(
    self: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Filled with normal numbers."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    draw = creation.draw("normal", tuple(self._type.shape), _draw_dtype(self), generator)
    check_inplace(self)
    return _random_fill(self, draw * std + mean)


def uniform_(
    self: Tensor, from_: Any = 0.0, to: Any = 1.0, *, generator: Generator | None = None,
    **more: Any,
) -> Tensor:  # fmt: skip
    """Filled with uniform numbers in [from, to)."""
    low = more.pop("from", from_)
    high = more.pop("a", to)
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
        )
    draw = creation.draw("uniform", tuple(self._type.shape), _draw_dtype(self), generator)
    return _random_fill(self, draw * (high - low) + low)


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Filled with ones of probability p, zeros else."""
    draw = creation.draw("uniform", tuple(self._type.shape), dtypes.float32, generator)
    return _random_fill(self, draw < (p.detach() if isinstance(p, Tensor) else p))


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Filled with exponentially distributed numbers."""
    draw = creation.draw("uniform", tuple(self._type.shape), _draw_dtype(self), generator)
    return _random_fill(self, -(-draw).log1p() / lambd)


def random_(
    self: Tensor, from_: int = 0, to: int | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Filled with integers in [from, to) (as far as the dtype counts exactly, by default)."""
    low, high = (from_, to) if to is not None else (0, from_)
    if to is None and from_ == 0:
        bits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
        signed = 1 if self.dtype.signed else 0
        high = 2 ** bits.get(self.dtype.name, self.dtype.bits - signed)
    values = creation.random_integers(tuple(self._type.shape), high - low, generator) + low
    return _random_fill(self, values)


# -- conversions ---------------------------------------------------------------------------------
def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """To a dtype and/or device: x.to(dtype), x.to(device), x.to(other). Itself if nothing changes
    (a copy with copy=True)."""
    dtype, copy = kwargs.get("dtype"), kwargs.get("copy", False)
    if kwargs.get("device") is not None:
        Device(kwargs["device"])
    for arg in args:
        if isinstance(arg, DType):
            dtype = arg
        elif isinstance(arg, Tensor):
            dtype = arg.dtype
        elif isinstance(arg, str):
            Device(arg)
        elif arg is not None and not isinstance(arg, bool):
            raise TypeError(
                f"to(): expected a dtype, a device or a tensor; got {type(arg).__name__}"
            )
    if dtype is not None and dtype is not self._type.dtype:
        return cast(self, dtype)
    return shape.clone(self) if copy else self


def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """x.type(): its type's name as PyTorch spells it; x.type(dtype): converted."""
    if dtype is None:
        return f"torch.{_TENSOR_NAMES[self.dtype]}"
    if isinstance(dtype, str):
        names = {v: k for k, v in _TENSOR_NAMES.items()}
        dtype = names[dtype.rsplit(".", 1)[-1]]
    return cast(self, dtype)


_TENSOR_NAMES = {
    dtypes.float32: "FloatTensor", dtypes.float64: "DoubleTensor", dtypes.float16: "HalfTensor",
    dtypes.bfloat16: "BFloat16Tensor", dtypes.int64: "LongTensor", dtypes.int32: "IntTensor",
    dtypes.int16: "ShortTensor", dtypes.int8: "CharTensor", dtypes.uint8: "ByteTensor",
    dtypes.bool_: "BoolTensor", dtypes.complex64: "ComplexFloatTensor",
    dtypes.complex128: "ComplexDoubleTensor",
}  # fmt: skip

_CONVERSIONS = {
    "float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16,
    "bfloat16": dtypes.bfloat16, "long": dtypes.int64, "int": dtypes.int32, "short": dtypes.int16,
    "char": dtypes.int8, "byte": dtypes.uint8, "bool": dtypes.bool_,
}  # fmt: skip


def _conversion(name: str, dtype: DType) -> Callable[..., Tensor]:
    def method(self: Tensor, memory_format: Any = None) -> Tensor:
        return cast(self, dtype)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Converted to {dtype}."
    return method


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Adds to `.grad` of the leaves this tensor's gradient (see autograd.backward)."""
    engine.backward(self, gradient, retain_graph, create_graph, inputs)


def _new_full(make: Any) -> Callable[..., Tensor]:
    def method(self: Tensor, *size: Any, **kwargs: Any) -> Tensor:
        kwargs.setdefault("dtype", self.dtype)
        return make(*size, **kwargs)

    method.__name__ = method.__qualname__ = f"new_{make.__name__}"
    return method


def new_tensor(self: Tensor, data: Any, **kwargs: Any) -> Tensor:
    """tensor(data) of this dtype."""
    kwargs.setdefault("dtype", self.dtype)
    return creation.tensor(data, **kwargs)


def where_method(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where the condition holds, else other."""
    return elementwise.where(condition, self, other)


def set_(self: Tensor, source: Tensor) -> Tensor:
    """Shares source's memory from here on."""
    self.data = source
    return self


def legacy_new(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Tensor(2, 3), Tensor([1.0, 2.0]), Tensor(other)."""
    kwargs.pop("device", None)
    if not args:
        made = creation.empty(0)
    elif len(args) == 1 and isinstance(args[0], Tensor):
        made = args[0].detach()
    elif all(isinstance(a, int) for a in args):
        made = creation.empty(*args)
    else:
        made = creation.tensor(args[0], dtype=defaults.dtype)
    return made if cls is Tensor else made._alias(cls)


# -- operators -----------------------------------------------------------------------------------
_OPERANDS = (Tensor, *NUMBERS)


def _operand(x: Any) -> Any:
    """What an operator takes beside a tensor: tensors, numbers, arrays; else NotImplemented."""
    if isinstance(x, _OPERANDS):
        return x
    return creation.from_numpy(x) if isinstance(x, np.ndarray) else NotImplemented


def _operator(name: str, swap: bool = False) -> Callable[..., Any]:
    function = FUNCTIONS[name]

    def forward(self: Tensor, other: Any) -> Any:
        other = _operand(other)
        return other if other is NotImplemented else function(self, other)

    def reverse(self: Tensor, other: Any) -> Any:
        other = _operand(other)
        return other if other is NotImplemented else function(other, self)

    return reverse if swap else forward


def _binary(record: Any) -> Callable[..., Any]:
    """The operator of a record, with the commonest case first: two tensors of one dtype."""
    any_dtype = record.promotes != "float"
    general = _operator(record.name)

    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor):
            dtype = self._type.dtype
            if dtype is other._type.dtype and (any_dtype or dtype.category >= 2):
                return apply(record, (self, other), {})
        return general(self, other)

    return method


def _attach_operators() -> None:
    for dunder, name in {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide",
        "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
        "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    }.items():  # fmt: skip
        setattr(Tensor, f"__{dunder}__", _named(_binary(OPS[name]), f"__{dunder}__"))
        setattr(Tensor, f"__r{dunder}__", _named(_operator(name, True), f"__r{dunder}__"))
        setattr(Tensor, f"__i{dunder}__", _named(_assigning(name), f"__i{dunder}__"))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Tensor, f"__{name}__", _named(_binary(OPS[name]), f"__{name}__"))
    Tensor.__pow__ = _named(_operator("pow"), "__pow__")
    Tensor.__rpow__ = _named(_operator("pow", True), "__rpow__")
    Tensor.__ipow__ = _named(_assigning("pow"), "__ipow__")  # type: ignore[attr-defined]
    Tensor.__matmul__ = lambda self, other: (
        linalg.matmul(self, other) if isinstance(other, Tensor) else NotImplemented
    )
    Tensor.__neg__ = lambda self: FUNCTIONS["neg"](self)
    Tensor.__pos__ = elementwise.positive  # type: ignore[method-assign]
    Tensor.__abs__ = lambda self: FUNCTIONS["abs"](self)
    Tensor.__invert__ = lambda self: FUNCTIONS["bitwise_not"](self)
    Tensor.__getitem__ = indexing.getitem
    Tensor.__setitem__ = indexing.setitem
    setattr(Tensor, "__repr__", _repr)  # noqa: B010


def _repr(self: Tensor) -> str:
    return printing.tensor_text(self)


def _named(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    return method


def _assigning(name: str) -> Callable[..., Any]:
    function = FUNCTIONS[name]

    def method(self: Tensor, other: Any) -> Any:
        other = _operand(other)
        return other if other is NotImplemented else store(self, function(self, other), name + "_")

    return method


def _attach_properties() -> None:
    Tensor.T = property(  # type: ignore[attr-defined]
        lambda self: self.permute(tuple(range(self.ndim))[::-1]),
        doc="All dims in reverse order.",
    )
    Tensor.mT = property(shape.matrix_transpose, doc="The last two dims exchanged.")  # type: ignore[attr-defined]
    Tensor.H = property(lambda self: self.t(), doc="The conjugate transpose of a matrix.")  # type: ignore[attr-defined]
    Tensor.mH = property(shape.matrix_transpose, doc="mT, conjugated.")  # type: ignore[attr-defined]
    Tensor.real = property(_real, doc="The tensor itself, for real dtypes.")  # type: ignore[attr-defined]


def _real(self: Tensor) -> Tensor:
    if self.dtype.is_complex:
        raise NotImplementedError("[real] complex parts are not there yet (docs/limits.md)")
    return self


def attach() -> None:
    """Attaches everything. Called once, when jitgrad is imported."""
    _collect()
    for name, function in FUNCTIONS.items():
        if name not in NOT_METHODS:
            setattr(Tensor, name, function)
    for name, function in ONLY_METHODS.items():
        setattr(Tensor, name, function)
    Tensor.where = where_method  # type: ignore[attr-defined]
    for name in IN_PLACE:
        method = _in_place(FUNCTIONS[name], name + "_")
        setattr(Tensor, name + "_", method)
    for own in (copy_, fill_, zero_, normal_, uniform_, bernoulli_, exponential_, random_, to,
                backward, new_tensor, set_):  # fmt: skip
        setattr(Tensor, own.__name__, own)
    Tensor.type = type_  # type: ignore[attr-defined]
    for name, dtype in _CONVERSIONS.items():
        setattr(Tensor, name, _conversion(name, dtype))
    for make in (creation.zeros, creation.ones, creation.empty, creation.full):
        setattr(Tensor, f"new_{make.__name__}", _new_full(make))
    Tensor.type_as = lambda self, other: cast(self, other.dtype)  # type: ignore[attr-defined]
    Tensor.cpu = lambda self, *args, **kwargs: self  # type: ignore[attr-defined]
    Tensor.cuda = lambda self, *args, **kwargs: Device("cuda") and self  # type: ignore[attr-defined]
    Tensor.pin_memory = lambda self, *args: self  # type: ignore[attr-defined]
    Tensor._legacy_new = classmethod(legacy_new)  # type: ignore[method-assign, assignment]
    Tensor.bernoulli = creation.bernoulli  # type: ignore[attr-defined]
    Tensor.multinomial = creation.multinomial  # type: ignore[attr-defined]
    for name in ("squeeze", "unsqueeze", "transpose", "t"):
        setattr(Tensor, name + "_", _view_in_place(FUNCTIONS[name], name + "_"))
    _attach_operators()
    _attach_properties()


def _view_in_place(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """squeeze_ and its kin: the tensor itself becomes the view."""

    def method(self: Tensor, *args: Any) -> Tensor:
        if self._view is not None or self.requires_grad:
            raise RuntimeError(
                f"[{name}] expected a tensor that is no view and does not require grad; use "
                f"{name[:-1]}() instead (docs/limits.md)"
            )
        view = function(self, *args)
        if state.recorder is not None:
            state.recorder.rebind(self, "data", view)
        self._data, self._type, self._chain = view._data, view._type, view._chain
        bump_epoch()
        return self

    return _named(method, name)
