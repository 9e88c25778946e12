"""Which values a parameter or a sample may have.

`constraint.check(value)` tells for each event whether it holds; `event_dim` is the number of rightmost dims
that make up one event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from warptape import core as wt
from warptape.core.namespaces import linalg


class Constraint:
    """Base of all constraints.

    Args:
        is_discrete: whether its values are.
        event_dim: rightmost dims that are judged together.
    """

    is_discrete: Any = False
    event_dim: Any = 0

    def check(self, value: wt.Tensor) -> Any:
        """A bool tensor of `value`'s shape without the event's dims.

        Args:
            value: of any batch shape.

        >>> torch.distributions.constraints.positive.check(torch.tensor([-1.0, 2.0]))
        tensor([False,  True])
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        name = type(self).__name__.strip("_")
        return name[:1].upper() + name[1:] + "()"


class _Dependent(Constraint):
    """A constraint that other parameters decide; nothing is checked."""

    def __init__(self, *, is_discrete: bool | None = None, event_dim: int | None = None) -> None:
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def _known(self, name: str) -> Any:
        fact = getattr(self, f"_{name}")
        if fact is None:
            raise NotImplementedError(f".{name} cannot be determined statically")
        return fact

    is_discrete = property(lambda self: self._known("is_discrete"), doc="NotImplementedError where open.")
    event_dim = property(lambda self: self._known("event_dim"), doc="NotImplementedError where open.")

    def check(self, value: wt.Tensor) -> Any:
        raise ValueError("Cannot determine validity of dependent constraint")

    def __call__(self, *, is_discrete: bool | None = None, event_dim: int | None = None) -> _Dependent:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)


class dependent_property(property, _Dependent):
    """A property that gives the constraint, and on the class stands for one that depends.

    Args:
        fn: of the object.
        is_discrete: whether values are; None where that depends, too.
        event_dim: rightmost dims of an event; None where that depends, too.
        doc: the docstring.
    """

    def __init__(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        is_discrete: bool | None = None,
        event_dim: int | None = None,
        doc: str | None = None,
    ) -> None:
        super().__init__(fn, doc=doc)
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def __call__(self, fn: Callable[..., Any]) -> dependent_property:  # type: ignore[override]
        return dependent_property(fn, is_discrete=self._is_discrete, event_dim=self._event_dim)


class independent(Constraint):
    """Another constraint; the `reinterpreted_batch_ndims` rightmost batch dims belong to the event.

    Args:
        base_constraint: of each element.
        reinterpreted_batch_ndims: how many dims.
    """

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: wt.Tensor) -> Any:
        fits = self.base_constraint.check(value)
        if fits.dim() < self.reinterpreted_batch_ndims:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        return fits.flatten(fits.dim() - self.reinterpreted_batch_ndims).all(-1)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class _Bounded(Constraint):
    """One with bounds, which its repr tells: GreaterThanEq(lower_bound=0)."""

    def __repr__(self) -> str:
        name = type(self).__name__
        if "_" in name.strip("_") or name.islower():
            name = "".join(part.capitalize() for part in name.split("_"))
        name = name.strip("_")
        return f"{name}({', '.join(f'{bound}={value}' for bound, value in vars(self).items())})"


class greater_than(_Bounded):
    """lower_bound < x.

    Args:
        lower_bound: a number or a tensor.
    """

    def __init__(self, lower_bound: wt.Tensor | float) -> None:
        self.lower_bound = lower_bound

    def check(self, value: wt.Tensor) -> Any:
        return self.lower_bound < value


class greater_than_eq(greater_than):
    """lower_bound <= x.

    Args:
        lower_bound: a number or a tensor.
    """

    def check(self, value: wt.Tensor) -> Any:
        return self.lower_bound <= value


class less_than(_Bounded):
    """x < upper_bound.

    Args:
        upper_bound: a number or a tensor.
    """

    def __init__(self, upper_bound: wt.Tensor | float) -> None:
        self.upper_bound = upper_bound

    def check(self, value: wt.Tensor) -> Any:
        return value < self.upper_bound


class interval(_Bounded):
    """lower_bound <= x <= upper_bound.

    Args:
        lower_bound, upper_bound: numbers or tensors.
    """

    def __init__(self, lower_bound: wt.Tensor | float, upper_bound: wt.Tensor | float) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: wt.Tensor) -> Any:
        return (self.lower_bound <= value) & (value <= self.upper_bound)


class half_open_interval(interval):
    """lower_bound <= x < upper_bound.

    Args:
        lower_bound, upper_bound: numbers or tensors.
    """

    def check(self, value: wt.Tensor) -> Any:
        return (self.lower_bound <= value) & (value < self.upper_bound)


class integer_interval(interval):
    """Whole numbers from lower_bound to upper_bound.

    Args:
        lower_bound, upper_bound: numbers or tensors.
    """

    is_discrete = True

    def check(self, value: wt.Tensor) -> Any:
        return (value % 1 == 0) & super().check(value)


class multinomial(Constraint):
    """Counts that add up to at most upper_bound.

    Args:
        upper_bound: a number or a tensor.
    """

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: wt.Tensor | float) -> None:
        self.upper_bound = upper_bound

    def check(self, value: wt.Tensor) -> Any:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: wt.Tensor) -> Any:
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: wt.Tensor) -> Any:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _IntegerGreaterThan(_Bounded):
    is_discrete = True

    def __init__(self, lower_bound: wt.Tensor | float) -> None:
        self.lower_bound = lower_bound

    def check(self, value: wt.Tensor) -> Any:
        return (value % 1 == 0) & (value >= self.lower_bound)


