"""One product per expert over rows that are sorted by expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import warptape

from ..._tensor import Tensor
from ...autograd import Function
from ...autograd.function import once_differentiable


def _spans(counts: Sequence[int]) -> Iterator[tuple[int, slice]]:
    start = 0
    for group, rows in enumerate(counts):
        if rows:
            yield group, slice(start, start + rows)
        start += rows


class _GroupedMM(Function):
    """A product a group, written in place: gradients of slices are not added up as whole weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counts = counts
        out = warptape.empty((len(x), weight.shape[2]), dtype=x.dtype, device=x.device)
        for group, rows in _spans(counts):
            warptape.mm(x[rows], weight[group], out=out[rows])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad_x = warptape.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_weight = warptape.empty_like(weight) if ctx.needs_input_grad[1] else None
        for group, rows in _spans(ctx.counts):
            if grad_x is not None:
                warptape.mm(grad[rows], weight[group].t(), out=grad_x[rows])
            if grad_weight is not None:
                warptape.mm(x[rows].t(), grad[rows], out=grad_weight[group])
        if grad_weight is not None:
            for group, count in enumerate(ctx.counts):
                if not count:
                    grad_weight[group].zero_()
        return grad_x, grad_weight, None


def grouped_mm(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """Rows of expert e times weight[e]: x [N, K], weight [E, K, M], counts of rows by expert -> [N, M].

    No gradients of gradients. Raises ValueError where the counts are not E numbers that add up to N.
    """
    if len(counts) != len(weight) or sum(counts) != len(x) or min(counts, default=0) < 0:
        raise ValueError(
            f"grouped_mm: expected {len(weight)} counts that add up to {len(x)} rows, got {list(counts)}"
        )
    return _GroupedMM.apply(x, weight, counts)
