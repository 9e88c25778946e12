"""One product per expert over rows that are sorted by expert."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from warptape import core as wt

from ...core import Tensor
from ...nn import functional as F


def grouped_mm(x: Tensor, weight: Tensor, counts: Sequence[int] | Tensor) -> Tensor:
    """Rows of expert e times weight[e]: x [N, K], weight [E, K, M], counts of rows by expert -> [N, M].

    `nn.functional.grouped_mm` with counts for offsets. Counts in a tensor [E], of integers on x's device, are
    not waited for: rows that they leave over are 0, and too many raise IndexError (on CUDA at the next
    synchronisation). Raises ValueError where a list is not E numbers that add up to N, or a tensor not [E].
    """
    if isinstance(counts, Tensor):
        if counts.shape != (len(weight),):
            raise ValueError(f"grouped_mm: expected {len(weight)} counts, got shape {tuple(counts.shape)}")
        return F.grouped_mm(x, weight, offs=counts.cumsum(0))
    if len(counts) != len(weight) or sum(counts) != len(x) or min(counts, default=0) < 0:
        raise ValueError(
            f"grouped_mm: expected {len(weight)} counts that add up to {len(x)} rows, got {list(counts)}"
        )
    ends = wt.tensor(list(accumulate(counts)), dtype=wt.int32, device=x.device)
    return F.grouped_mm(x, weight, offs=ends)
