"""Averagers: call average_parameters after each step of the optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...state import resolve
from .utils import average_parameters_or_parameter_groups

if TYPE_CHECKING:
    from warptape.core import Tensor
    from warptape.distributed.state import Group

__all__ = ["ModelAverager", "PeriodicModelAverager"]


class ModelAverager:
    """Base class: counts steps.

    Args:
        process_group: the ranks that average; all if None.
    """

    def __init__(self, process_group: Group = None) -> None:
        self.process_group = resolve(process_group)
        self.step = 0

    def average_parameters(self, params: Iterable[Tensor] | Iterable[dict[str, Any]]) -> None:
        """Called after each step, with parameters or an optimizer's groups.

        Args:
            params: parameters, or an optimizer's param_groups.
        """
        raise NotImplementedError


class PeriodicModelAverager(ModelAverager):
    """Averages every `period` steps, from step `warmup_steps` on. Raises ValueError for a negative number of
    steps and for a period that is not positive."""

    def __init__(self, period: int, warmup_steps: int = 0, process_group: Group = None) -> None:
        super().__init__(process_group)
        if warmup_steps < 0:
            raise ValueError("Arg ``warmup_steps`` must be a non-negative number.")
        if period < 1:
            raise ValueError("Arg ``period`` must be a positive value.")
        self.period, self.warmup_steps = period, warmup_steps

    def average_parameters(self, params: Iterable[Tensor] | Iterable[dict[str, Any]]) -> None:
        """Averages those that have a gradient, if it is time.

        Args:
            params: parameters, or an optimizer's param_groups.
        """
        if self.step >= self.warmup_steps and (self.step - self.warmup_steps) % self.period == 0:
            average_parameters_or_parameter_groups(params, self.process_group)
        self.step += 1
