"""Averagers: call average_parameters after each step of the optimizer."""

from __future__ import annotations

from typing import Any

from ..._state import resolve
from .utils import average_parameters_or_parameter_groups

__all__ = ["ModelAverager", "PeriodicModelAverager"]


class ModelAverager:
    """Base class: counts steps."""

    def __init__(self, process_group: Any = None) -> None:
        self.process_group = resolve(process_group)
        self.step = 0

    def average_parameters(self, params: Any) -> None:
        """Called after each step, with parameters or an optimizer's groups."""
        raise NotImplementedError


class PeriodicModelAverager(ModelAverager):
    """Averages every `period` steps, from step `warmup_steps` on. Raises ValueError for a negative number of
    steps and for a period that is not positive."""

    def __init__(self, period: int, warmup_steps: int = 0, process_group: Any = None) -> None:
        super().__init__(process_group)
        if warmup_steps < 0:
            raise ValueError("Arg ``warmup_steps`` must be a non-negative number.")
        if period < 1:
            raise ValueError("Arg ``period`` must be a positive value.")
        self.period, self.warmup_steps = period, warmup_steps

    def average_parameters(self, params: Any) -> None:
        """Averages those that have a gradient, if it is time."""
        if self.step >= self.warmup_steps and (self.step - self.warmup_steps) % self.period == 0:
            average_parameters_or_parameter_groups(params, self.process_group)
        self.step += 1