class _IntegerLessThan(_Bounded):
    is_discrete = True

    def __init__(self, upper_bound: wt.Tensor | float) -> None:
        self.upper_bound = upper_bound

    def check(self, value: wt.Tensor) -> Any:
        return (value % 1 == 0) & (value <= self.upper_bound)


class _Real(Constraint):
    def check(self, value: wt.Tensor) -> Any:
        return value == value  # not nan


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: wt.Tensor) -> Any:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: wt.Tensor) -> Any:
        return wt.full(value.shape[:-2], value.shape[-2] == value.shape[-1], dtype=wt.bool)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: wt.Tensor) -> Any:
        return (value.tril() == value).flatten(-2).all(-1)


class _LowerCholesky(_LowerTriangular):
    def check(self, value: wt.Tensor) -> Any:
        return super().check(value) & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _CorrCholesky(Constraint):
    """Lower Cholesky factors whose rows have length 1."""

    event_dim = 2

    def check(self, value: wt.Tensor) -> Any:
        error = 10 * value.shape[-1] * wt.finfo(value.dtype).eps
        lengths = linalg.norm(value.detach(), dim=-1)
        return lower_cholesky.check(value) & ((lengths - 1).abs() <= error).all(-1)


class _Symmetric(_Square):
    def check(self, value: wt.Tensor) -> Any:
        square = super().check(value)
        if not square.all():
            return square
        return wt.isclose(value, value.mT, atol=1e-6).flatten(-2).all(-1)


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: wt.Tensor) -> Any:
        symmetric = super().check(value)
        if not symmetric.all():
            return symmetric
        return (linalg.eigvalsh(value) >= 0).all(-1)


class _PositiveDefinite(_Symmetric):
    def check(self, value: wt.Tensor) -> Any:
        symmetric = super().check(value)
        if not symmetric.all():
            return symmetric
        return linalg.cholesky_ex(value).info == 0


class _Parts(Constraint):
    """What `cat` and `stack` share: a constraint for each part along a dim."""

    def __init__(self, cseq: Iterable[Constraint], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return any(c.is_discrete for c in self.cseq)


class cat(_Parts):
    """Constraints of parts of these lengths along a dim.

    Args:
        cseq: a constraint for each part.
        dim: along which.
        lengths: of the parts; 1 each if None.
    """

    def __init__(
        self, cseq: Iterable[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.cseq):
            raise ValueError(f"cat: expected {len(self.cseq)} lengths, got {len(self.lengths)}")

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        return max(c.event_dim for c in self.cseq)

    def check(self, value: wt.Tensor) -> Any:
        parts = value.split(self.lengths, self.dim)
        return wt.cat([c.check(part) for c, part in zip(self.cseq, parts)], self.dim)


class stack(_Parts):
    """Constraints of the places along a dim.

    Args:
        cseq: a constraint for each place.
        dim: along which.
    """

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        dim = max(c.event_dim for c in self.cseq)
        return dim + 1 if self.dim + dim < 0 else dim

    def check(self, value: wt.Tensor) -> Any:
        parts = value.unbind(self.dim)
        return wt.stack([c.check(part) for c, part in zip(self.cseq, parts)], self.dim)


class MixtureSameFamilyConstraint(Constraint):
    """That of a mixture's parts, of values without their dim.

    Args:
        base_constraint: of the parts.
    """

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint = base_constraint
        self.is_discrete, self.event_dim = base_constraint.is_discrete, base_constraint.event_dim

    def check(self, value: wt.Tensor) -> Any:
        dim = value.dim() - self.event_dim
        return self.base_constraint.check(value.unsqueeze(dim)).all(-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_constraint!r})"


def is_dependent(constraint: object) -> bool:
    """Whether other parameters decide what the constraint is.

    Args:
        constraint: any.
    """
    return isinstance(constraint, _Dependent)


dependent = _Dependent()
boolean, one_hot, real, simplex = _Boolean(), _OneHot(), _Real(), _Simplex()
nonnegative_integer, positive_integer = _IntegerGreaterThan(0), _IntegerGreaterThan(1)
real_vector = independent(real, 1)
positive, nonnegative = greater_than(0.0), greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
square, symmetric = _Square(), _Symmetric()
lower_triangular, lower_cholesky, corr_cholesky = _LowerTriangular(), _LowerCholesky(), _CorrCholesky()
positive_semidefinite, positive_definite = _PositiveSemidefinite(), _PositiveDefinite()

# The classes under PyTorch's names.
_GreaterThan, _GreaterThanEq, _LessThan = greater_than, greater_than_eq, less_than
_Interval, _HalfOpenInterval, _IntegerInterval = interval, half_open_interval, integer_interval
_Multinomial, _IndependentConstraint, _Cat, _Stack = multinomial, independent, cat, stack
_DependentProperty = dependent_property

__all__ = [
    name
    for name, value in [*globals().items()]
    if name[0] != "_" and (isinstance(value, Constraint) or getattr(value, "__module__", "") == __name__)
]
