"""Attaches methods to Tensor: public functions, in-place forms, operators, conversions.

Owns the tables of what becomes a method. The functions themselves are in functions/; every in-place
method `f_` is the function f and an assign (inplace.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import conversions, copying, creation, fills, indexing, inplace, printing
from jitgrad.autograd import engine, hooks
from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply_two
from jitgrad.functions import (
    arrange,
    complex_numbers,
    distance,
    elementwise,
    linalg,
    numeric,
    reduce,
    scatters,
    select,
    shape,
    special,
    statistics,
)
from jitgrad.functions.args import numpy_names
from jitgrad.inplace import in_place, view_in_place
from jitgrad.promotion import NUMBERS, constant
from jitgrad.runtime.arguments import located
from jitgrad.runtime.dtypes import Category
from jitgrad.runtime.overriding import is_wrapper, recover
from jitgrad.runtime.userline import LOCATED, add_line
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor

_tensor: Any = Tensor  # the class, to attach to
FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Every public function that takes a tensor first, by its public name."""


def _collect() -> None:
    for record in elementwise.records_in(""):
        FUNCTIONS[record.name] = elementwise.generated[record.name]
    for module, names in _TABLE.items():
        for name in names.split():
            FUNCTIONS[name] = getattr(module, name)
    FUNCTIONS["diagonal"] = _called(shape.diagonal_view, "diagonal")
    for name, function in FUNCTIONS.items():
        FUNCTIONS[name] = numpy_names(function)
    for alias, name in elementwise.ALIASES.items():
        FUNCTIONS[alias] = FUNCTIONS[name]
    FUNCTIONS["swapaxes"], FUNCTIONS["swapdims"] = shape.swapaxes, shape.transpose
    FUNCTIONS["moveaxis"] = shape.movedim
    for name in ("split", "chunk", "split_with_sizes"):
        FUNCTIONS["unsafe_" + name] = FUNCTIONS[name]
    FUNCTIONS["trapz"] = numeric.trapezoid
    FUNCTIONS["fill"] = select.fill
    FUNCTIONS["index_put"] = indexing.index_put
    FUNCTIONS["is_nonzero"] = is_nonzero
    FUNCTIONS["is_same_size"] = is_same_size
    FUNCTIONS["concat"] = FUNCTIONS["concatenate"] = shape.cat
    FUNCTIONS["row_stack"] = shape.vstack


_TABLE: dict[Any, str] = {
    elementwise: "add sub rsub mul div true_divide pow float_power where masked_fill clamp "
    "clamp_min clamp_max square frac signbit round logit lerp addcmul addcdiv hypot logaddexp "
    "logaddexp2 xlogy heaviside nan_to_num fmax fmin deg2rad rad2deg isposinf isneginf positive "
    "isclose allclose equal",
    reduce: "sum prod mean var std var_mean std_mean amax amin aminmax max min argmax argmin any "
    "all count_nonzero nansum nanmean logsumexp softmax log_softmax cumsum cumprod sort argsort "
    "msort topk norm diff",
    statistics: "kthvalue median nanmedian mode quantile nanquantile histc histogram "
    "histogramdd bincount unique unique_consecutive cov corrcoef",
    numeric: "lcm ldexp frexp isin dist renorm logcumsumexp trapezoid cumulative_trapezoid "
    "gradient cummax cummin sum_to_size",
    special: "digamma polygamma mvlgamma",
    complex_numbers: "adjoint angle conj conj_physical complex imag isreal polar real resolve_conj "
    "resolve_neg sgn view_as_complex view_as_real",
    arrange: "split_with_sizes hsplit vsplit dsplit narrow_copy diagflat unravel_index "
    "nonzero_static repeat_interleave",
    scatters: "scatter_reduce index_reduce masked_scatter put slice_scatter select_scatter "
    "diagonal_scatter as_strided_scatter",
    shape: "reshape permute transpose t movedim flatten unflatten ravel squeeze unsqueeze "
    "broadcast_to narrow select unbind split chunk tensor_split clone flip fliplr flipud tile "
    "roll rot90 tril triu diag diag_embed as_strided",
    linalg: "matmul mm bmm mv dot vdot inner outer ger addmm addmv addr baddbmm addbmm tensordot "
    "kron cross trace",
    distance: "cdist cosine_similarity pairwise_distance pdist",
    select: "gather take_along_dim take scatter scatter_add index_select index_add "
    "index_copy index_fill nonzero argwhere masked_select searchsorted "
    "bucketize",
}


def is_nonzero(input: Tensor) -> bool:
    """bool(input), of a tensor of one element. Ends a trace."""
    return bool(input)


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether the shapes are equal."""
    return tuple(input._type.shape) == tuple(other._type.shape)


def _polygamma_method(self: Tensor, n: int) -> Tensor:
    """The n-th derivative of digamma."""
    return special.polygamma(n, self)


def _called(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, which has this name from here on."""
    function.__name__ = name
    return function


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
    "polygamma": _called(_polygamma_method, "polygamma"),
}

