"""Norms of tensors that ranks hold shards of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..core import Tensor
from .collectives import ReduceOp, all_reduce


def norm_of_shards(norm: Tensor, norm_type: float, groups: Iterable[Any]) -> Tensor:
    """The norms of what is split among the ranks of each group, from those of this rank's shards.
    Collective."""
    p, dtype = float(norm_type), norm.dtype
    power = 1.0 if p == 0 else p  # of order 0 is the number of elements that are not 0
    norm = norm.double()  # in which a power of what a 16-bit dtype holds does not overflow
    for group in groups:
        if math.isinf(p):
            all_reduce(norm, ReduceOp.MAX if p > 0 else ReduceOp.MIN, group)
        else:
            norm = norm**power
            all_reduce(norm, ReduceOp.SUM, group)
            norm = norm ** (1 / power)
    return norm.to(dtype)


def norm_of_nothing(norm_type: float) -> float:
    """What a part without elements adds to a norm.

    Args:
        norm_type: the order; the norm of order -inf is a minimum.
    """
    return 0.0 if norm_type >= 0 else math.inf
