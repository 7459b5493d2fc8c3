"""Constraints: what elements of parameters and samples must be.

A constraint's `check(value)` is a tensor of bools, one for each event (its last `event_dim` dims).
It is made of ops, so that distributions check their arguments inside compiled functions, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad import linalg
from jitgrad.creation import full
from jitgrad.functions.shape import cat as concatenated
from jitgrad.functions.shape import stack as stacked
from jitgrad.info import finfo
from jitgrad.missing import missing
from jitgrad.runtime import dtypes
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


class dependent_property(property, _Dependent):
    """A property that, read from its class, is a constraint that depends on other values:
    `@dependent_property(is_discrete=False, event_dim=0)` over `def support(self): ...`."""

    def __init__(
        self, fn: Any = None, *, is_discrete: bool = False, event_dim: int = 0
    ) -> None:  # fmt: skip
        property.__init__(self, fn)
        _Dependent.__init__(self, is_discrete=is_discrete, event_dim=event_dim)

    def __call__(self, fn: Any) -> dependent_property:  # type: ignore[override]
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


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


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        square = value.shape[-2] == value.shape[-1]
        return full(tuple(value.shape[:-2]), square, dtype=dtypes.bool_)


class _Symmetric(_Square):
    def check(self, value: Tensor) -> Tensor:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return value.isclose(value.mT, atol=1e-6).flatten(-2).all(-1)


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return super().check(value) & (linalg.eigvalsh(value) >= 0).all(-1)


class _PositiveDefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return super().check(value) & (linalg.cholesky_ex(value).info == 0)


class _Multinomial(Constraint):
    """Counts of a sum of at most the upper bound."""

    is_discrete, event_dim = True, 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class MixtureSameFamilyConstraint(Constraint):
    """The values of a mixture, each of which is one of all of its components' (base_constraint)."""

    def __init__(self, base_constraint: Constraint) -> None:
        if not isinstance(base_constraint, Constraint):
            raise AssertionError(
                f"base_constraint must be a Constraint, got {type(base_constraint).__name__}"
            )
        self.base_constraint = base_constraint
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim

    def check(self, value: Tensor) -> Tensor:
        if value.dim() < self.event_dim:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        good = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        batch = value.dim() - self.event_dim
        return good.reshape((*good.shape[:batch], -1)).all(-1)

    def __repr__(self) -> str:
        return f"MixtureSameFamilyConstraint({self.base_constraint!r})"


class _Parts(Constraint):
    """Values in parts along a dim, each part with a constraint of its own."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        if not all(isinstance(c, Constraint) for c in cseq):
            raise AssertionError("All elements of cseq must be Constraint instances")
        self.cseq, self.dim = list(cseq), dim
        self.is_discrete = any(c.is_discrete for c in self.cseq)
        self.event_dim = max((c.event_dim for c in self.cseq), default=0)


class _Cat(_Parts):
    """Parts of the lengths given (1 by default), one after another."""

    def __init__(
        self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.cseq):
            raise AssertionError(
                f"lengths must have {len(self.cseq)} elements, got {len(self.lengths)}"
            )

    def check(self, value: Tensor) -> Tensor:
        parts = value.split(self.lengths, self.dim)
        return concatenated([c.check(v) for c, v in zip(self.cseq, parts, strict=True)], self.dim)


class _Stack(_Parts):
    """One part for each index of the dim."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        super().__init__(cseq, dim)
        self.event_dim += self.dim + self.event_dim < 0

    def check(self, value: Tensor) -> Tensor:
        parts = value.unbind(self.dim)
        return stacked([c.check(v) for c, v in zip(self.cseq, parts, strict=True)], self.dim)


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


def independent(base_constraint: Constraint, reinterpreted_batch_ndims: int) -> Constraint:
    """Arrays of a constraint's values, as one value."""
    return Independent(base_constraint, reinterpreted_batch_ndims)


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
square = _Square()
symmetric = _Symmetric()
positive_semidefinite = _PositiveSemidefinite()
positive_definite = _PositiveDefinite()
multinomial = _Multinomial
cat, stack = _Cat, _Stack
real_vector = independent(real, 1)
nonnegative_vector = independent(nonnegative, 1)

__getattr__ = missing(__name__)
