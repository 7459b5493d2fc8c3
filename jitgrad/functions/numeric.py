"""Number functions composed of ops: gcd, ldexp, frexp, isin, dist, renorm, trapezoid, gradient."""

from __future__ import annotations

from typing import Any

from jitgrad.compiler.ops.record import OPS
from jitgrad.composites import composite
from jitgrad.dispatch import apply
from jitgrad.functions.args import one_axis, one_given, positions
from jitgrad.functions.elementwise import generated, where
from jitgrad.functions.reduce import logsumexp, vector_norm
from jitgrad.functions.shape import row_major, slice_along, view_dtype
from jitgrad.promotion import cast, constant, floating, result_type
from jitgrad.return_types import TYPES
from jitgrad.runtime import dtypes
from jitgrad.tape.lasting import lasting
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiple of integers, not negative; 0 where either is 0."""
    divisor = generated["gcd"](input, other)
    zero = divisor == 0
    part = generated["floor_divide"](input, where(zero, 1, divisor))
    return generated["abs"](part * other)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2**other."""
    power = generated["exp2"](cast(other, floating(result_type(input, other))))
    return input * power


# dtype -> (integer dtype of its bits, bits of the fraction, bias of the exponent, exponent bits)
_FLOATS = {
    dtypes.float64: (dtypes.int64, 52, 1023, 0x7FF),
    dtypes.float32: (dtypes.int32, 23, 127, 0xFF),
    dtypes.bfloat16: (dtypes.int16, 7, 127, 0xFF),
    dtypes.float16: (dtypes.int16, 10, 15, 0x1F),
}


def frexp(input: Tensor) -> Any:
    """(mantissa, int32 exponent) with input = mantissa * 2**exponent and 1/2 <= |mantissa| < 1.

    0, NaN and infinity are their own mantissas, with exponent 0. Raises RuntimeError for integers.
    """
    if input.dtype not in _FLOATS:
        raise RuntimeError(
            f"torch.frexp() only supports floating-point dtypes; got {input._type}; use .float()"
        )
    integer, fraction, bias, mask = _FLOATS[input.dtype]
    lift = fraction + 2  # makes every subnormal number normal
    tiny = generated["abs"](input) < 2.0 ** (1 - bias)
    normal = where(tiny, input * 2.0**lift, input)
    bits = view_dtype(normal.detach().contiguous(), integer)
    shifted = generated["bitwise_right_shift"](bits, fraction)
    biased = cast(generated["bitwise_and"](shifted, mask), dtypes.int32)
    exponent = biased - (bias - 1) - where(tiny, lift, 0).to(dtypes.int32)
    odd = (input == 0) | ~generated["isfinite"](input)
    exponent = where(odd, 0, exponent).to(dtypes.int32).detach()
    # 2**-exponent in two factors, each within the range of the dtype
    half = generated["bitwise_right_shift"](exponent, 1)
    low = generated["exp2"](cast(-half, input.dtype))
    high = generated["exp2"](cast(half - exponent, input.dtype))
    return TYPES["frexp"](input * low * high, exponent)


def isin(
    elements: Any = None, test_elements: Any = None, *, assume_unique: bool = False,
    invert: bool = False, element: Any = None, test_element: Any = None,
) -> Tensor:  # fmt: skip
    """Where elements are among the test elements (where they are not, with invert). Numbers are
    called `element` and `test_element`, too."""
    elements = one_given("isin", elements, element)
    test_elements = one_given("isin", test_elements, test_element)
    if not isinstance(elements, Tensor) and not isinstance(test_elements, Tensor):
        raise TypeError("isin(): expected a Tensor as elements or as test_elements; got numbers")
    for x in (elements, test_elements):
        if isinstance(x, Tensor) and x.dtype in (dtypes.bool_, dtypes.complex64, dtypes.complex128):
            raise RuntimeError(f"Unsupported input type encountered for isin(): {x._type}")
    dtype = result_type(elements, test_elements)
    a = cast(elements, dtype) if isinstance(elements, Tensor) else constant(elements, dtype)
    if isinstance(test_elements, Tensor):
        found = (a.unsqueeze(-1) == cast(test_elements, dtype).reshape(-1)).any(-1)
    else:
        found = a == constant(test_elements, dtype)
    return ~found if invert else found


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of input - other."""
    return called(vector_norm(input - other, p), "DistBackward0")


@row_major
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """input with every slice along dim whose p-norm exceeds maxnorm scaled down to it."""
    if not p > 0:
        raise RuntimeError(f"renorm: non-positive-norm not supported; got p={p}")
    if not maxnorm >= 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.ndim < 2:
        raise RuntimeError(
            f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions"
        )
    axis = one_axis("renorm", input.ndim, dim)
    others = [k for k in range(input.ndim) if k != axis]
    long = vector_norm(input.detach(), p, others, True) > maxnorm
    # The others are no part of a norm that is differentiated: where it is NaN, so would that be.
    norms = vector_norm(where(long, input, 0.0), p, others, True)
    factor = maxnorm / (norms + 1e-7)
    return called(cast(where(long, input * factor, input), input.dtype), "RenormBackward0")


@composite
@naming("LogcumsumexpBackward0")
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(x))) along dim, stable: pairs at distances 1, 2, 4, ... are joined.

    Source: W. D. Hillis, G. L. Steele, Data parallel algorithms, CACM 29 (1986).
    """
    if not input.is_floating_point():
        raise NotImplementedError(
            f'"logcumsumexp_out_cpu" not implemented for {input.dtype}; use .float()'
        )
    axis = one_axis("logcumsumexp", input.ndim, dim)
    if not input.ndim:
        return input.clone()
    half = input.dtype.itemsize == 2
    x = cast(input, dtypes.float32) if half else input.clone()
    size, far = x.shape[axis], 1
    while far < size:
        head = slice_along(x, axis, 0, far)
        pair = (slice_along(x, axis, far, size), slice_along(x, axis, 0, size - far))
        both = tuple(y.unsqueeze(0) for y in pair)
        joined = logsumexp(apply(OPS["concatenate"], both, {"axis": 0}), 0)
        x = apply(OPS["concatenate"], (head, joined), {"axis": axis})
        far *= 2
    return cast(x, input.dtype)


