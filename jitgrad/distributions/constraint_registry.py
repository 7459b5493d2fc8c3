"""biject_to and transform_to: the transform from unconstrained numbers to a constraint's set.

Both are registries: `biject_to(constraint)` gives a bijection, `transform_to(constraint)` whatever
is best for optimizers. `register(kind)` adds a rule for a class of constraints (or an instance of
it), which is then asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.distributions import constraints
from jitgrad.distributions.constraints import Constraint
from jitgrad.distributions.matrix_transforms import (
    CorrCholeskyTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
)
from jitgrad.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    SigmoidTransform,
    SoftmaxTransform,
    StickBreakingTransform,
    Transform,
    identity_transform,
)
from jitgrad.missing import missing

Rule = Callable[[Any], Transform]


class ConstraintRegistry:
    """Rules that give a transform for a constraint."""

    def __init__(
        self, built_in: Callable[[ConstraintRegistry, Constraint], Transform | None]
    ) -> None:
        self._built_in = built_in
        self._rules: dict[type, Rule] = {}

    def register(self, constraint: Any, factory: Rule | None = None) -> Any:
        """Adds factory(constraint) -> Transform for a class of constraints; a decorator without a
        factory. Raises TypeError for what is no constraint."""
        if factory is None:
            return lambda f: self.register(constraint, f)
        kind = type(constraint) if isinstance(constraint, Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, Constraint)):
            raise TypeError(
                f"Expected constraint to be a Constraint subclass or instance, but got {kind}"
            )
        self._rules[kind] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        """The transform. Raises NotImplementedError where there is no rule."""
        rule = self._rules.get(type(constraint))
        found = rule(constraint) if rule is not None else self._built_in(self, constraint)
        if found is None:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return found


_MATRICES: dict[Constraint, type[Transform]] = {
    constraints.lower_cholesky: LowerCholeskyTransform,
    constraints.positive_definite: PositiveDefiniteTransform,
}


def _common(registry: ConstraintRegistry, constraint: Constraint) -> Transform | None:
    if isinstance(constraint, constraints.Independent):
        base, count = constraint.base_constraint, constraint.reinterpreted_batch_ndims
        return IndependentTransform(registry(base), count)
    if isinstance(constraint, constraints.Bounded):
        return None if constraint.is_discrete else _to_bounds(constraint)
    return CorrCholeskyTransform() if constraint is constraints.corr_cholesky else None


def _to_bounds(constraint: constraints.Bounded) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if low is None and high is None:
        return identity_transform
    first = ExpTransform() if low is None or high is None else SigmoidTransform()
    if high is None:
        if isinstance(low, (int, float)) and low == 0:
            return first
        return ComposeTransform([first, AffineTransform(low, 1)])
    if low is None:
        return ComposeTransform([first, AffineTransform(high, -1)])
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and (low, high) == (0, 1):
        return first
    return ComposeTransform([first, AffineTransform(low, high - low)])


def _bijection(registry: ConstraintRegistry, constraint: Constraint) -> Transform | None:
    if constraint is constraints.simplex:
        return StickBreakingTransform()
    return _common(registry, constraint)


def _for_optimizers(registry: ConstraintRegistry, constraint: Constraint) -> Transform | None:
    if constraint is constraints.simplex:
        return SoftmaxTransform()
    if constraint in _MATRICES:
        return _MATRICES[constraint]()
    return _common(registry, constraint)


biject_to = ConstraintRegistry(_bijection)
transform_to = ConstraintRegistry(_for_optimizers)

__getattr__ = missing(__name__)
