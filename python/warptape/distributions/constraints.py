"""Which values a parameter or a sample may have.

`constraint.check(value)` tells for each event whether it holds; `event_dim` is the number of rightmost dims
that make up one event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import warptape


class Constraint:
    """Base of all constraints."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Any) -> Any:
        """A bool tensor of `value`'s shape without the event's dims."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return type(self).__name__.strip("_") + "()"


class _Dependent(Constraint):
    """A constraint that other parameters decide; nothing is checked."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def check(self, value: Any) -> Any:
        raise ValueError("Cannot determine validity of dependent constraint")

    def __call__(self, *, is_discrete: bool = False, event_dim: int = 0) -> _Dependent:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)


class dependent_property(property, _Dependent):
    """A property that gives the constraint, and on the class stands for one that depends."""

    def __init__(
        self, fn: Callable[..., Any] | None = None, *, is_discrete: bool = False, event_dim: int = 0
    ) -> None:
        super().__init__(fn)
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, fn: Callable[..., Any]) -> dependent_property:  # type: ignore[override]
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


class _Condition(Constraint):
    """A condition on each element by itself, or on each vector or matrix."""

    def __init__(
        self, name: str, condition: Callable[[Any], Any], is_discrete: bool = False, event_dim: int = 0
    ) -> None:
        self.name, self.condition = name, condition
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def check(self, value: Any) -> Any:
        return self.condition(value)

    def __repr__(self) -> str:
        return self.name


class independent(Constraint):
    """Another constraint; the `reinterpreted_batch_ndims` rightmost batch dims belong to the event."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Any) -> Any:
        found = self.base_constraint.check(value)
        if found.dim() < self.reinterpreted_batch_ndims:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        return found.flatten(found.dim() - self.reinterpreted_batch_ndims).all(-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class _Bounded(Constraint):
    """One with bounds, which its repr tells: GreaterThanEq(lower_bound=0)."""

    def __repr__(self) -> str:
        name = "".join(part.capitalize() for part in type(self).__name__.split("_"))
        return f"{name}({', '.join(f'{bound}={value}' for bound, value in vars(self).items())})"


class greater_than(_Bounded):
    """lower_bound < x."""

    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Any) -> Any:
        return self.lower_bound < value


class greater_than_eq(greater_than):
    """lower_bound <= x."""

    def check(self, value: Any) -> Any:
        return self.lower_bound <= value


class less_than(_Bounded):
    """x < upper_bound."""

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Any) -> Any:
        return value < self.upper_bound


class interval(_Bounded):
    """lower_bound <= x <= upper_bound."""

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Any) -> Any:
        return (self.lower_bound <= value) & (value <= self.upper_bound)


class half_open_interval(interval):
    """lower_bound <= x < upper_bound."""

    def check(self, value: Any) -> Any:
        return (self.lower_bound <= value) & (value < self.upper_bound)


class integer_interval(interval):
    """Whole numbers from lower_bound to upper_bound."""

    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & super().check(value)


class multinomial(Constraint):
    """Counts that add up to at most upper_bound."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


def _lower(value: Any) -> Any:
    return (value.tril() == value).flatten(-2).all(-1)


def _is_simplex(value: Any) -> Any:
    return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


def _is_positive_definite(value: Any) -> Any:
    symmetric = warptape.isclose(value, value.mT, atol=1e-6).flatten(-2).all(-1)
    return symmetric & (warptape.linalg.cholesky_ex(value).info == 0)


def is_dependent(constraint: Constraint) -> bool:
    """Whether other parameters decide what the constraint is."""
    return isinstance(constraint, _Dependent)


dependent = _Dependent()
boolean = _Condition("Boolean()", lambda x: (x == 0) | (x == 1), is_discrete=True)
one_hot = _Condition(
    "OneHot()", lambda x: ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1), is_discrete=True, event_dim=1
)
nonnegative_integer = _Condition(
    "IntegerGreaterThan(lower_bound=0)", lambda x: (x % 1 == 0) & (x >= 0), is_discrete=True
)
positive_integer = _Condition(
    "IntegerGreaterThan(lower_bound=1)", lambda x: (x % 1 == 0) & (x >= 1), is_discrete=True
)
real = _Condition("Real()", lambda x: x == x)  # not nan
real_vector = independent(real, 1)
positive = greater_than(0.0)
nonnegative = greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
simplex = _Condition("Simplex()", _is_simplex, event_dim=1)
lower_triangular = _Condition("LowerTriangular()", _lower, event_dim=2)
lower_cholesky = _Condition(
    "LowerCholesky()", lambda x: _lower(x) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1), event_dim=2
)
positive_definite = _Condition("PositiveDefinite()", _is_positive_definite, event_dim=2)