NOT_METHODS = {
    "where": "self is the second argument", "cat": "", "stack": "", "hstack": "", "vstack": "",
    "bucketize": "", "searchsorted": "", "rsub": "", "concat": "", "concatenate": "",
    "row_stack": "", "histogramdd": "", "fill": "", "isin": "", "trapz": "",
    "trapezoid": "",
    "cumulative_trapezoid": "", "gradient": "", "unravel_index": "", "tensordot": "",
    "var_mean": "", "std_mean": "",
    "cdist": "", "cosine_similarity": "", "pairwise_distance": "", "pdist": "",
    "complex": "", "polar": "", "real": "a property", "imag": "a property",
    "view_as_complex": "", "view_as_real": "",
}  # fmt: skip

# The functions that have an in-place method, beside those of records (Elementwise.in_place).
IN_PLACE = (
    "sgn", "square", "frac", "true_divide", "divide", "multiply", "subtract", "clamp", "clip",
    "clamp_min", "clamp_max", "lerp", "addcmul", "addcdiv", "hypot", "xlogy", "nan_to_num",
    "masked_fill", "tril", "triu", "scatter", "scatter_add", "scatter_reduce", "index_add",
    "index_copy", "index_fill", "masked_scatter", "addmm", "addmv", "addr", "baddbmm", "cumsum",
    "cumprod", "logit", "deg2rad", "rad2deg", "float_power", "absolute", "negative", "arccos",
    "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "digamma", "fix", "greater",
    "greater_equal", "heaviside", "index_reduce", "lcm", "ldexp", "less", "less_equal", "mvlgamma",
    "not_equal", "renorm", "addbmm", "conj_physical",
)  # fmt: skip


