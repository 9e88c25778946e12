"""What a layout needs and takes, as the planner computes it."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout


@dataclass(frozen=True)
class Estimate:
    """What a layout needs and takes.

    memory: bytes of the rank that needs most, `memory_parts` by part (not all are there at the peak).
    step: seconds, `time_parts` by part, which add up to it. mfu, hfu: share of the devices' bf16 peak, by the
    operations of the model and by all that are done. tokens_per_second: of all devices. days, cost: of the
    token budget; cost in the unit of the price.
    """

    layout: Layout
    fits: bool
    memory: float
    memory_parts: dict[str, float]
    step: float
    time_parts: dict[str, float]
    mfu: float
    hfu: float
    tokens_per_second: float
    days: float
    cost: float
