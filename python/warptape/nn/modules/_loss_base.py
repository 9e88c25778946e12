"""What losses share. `size_average` and `reduce` are deprecated forms of `reduction`."""

from __future__ import annotations

import warnings
from typing import Any

from warptape.core import Tensor

from .module import Module


def _legacy_reduction(size_average: bool | None, reduce: bool | None) -> str:
    """The `reduction` that the two deprecated flags stand for; warns."""
    size_average = True if size_average is None else size_average
    reduce = True if reduce is None else reduce
    reduction = "none" if not reduce else "mean" if size_average else "sum"
    warnings.warn(
        f"size_average and reduce args will be deprecated, please use reduction='{reduction}' instead.",
        stacklevel=3,
    )
    return reduction


class _Loss(Module):
    """One of (input, target), with attributes that go to its function beside `reduction`."""

    reduction: str
    _function: Any
    _passed: tuple[str, ...] = ()

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None:
        """A loss of (input, target).

        Args:
            size_average, reduce: deprecated forms of `reduction`; they warn.
            reduction: 'mean' over the elements, 'sum', or 'none' for a loss of each element.
        """
        super().__init__()
        legacy = size_average is not None or reduce is not None
        self.reduction = _legacy_reduction(size_average, reduce) if legacy else reduction

    def _of_pair(self, input: Tensor, target: Tensor) -> Tensor:
        options = {name: getattr(self, name) for name in self._passed}
        return self._function(input, target, reduction=self.reduction, **options)

    forward: Any = _of_pair  # losses of other inputs have their own


class _WeightedLoss(_Loss):
    """A loss with a buffer `weight`, which moves with the module and is part of its state."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        """A loss with weights.

        Args:
            weight: a factor of each class [C], or of each element where there are no classes; ones if None.
            size_average, reduce: deprecated forms of `reduction`; they warn.
            reduction: 'mean', 'sum', or 'none' for a loss of each element.
        """
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class _MarginLoss(_Loss):
    def __init__(
        self,
        margin: float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        """A loss that is zero beyond a margin.

        Args:
            margin: the distance from which on a pair costs nothing.
            size_average, reduce: deprecated forms of `reduction`; they warn.
            reduction: 'mean', 'sum', or 'none' for a loss of each element.
        """
        super().__init__(size_average, reduce, reduction)
        self.margin = margin