def in_place_names() -> list[str]:
    """The functions f that have a method `f_`: those of records, and those of the table."""
    return [r.name for r in elementwise.records_in("") if r.in_place] + list(IN_PLACE)


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Adds to `.grad` of the leaves this tensor's gradient (see autograd.backward)."""
    engine.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def where_method(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where the condition holds, else other."""
    return elementwise.where(condition, self, other)


# Methods that are jitgrad.name, which imports old_linalg at the first use: name -> its
# (module of functions/, name in it).
LATER: dict[str, tuple[str, str]] = {
    "cholesky": ("decompositions", "cholesky_old"),
    "lu": ("decompositions", "lu_old"),
    "qr": ("decompositions", "qr_old"),
    "svd": ("decompositions", "svd_old"),
    "lu_solve": ("solvers", "lu_solve_old"),
    "inverse": ("solvers", "inv"),
    "pinverse": ("solvers", "pinverse"),
    **{name: ("decompositions", name) for name in ("geqrf", "matrix_exp", "ormqr")},
    **{
        name: ("solvers", name)
        for name in (
            "cholesky_inverse", "cholesky_solve", "det", "logdet", "matrix_power", "slogdet",
            "triangular_solve",
        )
    },
    "orgqr": ("decompositions", "householder_product"),
    "stft": ("spectrograms", "stft"),
    "istft": ("spectrograms", "istft"),
}  # fmt: skip

FROM_NN = ("hardshrink", "prelu")  # functions of nn.functional that are methods


def _later(name: str) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(sys.modules["jitgrad"], name)(self, *args, **kwargs)

    method.__doc__ = f"jitgrad.{name}, of this tensor."
    return _named(method, name)


VIEWS_IN_PLACE = ("squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims", "as_strided")


# -- operators -----------------------------------------------------------------------------------
_OPERANDS = (Tensor, *NUMBERS)


_SWAPPED = {"sub": "RsubBackward1", "div": "MulBackward0"}
"""What nodes of operators of a number and a tensor are called, where PyTorch has others."""


def _operand(x: Any) -> Any:
    """What an operator takes beside a tensor: tensors, numbers, arrays; else NotImplemented."""
    if isinstance(x, _OPERANDS):
        return x
    return creation.from_numpy(x) if isinstance(x, np.ndarray) else NotImplemented


def _operator(name: str, swap: bool = False) -> Callable[..., Any]:
    function = FUNCTIONS[name]
    called_by = _SWAPPED.get(name)

    def forward(self: Tensor, other: Any) -> Any:
        if type(other) is not float and type(other) is not int:
            other = _operand(other)
        try:
            return other if other is NotImplemented else function(self, other)
        except LOCATED as error:
            if (made := recover(error, forward, (self, other), {})) is not None:
                return made[0]
            add_line(error)
            raise

    def reverse(self: Tensor, other: Any) -> Any:
        if type(other) is not float and type(other) is not int:
            other = _operand(other)
        try:
            if other is NotImplemented:
                return other
            made = function(other, self)
            return made if called_by is None else called(made, called_by)
        except LOCATED as error:
            if (again := recover(error, reverse, (self, other), {})) is not None:
                return again[0]
            add_line(error)
            raise

    operator = reverse if swap else forward
    is_wrapper(operator)
    return operator


def _binary(record: Any) -> Callable[..., Any]:
    """The operator of a record, with the commonest cases first: two tensors of one dtype, or a
    floating one and a number."""
    any_dtype = record.promotes != "float"
    general = _operator(record.name)

    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor):
            dtype = self._type.dtype
            if dtype is other._type.dtype and (any_dtype or dtype.category >= 2):
                return apply_two(record, self, other)
        elif type(other) is float or type(other) is int:
            dtype = self._type.dtype
            if dtype.category == Category.FLOAT:
                return apply_two(record, self, constant(other, dtype))
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
    for alias, name in {"div": "truediv", "rdiv": "rtruediv", "idiv": "itruediv"}.items():
        setattr(Tensor, f"__{alias}__", getattr(Tensor, f"__{name}__"))
    _tensor.__rmatmul__ = lambda self, other: (
        linalg.matmul(other, self) if isinstance(other, Tensor) else NotImplemented
    )
    _tensor.__pow__ = _named(_operator("pow"), "__pow__")
    _tensor.__rpow__ = _named(_operator("pow", True), "__rpow__")
    _tensor.__ipow__ = _named(_assigning("pow"), "__ipow__")
    _tensor.__matmul__ = lambda self, other: (
        linalg.matmul(self, other) if isinstance(other, Tensor) else NotImplemented
    )
    _tensor.__neg__ = lambda self: FUNCTIONS["neg"](self)
    _tensor.__pos__ = elementwise.positive
    _tensor.__abs__ = lambda self: FUNCTIONS["abs"](self)
    _tensor.__invert__ = _named(lambda self: FUNCTIONS["bitwise_not"](self), "__invert__")
    _tensor.__getitem__ = _named(located(indexing.getitem), "__getitem__")
    _tensor.__setitem__ = _named(located(indexing.setitem), "__setitem__")
    setattr(Tensor, "__repr__", _named(_repr, "__repr__"))  # noqa: B010


def _repr(self: Tensor) -> str:
    cls = type(self)
    plain = cls is Tensor or cls.__module__.startswith("jitgrad.")
    return printing.tensor_text(self, "tensor(" if plain else f"{cls.__name__}(")


def _named(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    return method


def _assigning(name: str) -> Callable[..., Any]:
    write = in_place(FUNCTIONS[name], name + "_")

    def method(self: Tensor, other: Any) -> Any:
        other = _operand(other)
        return other if other is NotImplemented else write(self, other)

    return method


def _attach_properties() -> None:
    _tensor.T = property(
        lambda self: self.permute(tuple(range(self.ndim))[::-1]),
        doc="All dims in reverse order.",
    )
    _tensor.mT = property(shape.matrix_transpose, doc="The last two dims exchanged.")
    _tensor.H = property(_adjoint, doc="The conjugate transpose of a matrix.")
    _tensor.mH = property(complex_numbers.adjoint, doc="mT, conjugated.")
    _tensor.real = property(complex_numbers.real, _set_real, doc="The real part, a view.")
    _tensor.imag = property(complex_numbers.imag, _set_imag, doc="The imaginary part, a view.")


def _adjoint(self: Tensor) -> Tensor:
    if self.ndim not in (0, 2):
        raise RuntimeError(f"[Tensor.H] expected a matrix; got {self._type}; use .mH")
    return complex_numbers.conj(FUNCTIONS["t"](self))


def _set_real(self: Tensor, value: Any) -> None:
    inplace.copy_(complex_numbers.real(self), creation.as_tensor(value))


def _set_imag(self: Tensor, value: Any) -> None:
    inplace.copy_(complex_numbers.imag(self), creation.as_tensor(value))


def attach() -> None:
    """Attaches everything, when this module is imported."""
    _collect()
    for name, function in FUNCTIONS.items():
        if name not in NOT_METHODS:
            # Of one operand, its record's errors have the line.
            quick = name in elementwise.generated and getattr(OPS[name], "arity", 2) == 1
            setattr(Tensor, name, function if quick else located(function))
    for name, function in ONLY_METHODS.items():
        setattr(Tensor, name, located(function))
    for name in (*LATER, *FROM_NN):
        setattr(Tensor, name, _later(name))
    _tensor.where = _named(where_method, "where")
    for name in in_place_names():
        setattr(Tensor, name + "_", in_place(FUNCTIONS[name], name + "_"))
    owns: tuple[Callable[..., Any], ...] = (*inplace.IN_PLACE, *fills.FILLS, backward)
    setattr(Tensor, "polygamma_", in_place(_polygamma_method, "polygamma_"))  # noqa: B010
    for own in owns:
        setattr(Tensor, own.__name__, located(own))
    for name, method in conversions.METHODS.items():
        setattr(Tensor, name, method)
    _tensor._legacy_new = classmethod(conversions.legacy_new)
    _tensor.bernoulli = creation.bernoulli
    _tensor.multinomial = creation.multinomial
    for name in VIEWS_IN_PLACE:
        setattr(Tensor, name + "_", located(view_in_place(FUNCTIONS[name], name + "_")))
    for name, own in copying.COPYING.items():
        setattr(Tensor, name, own)
    _attach_operators()
    _attach_properties()


attach()
