"""Arguments of public functions: dims, shapes, what is a tensor, and ranges of elements."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.compiler.ops.record import OPS, same_device_text
from jitgrad.compiler.symbolic import Sym
from jitgrad.dispatch import apply
from jitgrad.runtime import dtypes, formats
from jitgrad.runtime.arguments import CAUGHT, apart, complete, expect_flags, locates
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.overriding import recover
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor

Dims = "int | Sequence[int] | None"


def takes_on_host(*names: str) -> Callable[[Any], Any]:
    """Decorates a function some arguments of which may be on the CPU, whatever the others' device:
    it puts them where they are used (gpu/mixing.py)."""

    def mark(function: Any) -> Any:
        function.on_host = names
        return function

    return mark


def expect_one_device(name: str, *tensors: Any) -> None:
    """Raises RuntimeError where the tensors among these are on different devices, numbers on the
    CPU aside: for functions of which no op gets them together."""
    types = [x._type for x in tensors if isinstance(x, Tensor)]
    devices = {t.device for t in types if t.shape or t.device != "cpu"}
    if len(devices) > 1:
        raise RuntimeError(same_device_text(name, devices))


def numpy_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, that also takes NumPy's names of arguments, as PyTorch's do: axis for dim,
    keepdims for keepdim, x, x1 or a for input, x2 for other. Functions with neither dim nor keepdim
    are given back as they are."""
    code = inspect.unwrap(function).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if "axis" in names or not ("dim" in names or "keepdim" in names):
        return function

    @functools.wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for theirs, ours in _NUMPY_NAMES:
                if theirs in kwargs and theirs not in names:
                    if ours in kwargs:
                        raise TypeError(
                            f"{function.__name__}(): got both {ours} and {theirs}, which name the "
                            "same argument"
                        )
                    kwargs[ours] = kwargs.pop(theirs)
        try:
            if kwargs or len(args) > 2:
                expect_flags(function, args, kwargs)
            made = function(*args, **kwargs)
            return made if getattr(made, "_view", made) is None else apart(made, args, kwargs)
        except CAUGHT as error:
            if (found := recover(error, renamed, args, kwargs)) is not None:
                return found[0]
            complete(error, function, args, kwargs)
            raise

    vars(renamed)["numpy_names"] = True  # tests/stubs.py
    return locates(renamed)


_NUMPY_NAMES = (
    ("axis", "dim"), ("keepdims", "keepdim"), ("x", "input"), ("x1", "input"), ("a", "input"),
    ("x2", "other"),
)  # fmt: skip


def one_given(name: str, *values: Any) -> Any:
    """The one value that is not None: an argument that has several names. Raises TypeError."""
    given = [x for x in values if x is not None]
    if len(given) != 1:
        raise TypeError(f"{name}(): expected one of the names of its argument; got {len(given)}")
    return given[0]


def is_dim(x: Any) -> bool:
    """True for an int (of whatever kind) or a symbolic dim."""
    return isinstance(x, (int, Sym)) or (hasattr(x, "__index__") and not isinstance(x, Tensor))


def as_dim(x: Any) -> Any:
    """A size or index as an int or Sym; a one-element integer tensor is read."""
    if type(x) is int or isinstance(x, Sym):
        return x
    if isinstance(x, bool):
        raise TypeError("expected ints as sizes; got bool")
    return int(operator.index(x))


