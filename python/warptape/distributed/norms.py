"""Norms of tensors that ranks hold parts of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .._tensor import Tensor
from .collectives import ReduceOp, all_reduce


def norm_of_parts(norm: Tensor, norm_type: float, groups: Iterable[Any]) -> Tensor:
    """The norm of what is split among the ranks of each group, from that of this rank's part. Collective."""
    p = float(norm_type)
    for group in groups:
        if math.isinf(p):
            all_reduce(norm, ReduceOp.MAX if p > 0 else ReduceOp.MIN, group)
        else:
            norm = norm**p
            all_reduce(norm, ReduceOp.SUM, group)
            norm = norm ** (1 / p)
    return norm