# -- integrals and differences ---------------------------------------------------------------------
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral of y along dim by the trapezoidal rule, at points x or dx apart (1 by
    default)."""
    axis = one_axis("trapezoid", y.ndim, dim)
    return _trapezoids("trapezoid", y, x, dx, axis).sum(axis)


def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1
) -> Tensor:
    """The integral from the first point to each later one, by the trapezoidal rule."""
    axis = one_axis("cumulative_trapezoid", y.ndim, dim)
    return _trapezoids("cumulative_trapezoid", y, x, dx, axis).cumsum(axis)


def _trapezoids(name: str, y: Tensor, x: Tensor | None, dx: Any, axis: int) -> Tensor:
    if x is not None and dx is not None:
        raise TypeError(f"{name}(): expected x or dx, not both")
    if y.dtype is dtypes.bool_ or (x is not None and x.dtype is dtypes.bool_):
        raise RuntimeError(f"{name}: expected numbers as y and x; got bools; use .float()")
    if isinstance(dx, (bool, complex)):
        raise RuntimeError(f"{name}: Currently, we only support dx as a real number; got {dx}")
    size = y._type.shape[axis]
    if size == 0 and (x is None or name == "trapezoid"):
        return cast(y, floating(y.dtype))
    pairs = slice_along(y, axis, 0, max(size - 1, 0)) + slice_along(y, axis, 1, size)
    if x is None:
        return pairs * ((1.0 if dx is None else dx) / 2)
    if x.ndim == 1:
        if x._type.shape[0] != size:
            raise RuntimeError(
                f"{name}: There must be one `x` value for each sample point; got {x._type} for "
                f"{size} points"
            )
        x = x.reshape((-1,) + (1,) * (y.ndim - 1 - axis))
    if x.ndim < y.ndim:
        x = x.reshape((1,) * (y.ndim - x.ndim) + tuple(x._type.shape))
    count = x._type.shape[axis]
    steps = slice_along(x, axis, 1, count) - slice_along(x, axis, 0, max(count - 1, 0))
    return pairs * steps / 2.0


@lasting
def gradient(
    input: Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """Central differences along each dim, of second order inside and of `edge_order` at both ends.

    spacing: a number (1 by default), one for each dim, or the coordinates (a vector for each dim).
    """
    if dim is None:
        axes = list(range(input.ndim))
    else:
        axes = [
            one_axis("gradient", input.ndim, d) for d in ([dim] if isinstance(dim, int) else dim)
        ]
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"dim appears multiple times in the list of dims: {dim}")
    spacing = 1 if spacing is None else spacing
    spaces = list(spacing) if isinstance(spacing, (tuple, list)) else [spacing] * len(axes)
    if len(spaces) != len(axes):
        raise RuntimeError(
            f"torch.gradient expected spacing to be unspecified, a scalar, or a list of length "
            f"{len(axes)}; got {len(spaces)}"
        )
    if edge_order not in (1, 2):
        raise RuntimeError(
            f"torch.gradient only supports edge_order=1 and edge_order=2; got {edge_order}"
        )
    if input.dtype is dtypes.bool_:
        raise RuntimeError(
            f"torch.gradient expected numbers; got {input._type}; convert with .to(dtype)"
        )
    for axis, h in zip(axes, spaces, strict=True):
        if isinstance(spacing, (tuple, list)) and isinstance(h, Tensor):
            if h.ndim != 1 or h._type.shape[0] != input._type.shape[axis]:
                raise RuntimeError(
                    "torch.gradient expected each element of spacing to have one dimension, and a "
                    f"coordinate for each point; got {h._type} for dim {axis} of {input._type}"
                )
    return tuple(
        _gradient_along(input, k, h, edge_order) for k, h in zip(axes, spaces, strict=True)
    )


def _gradient_along(x: Tensor, axis: int, spacing: Any, edge_order: int) -> Tensor:
    size = x.shape[axis]
    if size < edge_order + 1:
        raise RuntimeError(
            f"torch.gradient expected each dimension size to be at least edge_order+1 "
            f"({edge_order + 1}); got {size}"
        )
    x = cast(x, floating(x.dtype))

    def at(start: int, count: int) -> Tensor:
        return x.narrow(axis, start + size if start < 0 else start, count)

    if isinstance(spacing, Tensor) and spacing.ndim == 1:
        shape = (-1,) + (1,) * (x.ndim - 1 - axis)
        steps = (spacing[1:] - spacing[:-1]).reshape(shape)

        def step(k: int) -> Any:
            return steps.narrow(0, k + size - 1 if k < 0 else k, 1)

        low: Any = steps.narrow(0, 0, max(size - 2, 0))
        high: Any = steps.narrow(0, 1, max(size - 2, 0))
    else:

        def step(k: int) -> Any:
            return spacing

        low = high = spacing
    parts = [(at(1, 1) - at(0, 1)) / step(0), (at(-1, 1) - at(-2, 1)) / step(-1)]
    if edge_order == 2:
        parts = [
            _one_sided(at(0, 1), at(1, 1), at(2, 1), step(0), step(1)),
            -_one_sided(at(-1, 1), at(-2, 1), at(-3, 1), step(-1), step(-2)),
        ]
    if size > 2:
        # of second order on unequal steps l below and h above
        below, here, above = at(0, size - 2), at(1, size - 2), at(2, size - 2)
        inner = (
            low / (high * (low + high)) * above
            + (high - low) / (low * high) * here
            - high / (low * (low + high)) * below
        )
        parts.insert(1, inner)
    return apply(OPS["concatenate"], tuple(parts), {"axis": axis})


def _one_sided(a: Tensor, b: Tensor, c: Tensor, h: Any, k: Any) -> Tensor:
    """The slope at the first of three points that are h and k apart, of second order."""
    return -(2 * h + k) / (h * (h + k)) * a + (h + k) / (h * k) * b - h / (k * (h + k)) * c


# -- running extremes ------------------------------------------------------------------------------
@composite
@naming("CummaxBackward0")
def cummax(input: Tensor, dim: int) -> Any:
    """(the greatest element so far along dim, the index of its last place). NaN wins."""
    return _running("cummax", input, dim)


@composite
@naming("CumminBackward0")
def cummin(input: Tensor, dim: int) -> Any:
    """(the least element so far along dim, the index of its last place). NaN wins."""
    return _running("cummin", input, dim)


def _running(name: str, input: Tensor, dim: int) -> Any:
    axis = one_axis(name, input.ndim, dim)
    if not input.ndim:
        return TYPES[name](input.clone(), cast(input.detach() * 0 != 0, dtypes.int64) * 0)
    x = input.detach()
    x = cast(x, dtypes.uint8) if x.dtype is dtypes.bool_ else x
    best = apply(OPS[name], (x,), {"axis": axis})
    hit = x == best
    if x.is_floating_point():
        hit = hit | (x.isnan() & best.isnan())
    place = positions(x.shape[axis], x).reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    places = apply(OPS["where"], (hit, place, constant(0, dtypes.int64)), {})
    indices = apply(OPS["cummax"], (places,), {"axis": axis})
    return TYPES[name](input.gather(axis, indices), indices)


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Summed over the dims that a tensor of this size would be broadcast along."""
    wanted = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    lead = input.ndim - len(wanted)
    fits = lead >= 0 and all(
        d in (1, n) for d, n in zip(wanted, input._type.shape[max(lead, 0) :], strict=True)
    )
    if not fits:
        raise RuntimeError(
            f"size {{{list(wanted)}}} is not expandable to size {{{list(input.shape)}}}."
        )
    axes = [
        k for k, n in enumerate(input._type.shape) if k < lead or (wanted[k - lead] == 1 and n != 1)
    ]
    if not axes and wanted:
        return input
    return input.sum(axes, True).reshape(wanted)
