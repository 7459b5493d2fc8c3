"""Distribution: the base class. Shapes, checks of arguments, and what follows from `rsample`.

Owns also what distributions share: `broadcast_all`, `derived`, logits and probabilities.
Parameters and samples are checked by ops (`expect_range` on a constraint's bools), so a bad one
raises ValueError from eager and from compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from jitgrad.autograd import engine
from jitgrad.autograd.modes import no_grad
from jitgrad.creation import full, rand, randn
from jitgrad.distributions import constraints
from jitgrad.functions.args import expect_range
from jitgrad.functions.shape import broadcast_tensors
from jitgrad.info import finfo
from jitgrad.nn.functional.activations import logsigmoid
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.state import get_default_dtype
from jitgrad.tensor import Size, Tensor

EULER = 0.57721566490153286060


class derived:
    """A property that an instance may have as an attribute of its own: what is given counts."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        return self if owner is None else self.function(owner)


class Distribution:
    """A distribution over events of `event_shape`, `batch_shape` of them with parameters of their
    own. Samples have the shape sample_shape + batch_shape + event_shape.

    Raises ValueError for a parameter that breaks its constraint (validate_args=False: not checked).
    """

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    _validate_args = __debug__

    def __init__(
        self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None
    ) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, constraint in self.arg_constraints.items():
                if name in vars(self) and not constraints.is_dependent(constraint):
                    self._expect(constraint, getattr(self, name), f"parameter {name}")

    def _expect(self, constraint: constraints.Constraint, value: Tensor, what: str) -> None:
        good = constraint.check(value.detach())
        text = (
            f"Expected {what} ({type(value).__name__} of shape {tuple(value.shape)}) of "
            f"distribution {type(self).__name__} to satisfy the constraint {constraint!r}, but "
            "found invalid values"
        )
        expect_range(good.to(dtypes.int64), 1, 1, ValueError, text)

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check their arguments, if they are not told."""
        if value not in (True, False):
            raise ValueError(f"[set_default_validate_args] expected a bool; got {value!r}")
        Distribution._validate_args = value

    # -- shapes --------------------------------------------------------------------------------
    @property
    def batch_shape(self) -> Size:
        """The shape of the parameters."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one event."""
        return self._event_shape

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """The same distribution with its parameters expanded to batch_shape."""
        given = {}
        for name, constraint in self.arg_constraints.items():
            if name in vars(self):
                value = getattr(self, name)
                own = value.shape[value.ndim - constraint.event_dim :]
                given[name] = value.expand((*batch_shape, *own))
        return type(self)(**given, **self._options(), validate_args=False)

    def _options(self) -> dict[str, Any]:
        """Arguments of the constructor that are no parameters."""
        return {}

    # -- samples -------------------------------------------------------------------------------
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Random events, off the tape."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Random events that are differentiable with respect to the parameters.

        Raises NotImplementedError where `has_rsample` is False.
        """
        raise NotImplementedError(
            f"[{type(self).__name__}.rsample] its samples are not differentiable (has_rsample is "
            "False); use sample(), and log_prob in the loss"
        )

    def sample_n(self, n: int) -> Tensor:
        """sample((n,))."""
        return self.sample((n,))

    # -- what subclasses say -------------------------------------------------------------------
    def _absent(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"[{type(self).__name__}] has no {what}")

    @property
    def mean(self) -> Any:
        """The mean."""
        raise self._absent("mean")

    @property
    def mode(self) -> Any:
        """The mode."""
        raise self._absent("mode")

    @property
    def variance(self) -> Any:
        """The variance."""
        raise self._absent("variance")

    @property
    def stddev(self) -> Any:
        """The standard deviation."""
        return self.variance.sqrt()

    @property
    def support(self) -> Any:
        """The set of the events."""
        raise self._absent("support")

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density (or probability) of events: sample_shape + batch_shape."""
        raise self._absent("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of an event of at most value."""
        raise self._absent("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of cdf."""
        raise self._absent("icdf")

    def entropy(self) -> Tensor:
        """The entropy, of batch_shape."""
        raise self._absent("entropy")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All events of a finite support, along a new first dim."""
        raise self._absent("enumerate_support")

    def perplexity(self) -> Tensor:
        """exp(entropy)."""
        return self.entropy().exp()

    # -- checks --------------------------------------------------------------------------------
    def _validate_sample(self, value: Tensor) -> None:
        """Raises ValueError where value can be no events of this distribution."""
        if not self._validate_args:
            return
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        start = value.ndim - len(self._event_shape)
        if tuple(value.shape[max(start, 0) :]) != tuple(self._event_shape) or start < 0:
            raise ValueError(
                f"The right-most size of value must match event_shape: {tuple(value.shape)} vs "
                f"{tuple(self._event_shape)}."
            )
        expected = self._extended_shape()
        for i, j in zip(reversed(value.shape), reversed(expected), strict=False):
            if i != 1 and j != 1 and i != j:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: "
                    f"{tuple(value.shape)} vs {tuple(expected)}."
                )
        self._expect(self.support, value, "value argument")

    def __repr__(self) -> str:
        given = {name: vars(self)[name] for name in self.arg_constraints if name in vars(self)}
        shown = [f"{n}: {v if v.numel() == 1 else v.shape}" for n, v in given.items()]
        return f"{type(self).__name__}({', '.join(shown)})"


# -- helpers ---------------------------------------------------------------------------------------
def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors and numbers as tensors of one shape; numbers take the dtype of the tensors.

    Raises ValueError for what is neither.
    """
    found = [v for v in values if isinstance(v, Tensor)]
    if not all(isinstance(v, Tensor) or _is_number(v) for v in values):
        kinds = ", ".join(type(v).__name__ for v in values)
        raise ValueError(
            f"Input arguments must all be instances of Number or torch.Tensor; got {kinds}"
        )
    dtype = found[0].dtype if found else get_default_dtype()
    made = [v if isinstance(v, Tensor) else _constant(v, dtype) for v in values]
    return tuple(broadcast_tensors(*made))


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) or hasattr(x, "__float__")


def _constant(x: Any, dtype: DType) -> Tensor:
    return full((), 0.0, dtype=dtype) + x


def standard_normal(shape: Any, like: Tensor) -> Tensor:
    """Normal numbers of like's dtype."""
    return randn(tuple(shape), dtype=like.dtype)


def uniform(shape: Any, like: Tensor) -> Tensor:
    """Uniform numbers in (0, 1), neither end included, of like's dtype."""
    info = finfo(like.dtype)
    return rand(tuple(shape), dtype=like.dtype).clamp(info.tiny, 1 - info.eps / 2)


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities away from 0 and 1 by the dtype's eps."""
    eps = finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """log(p), or log(p / (1 - p)) of two outcomes."""
    ps = clamp_probs(probs)
    return ps.log() - (-ps).log1p() if is_binary else ps.log()


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """softmax along the last dim, or sigmoid."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow; its derivative is sigmoid(x), at 0, too."""
    return -logsigmoid(-x)


def sum_rightmost(value: Tensor, count: int) -> Tensor:
    """The sum over the last `count` dims."""
    return value if not count else value.sum(tuple(range(-count, 0)))


def one_of(name: str, **given: Any) -> None:
    """Raises ValueError unless exactly one argument is given."""
    if sum(v is not None for v in given.values()) != 1:
        names = " or ".join(f"`{k}`" for k in given)
        raise ValueError(f"Either {names} must be specified, but not both. (in {name})")


class ExponentialFamily(Distribution):
    """Distributions exp(theta . t(x) - F(theta)) h(x). A subclass that gives `_natural_params`
    (theta), `_log_normalizer` (F) and `_mean_carrier_measure` (the mean of log h) has an entropy:
    F - theta . grad F - the mean of log h (Nielsen and Nock 2010)."""

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise NotImplementedError(f"[{type(self).__name__}] defines no _natural_params")

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        raise NotImplementedError(f"[{type(self).__name__}] defines no _log_normalizer")

    @property
    def _mean_carrier_measure(self) -> Any:
        raise NotImplementedError(f"[{type(self).__name__}] defines no _mean_carrier_measure")

    def entropy(self) -> Tensor:
        """The entropy, of the batch shape."""
        carrier = self._mean_carrier_measure
        params = [p.detach().requires_grad_() for p in self._natural_params]
        normalizer = self._log_normalizer(*params)
        slopes = engine.grad(normalizer.sum(), params, create_graph=True)
        result = normalizer - carrier
        for theta, slope in zip(params, slopes, strict=True):
            assert slope is not None
            result = result - (theta * slope).reshape((*self._batch_shape, -1)).sum(-1)
        return result


LOG_2PI = math.log(2 * math.pi)