def as_shape(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape in `f(2, 3)` or `f((2, 3))`: a tuple of ints (or Syms). Raises TypeError for other
    items, of which a bool is one if it is the first."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    return tuple([int(d) if k and d is True else as_dim(d) for k, d in enumerate(sizes)])


def expect_tensor(name: str, x: Any) -> Tensor:
    """x. Raises TypeError unless it is a Tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}(): argument 'input' must be Tensor, not {type(x).__name__}; convert it with "
            "jitgrad.tensor(...)"
        )
    return x


def older_order(
    name: str, given: tuple[Any, ...], count: int, scales: tuple[Any, ...]
) -> tuple[list[Any], list[Any]]:
    """(tensors, scales) of a call in an older order of PyTorch's, in which scales stand among the
    tensors, the last of which may be a number: add(x, 2, y), addmm(beta, x, alpha, a, b). Scales
    that are not given are the last of `scales`. Warns. Raises TypeError for another count.
    """
    *front, last = given
    tensors = [*(x for x in front if isinstance(x, Tensor)), last]
    numbers = [x for x in front if not isinstance(x, Tensor)]
    if len(tensors) != count or len(numbers) > len(scales):
        kinds = ", ".join(type(x).__name__ for x in given)
        raise TypeError(
            f"{name}(): expected {count} positional arguments, its scales by keyword; got {kinds}"
        )
    warn(f"This order of arguments of {name} is deprecated: pass its scales by keyword instead.")
    return tensors, [*numbers, *scales[len(numbers) :]]


def expect_floating(op: str, name: str, x: Tensor) -> None:
    """Raises NotImplementedError unless x is of a floating dtype."""
    if not x.is_floating_point():
        raise NotImplementedError(
            f"[{op}] expected {name} of a floating dtype; got {x.dtype} {tuple(x.shape)}; convert "
            "it with .float()"
        )


def expect_real(op: str, *tensors: Any) -> None:
    """Raises NotImplementedError for a complex tensor."""
    for x in tensors:
        if isinstance(x, Tensor) and x._type.dtype.is_complex:
            raise NotImplementedError(
                f"[{op}] expected real numbers; got {x._type}; use its real, imag or abs"
            )


def expect_dtype(op: str, dtype: DType, **tensors: Tensor | None) -> None:
    """Raises RuntimeError, naming the argument, unless all tensors are of the input's dtype."""
    for name, x in tensors.items():
        if x is not None and x.dtype is not dtype:
            raise RuntimeError(
                f"[{op}] expected {name} of input's dtype {dtype}; got {x.dtype} "
                f"{tuple(x.shape)}; convert one with .to(dtype)"
            )


def expect_shape(op: str, shape: Sequence[int], **tensors: Tensor | None) -> None:
    """Raises RuntimeError, naming the argument, unless all tensors are of the shape."""
    for name, x in tensors.items():
        if x is not None and tuple(x.shape) != tuple(shape):
            raise RuntimeError(
                f"[{op}] expected {name} of shape {tuple(shape)}; got {tuple(x.shape)}"
            )


def expect_rank_of(memory_format: Any, rank: int) -> None:
    """Raises RuntimeError for a memory format that tensors of this rank cannot have. There is one
    layout, so it changes nothing."""
    if not isinstance(memory_format, formats.memory_format):
        raise TypeError(
            "argument 'memory_format' must be torch.memory_format, not "
            f"{type(memory_format).__name__}"
        )
    needed = {formats.channels_last: 4, formats.channels_last_3d: 5}.get(memory_format, rank)
    if needed != rank:
        raise RuntimeError(
            f"required rank {needed} tensor to use {memory_format.name} format; got one of {rank} "
            "dims"
        )


def expect_expandable(op: str, shape: Sequence[Any], **tensors: Tensor | None) -> None:
    """Raises RuntimeError, naming the argument, unless all tensors can be expanded to the shape."""
    for name, x in tensors.items():
        if x is not None:
            own = x._type.shape
            lead = len(shape) - len(own)
            if lead < 0 or any(d != n and d != 1 for d, n in zip(own, shape[lead:], strict=True)):
                raise RuntimeError(
                    f"[{op}] expected {name} of a shape that can be expanded to {tuple(shape)}; "
                    f"got {x._type}"
                )


def one_axis(name: str, rank: int, dim: Any) -> int:
    """A dim as an axis in [0, rank). A 0-d tensor has the axes 0 and -1. Raises IndexError."""
    if isinstance(dim, bool):
        raise TypeError(f"{name}(): argument 'dim' must be int, not bool")
    dim = operator.index(dim)
    extent = max(rank, 1)
    if not -extent <= dim < extent:
        raise IndexError(
            f"[{name}] Dimension out of range (expected to be in range of [{-extent}, "
            f"{extent - 1}], but got {dim})"
        )
    return dim % extent


def all_axes(name: str, rank: int, dim: Any) -> tuple[int, ...]:
    """Dims of a reduction as sorted axes; None or () is all of them."""
    if dim is None:
        return tuple(range(rank))
    if isinstance(dim, (tuple, list)):
        if not dim:
            return tuple(range(rank))
        axes = [one_axis(name, rank, d) for d in dim]
        if len(set(axes)) != len(axes):
            raise RuntimeError(f"[{name}] dim appears multiple times in the list of dims: {dim}")
        return tuple(sorted(axes)) if rank else ()
    axis = one_axis(name, rank, dim)
    return (axis,) if rank else ()


def infer_minus_one(name: str, shape: Sequence[Any], total: Any) -> tuple[Any, ...]:
    """The shape with its -1, if any, replaced by what makes the number of elements `total`."""
    unknown = [k for k, d in enumerate(shape) if isinstance(d, int) and d == -1]
    if not unknown:
        return tuple(shape)
    if len(unknown) > 1:
        raise RuntimeError(f"[{name}] only one dimension can be inferred; got {tuple(shape)}")
    known: Any = 1
    for d in shape:
        if not (isinstance(d, int) and d == -1):
            known = known * d
    if known == 0:
        raise RuntimeError(
            f"[{name}] cannot reshape tensor of 0 elements into shape {list(shape)} because the "
            "unspecified dimension size -1 can be any value and is ambiguous"
        )
    if total % known != 0:
        raise RuntimeError(
            f"[{name}] shape '{list(shape)}' is invalid for input of size {total}; the product of "
            "the sizes must stay the same"
        )
    filled = list(shape)
    filled[unknown[0]] = total // known
    return tuple(filled)


def expect_range(x: Tensor, low: Any, high: Any, error: type[Exception], text: str) -> Tensor:
    """x, where low <= x <= high; else raises `error`, eager and compiled. "{value}" in the text
    stands for the first element out of range. None for low or high asks nothing."""
    attrs = {"low": low, "high": high, "error": error.__name__, "text": text}
    return apply(OPS["expect_range"], (x,), attrs)


def positions(size: Any, like: Tensor) -> Tensor:
    """0 up to a size (int64), on the device of `like`."""
    attrs = {"shape": (size,), "dtype": dtypes.int64, "start": 0, "step": 1}
    return apply(OPS["iota"], (), {**attrs, "device": like._type.device})
