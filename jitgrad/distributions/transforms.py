"""Invertible functions of tensors, with the logarithm of their Jacobian's determinant: elementwise
ones, of vectors, and how they are put together. Those that make matrices: matrix_transforms.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from jitgrad.creation import arange, full_like
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import softplus, sum_rightmost
from jitgrad.functions.shape import broadcast_shapes_of, pad_constant
from jitgrad.info import finfo
from jitgrad.methods import FUNCTIONS
from jitgrad.missing import missing
from jitgrad.tensor import Tensor


class Transform:
    """y = t(x), x = t.inv(y).

    Subclasses define `_call`, `_inverse` and `log_abs_det_jacobian(x, y)`, log |dy/dx|. With
    cache_size=1 the inverse of the last result is the argument itself.
    """

    bijective = True
    domain: constraints.Constraint = constraints.real
    codomain: constraints.Constraint = constraints.real
    sign: Any = 1

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError(f"cache_size must be 0 or 1; got {cache_size}")
        self._cache_size = cache_size
        self._last: tuple[Any, Any] = (None, None)

    @property
    def event_dim(self) -> int:
        """How many of the last dims belong to one argument. Raises ValueError where it is another
        number for results."""
        if self.domain.event_dim != self.codomain.event_dim:
            raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")
        return self.domain.event_dim

    @property
    def inv(self) -> Transform:
        """The inverse."""
        return _Inverse(self)

    def __call__(self, x: Tensor) -> Tensor:
        if self._cache_size == 0:
            return self._call(x)
        if x is self._last[0]:
            return self._last[1]
        y = self._call(x)
        self._last = x, y
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        if self._cache_size == 0:
            return self._inverse(y)
        if y is self._last[1]:
            return self._last[0]
        x = self._inverse(y)
        self._last = x, y
        return x

    def with_cache(self, cache_size: int = 1) -> Transform:
        """This transform with a cache of that size."""
        if self._cache_size == cache_size:
            return self
        made = copy.copy(self)
        Transform.__init__(made, cache_size)
        return made

    def forward_shape(self, shape: Any) -> Any:
        """The shape of t(x), for x of a shape."""
        return tuple(shape)

    def inverse_shape(self, shape: Any) -> Any:
        """The shape of t.inv(y), for y of a shape."""
        return tuple(shape)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"[{type(self).__name__}] a transform defines _call")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"[{type(self).__name__}] a transform defines _inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |dy/dx|, a number for each argument."""
        raise NotImplementedError(
            f"[{type(self).__name__}] a transform defines log_abs_det_jacobian"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, forward: Transform) -> None:
        super().__init__()
        self._forward = forward
        self.domain, self.codomain = forward.codomain, forward.domain
        self.sign, self.bijective = forward.sign, forward.bijective

    def __repr__(self) -> str:
        return f"_InverseTransform({self._forward!r})"

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._forward.with_cache(cache_size).inv

    def forward_shape(self, shape: Any) -> Any:
        return self._forward.inverse_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self._forward.forward_shape(shape)

    @property
    def inv(self) -> Transform:
        return self._forward

    def _call(self, x: Tensor) -> Tensor:
        return self._forward._inv_call(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._forward(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._forward.log_abs_det_jacobian(y, x)


class ComposeTransform(Transform):
    """The transforms one after the other."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        if self.parts:
            first, last = self.parts[0].domain, self.parts[-1].codomain
            dims = last.event_dim
            for part in reversed(self.parts):
                dims = max(dims - _more_dims(part), part.domain.event_dim)
            self.domain = _of_dims(first, dims)
            for part in self.parts:
                dims += _more_dims(part)
            self.codomain = _of_dims(last, dims)
        self.sign = math.prod(p.sign for p in self.parts) if self.parts else 1
        self.bijective = all(p.bijective for p in self.parts)

    def __repr__(self) -> str:
        return "ComposeTransform(\n    " + ",\n    ".join(map(repr, self.parts)) + "\n)"

    def forward_shape(self, shape: Any) -> Any:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Any) -> Any:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return full_like(x, 0.0)
        total: Any = 0.0
        dims = self.domain.event_dim
        for part in self.parts:
            after = part(x)
            term = part.log_abs_det_jacobian(x, after)
            total = total + sum_rightmost(term, dims - part.domain.event_dim)
            dims += _more_dims(part)
            x = after
        return total


def _more_dims(transform: Transform) -> int:
    return transform.codomain.event_dim - transform.domain.event_dim


def _of_dims(constraint: constraints.Constraint, dims: int) -> constraints.Constraint:
    more = dims - constraint.event_dim
    return constraints.independent(constraint, more) if more > 0 else constraint


class IndependentTransform(Transform):
    """A transform that takes the last `reinterpreted_batch_ndims` dims as one argument."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.bijective, self.sign = base_transform.bijective, base_transform.sign
        count = reinterpreted_batch_ndims
        self.domain = constraints.independent(base_transform.domain, count)
        self.codomain = constraints.independent(base_transform.codomain, count)

    def forward_shape(self, shape: Any) -> Any:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self.base_transform.inverse_shape(shape)

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform._inv_call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_rightmost(found, self.reinterpreted_batch_ndims)


def _broadcast(shape: Any, *values: Any) -> Any:
    """The shape of what is computed of a tensor of a shape and these tensors or numbers."""
    return tuple(broadcast_shapes_of(shape, *(getattr(v, "shape", ()) for v in values)))


class ExpTransform(Transform):
    """exp(x)."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """x**exponent, of positive x."""

    domain = codomain = constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    def forward_shape(self, shape: Any) -> Any:
        return _broadcast(shape, self.exponent)

    inverse_shape = forward_shape

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()


class SigmoidTransform(Transform):
    """sigmoid(x)."""

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        info = finfo(x.dtype)
        return x.sigmoid().clamp(info.tiny, 1.0 - info.eps)

    def _inverse(self, y: Tensor) -> Tensor:
        info = finfo(y.dtype)
        y = y.clamp(info.tiny, 1.0 - info.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class SoftplusTransform(Transform):
    """log(1 + exp(x))."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


class TanhTransform(Transform):
    """tanh(x). Use cache_size=1: atanh of a y that was rounded to 1 is infinite."""

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # log(1 - tanh(x)**2), without cancellation
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class AffineTransform(Transform):
    """loc + scale * x."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale = loc, scale
        self.domain = self.codomain = _of_dims(constraints.real, event_dim)
        if isinstance(scale, Tensor):
            self.sign = scale.sign()
        else:
            self.sign = 1 if scale > 0 else -1 if scale < 0 else 0

    def forward_shape(self, shape: Any) -> Any:
        return _broadcast(shape, self.loc, self.scale)

    inverse_shape = forward_shape

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.scale, Tensor):
            found = self.scale.abs().log()
            shape = FUNCTIONS["mul"](x, self.scale).shape
            found = found.expand(shape)
        else:
            found = full_like(x, math.log(abs(self.scale)))
        if self.event_dim:
            found = found.sum(tuple(range(-self.event_dim, 0)))
        return found


class AbsTransform(Transform):
    """|x|. Not bijective: its inverse is the identity."""

    bijective = False
    codomain = constraints.nonnegative

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class SoftmaxTransform(Transform):
    """softmax along the last dim; inverse log. Not bijective."""

    bijective = False
    domain: constraints.Constraint = constraints.real_vector
    codomain: constraints.Constraint = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(Transform):
    """Vectors (..., n) to points of the simplex (..., n + 1): each takes the share sigmoid(x_k -
    log(n - k)) of what is left, k = 0, 1, ...; x = 0 gives equal parts."""

    domain: constraints.Constraint = constraints.real_vector
    codomain: constraints.Constraint = constraints.simplex

    def forward_shape(self, shape: Any) -> Any:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Any) -> Any:
        return (*shape[:-1], shape[-1] - 1)

    def _offset(self, x: Tensor, count: Any) -> Tensor:
        return arange(count, 0, -1, dtype=x.dtype).log()

    def _call(self, x: Tensor) -> Tensor:
        n = x.shape[-1]
        shares = (x - self._offset(x, n)).sigmoid()
        left = (1 - shares).cumprod(-1)
        return pad_constant(shares, (0, 1), value=1.0) * pad_constant(left, (1, 0), value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        head = y[..., :-1]
        left = (1 - head.cumsum(-1)).clamp(min=finfo(y.dtype).tiny)
        return head.log() - left.log() + self._offset(y, y.shape[-1] - 1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        x = x - self._offset(x, x.shape[-1])
        return (-x - softplus(-x) + y[..., :-1].log()).sum(-1)


identity_transform = ComposeTransform([])

__getattr__ = missing(__name__)
