"""Constraints: what elements of parameters and samples must be.

A constraint's `check(value)` is a tensor of bools, one for each event (its last `event_dim` dims).
It is made of ops, so that distributions check their arguments inside compiled functions, too.
"""

from __future__ import annotations

from typing import Any

from jitgrad import linalg
from jitgrad.info import finfo
from jitgrad.missing import missing
from jitgrad.tensor import Tensor


class Constraint:
    """A set of values.

    Attributes: is_discrete; event_dim, how many of the last dims belong to one value.
    """

    is_discrete = False
    event_dim = 0

    def check(self, value: Tensor) -> Tensor:
        """For each event in value, whether it is in the set."""
        raise NotImplementedError(f"[{type(self).__name__}] a constraint defines check(value)")

    def __repr__(self) -> str:
        return type(self).__name__.strip("_").title().replace("_", "") + "()"


class _Dependent(Constraint):
    """A set that depends on other values: not checked."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, *, is_discrete: bool = False, event_dim: int = 0) -> _Dependent:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    is_discrete, event_dim = True, 1

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class Bounded(Constraint):
    """low <= x <= high, either end open or absent; whole numbers only where discrete."""

    def __init__(
        self, name: str, low: Any = None, high: Any = None, *, open_low: bool = False,
        open_high: bool = False, whole: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.is_discrete = name, whole
        self.lower_bound, self.upper_bound = low, high
        self.open_low, self.open_high = open_low, open_high

    def check(self, value: Tensor) -> Tensor:
        low, high = self.lower_bound, self.upper_bound
        good = value == value
        if self.is_discrete:
            good = good & (value % 1 == 0)
        if low is not None:
            good = good & ((value > low) if self.open_low else (value >= low))
        if high is not None:
            good = good & ((value < high) if self.open_high else (value <= high))
        return good

    def __repr__(self) -> str:
        bounds = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        shown = [
            f"{k}={v if not isinstance(v, Tensor) else 'a tensor'}"
            for k, v in bounds.items()
            if v is not None
        ]
        return f"{self.name}({', '.join(shown)})"


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _LowerCholesky(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        lower = (value.tril() == value).flatten(-2).all(-1)
        return lower & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _CorrCholesky(Constraint):
    """Lower Cholesky factors of correlation matrices: their rows have length 1."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        tolerance = finfo(value.dtype).eps * value.shape[-1] * 10
        unit = ((value * value).sum(-1) - 1).abs().lt(tolerance).all(-1)
        return unit & lower_cholesky.check(value)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return (value.tril() == value).flatten(-2).all(-1)


class _PositiveDefinite(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        symmetric = value.isclose(value.mT, atol=1e-6).flatten(-2).all(-1)
        return symmetric & (linalg.cholesky_ex(value).info == 0)


class Independent(Constraint):
    """All of the last dims of a set's values."""

    def __init__(self, base: Constraint, count: int) -> None:
        self.base_constraint, self.reinterpreted_batch_ndims = base, count
        self.is_discrete, self.event_dim = base.is_discrete, base.event_dim + count

    def check(self, value: Tensor) -> Tensor:
        good = self.base_constraint.check(value)
        count = self.reinterpreted_batch_ndims
        return good if not count else good.flatten(-count).all(-1)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


def integer_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Whole numbers from lower_bound to upper_bound."""
    return Bounded("IntegerInterval", lower_bound, upper_bound, whole=True)


def greater_than(lower_bound: Any) -> Constraint:
    """x > lower_bound."""
    return Bounded("GreaterThan", lower_bound, open_low=True)


def greater_than_eq(lower_bound: Any) -> Constraint:
    """x >= lower_bound."""
    return Bounded("GreaterThanEq", lower_bound)


def less_than(upper_bound: Any) -> Constraint:
    """x < upper_bound."""
    return Bounded("LessThan", None, upper_bound, open_high=True)


def interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """lower_bound <= x <= upper_bound."""
    return Bounded("Interval", lower_bound, upper_bound)


def half_open_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """lower_bound <= x < upper_bound."""
    return Bounded("HalfOpenInterval", lower_bound, upper_bound, open_high=True)


def independent(base: Constraint, reinterpreted_batch_ndims: int) -> Constraint:
    """Arrays of base's values, as one value."""
    return Independent(base, reinterpreted_batch_ndims)


def is_dependent(constraint: Constraint) -> bool:
    """Whether the set depends on other values."""
    return isinstance(constraint, _Dependent)


dependent = _Dependent()
boolean = _Boolean()
one_hot = _OneHot()
real = Bounded("Real")
positive = greater_than(0.0)
nonnegative = greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
nonnegative_integer = Bounded("IntegerGreaterThan", 0, whole=True)
positive_integer = Bounded("IntegerGreaterThan", 1, whole=True)
simplex = _Simplex()
lower_cholesky = _LowerCholesky()
lower_triangular = _LowerTriangular()
corr_cholesky = _CorrCholesky()
positive_definite = _PositiveDefinite()
real_vector = independent(real, 1)
nonnegative_vector = independent(nonnegative, 1)

__getattr__ = missing(__name__)
