"""Maps from unconstrained values to those of a constraint, by the constraint's class.

`biject_to(constraint)` is a bijection; `transform_to(constraint)` may map several values to one and is the
better start for optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import constraints as c
from . import transforms as t

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]


class ConstraintRegistry:
    """Factories of transforms, by classes of constraints.

    `biject_to` and `transform_to` are two.
    """

    def __init__(self) -> None:
        self._registry: dict[type, Callable[[Any], Any]] = {}

    def register(self, constraint: Any, factory: Callable[[Any], Any] | None = None) -> Any:
        """Registers what makes a transform of a constraint of this class; a decorator without `factory`.

        Raises:
            TypeError: neither a constraint nor a class of constraints.
        """
        if factory is None:
            return lambda factory: self.register(constraint, factory)
        kind = type(constraint) if isinstance(constraint, c.Constraint) else constraint
        if not isinstance(kind, type) or not issubclass(kind, c.Constraint):
            raise TypeError(
                f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}"
            )
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: Any) -> Any:
        """A transform to the constraint. NotImplementedError for a class without one.

        Args:
            constraint: of a class that is registered.
        """
        if type(constraint) not in self._registry:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return self._registry[type(constraint)](constraint)


biject_to = ConstraintRegistry()
transform_to = ConstraintRegistry()


def _both(*kinds: Any) -> Callable[[Any], Any]:
    def register(factory: Callable[[Any], Any]) -> Any:
        for kind in kinds:
            biject_to.register(kind, factory)
            transform_to.register(kind, factory)
        return factory

    return register


def _is(bound: object, value: float) -> bool:
    return isinstance(bound, (int, float)) and bound == value


@_both(c.greater_than, c.greater_than_eq)
def _above(constraint: c.greater_than) -> Any:
    return t.ComposeTransform([t.ExpTransform(), t.AffineTransform(constraint.lower_bound, 1)])


@_both(c.less_than)
def _below(constraint: c.less_than) -> Any:
    return t.ComposeTransform([t.ExpTransform(), t.AffineTransform(constraint.upper_bound, -1)])


@_both(c.interval, c.half_open_interval)
def _between(constraint: c.interval) -> Any:
    low, high = constraint.lower_bound, constraint.upper_bound
    if _is(low, 0) and _is(high, 1):
        return t.SigmoidTransform()
    return t.ComposeTransform([t.SigmoidTransform(), t.AffineTransform(low, high - low)])


_both(c.real)(lambda constraint: t.identity_transform)
_both(c.corr_cholesky)(lambda constraint: t.CorrCholeskyTransform())
transform_to.register(c.lower_cholesky, lambda constraint: t.LowerCholeskyTransform())
transform_to.register(c.positive_definite, lambda constraint: t.PositiveDefiniteTransform())
transform_to.register(c.positive_semidefinite, lambda constraint: t.PositiveDefiniteTransform())
biject_to.register(c.simplex, lambda constraint: t.StickBreakingTransform())
transform_to.register(c.simplex, lambda constraint: t.SoftmaxTransform())


def _of_parts(registry: ConstraintRegistry) -> None:
    def independent(constraint: c.independent) -> Any:
        inner = registry(constraint.base_constraint)
        return t.IndependentTransform(inner, constraint.reinterpreted_batch_ndims)

    def cat(constraint: c.cat) -> Any:
        return t.CatTransform(
            [registry(part) for part in constraint.cseq], constraint.dim, constraint.lengths
        )

    def stack(constraint: c.stack) -> Any:
        return t.StackTransform([registry(part) for part in constraint.cseq], constraint.dim)

    registry.register(c.independent, independent)
    registry.register(c.cat, cat)
    registry.register(c.stack, stack)


_of_parts(biject_to)
_of_parts(transform_to)
