"""Distances between vectors, and products of two of them."""

from __future__ import annotations

import warptape
from warptape import _C, Tensor

__all__ = ["cosine_similarity", "normalize", "pairwise_distance", "pdist"]


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """[*, D] and [*, D] -> [*], the p-norm of x1 - x2 + eps."""
    return (x1 - x2 + eps).norm(p, dim=-1, keepdim=keepdim)


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """input divided by its p-norm over dim, which counts as at least eps."""
    unit = input / input.norm(p, dim, keepdim=True).clamp(min=eps)
    return unit if out is None else _C._write_out("normalize", out, unit)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between x1 and x2 along dim, each norm counting as at least eps."""
    if x1.is_complex() or x2.is_complex():
        raise warptape.DtypeError("cosine_similarity: not implemented for complex numbers")
    dtype = warptape.result_type(x1, x2)
    if not dtype.is_floating_point:
        raise warptape.DtypeError(
            f"cosine_similarity: expected common dtype to be floating point, yet common dtype is {dtype}"
        )
    # Broadcast first: dim may be one that only one of them has, or has with size 1.
    x1, x2 = warptape.broadcast_tensors(x1.to(dtype), x2.to(dtype))
    a = x1 / x1.norm(2.0, dim, keepdim=True).clamp(min=eps)
    b = x2 / x2.norm(2.0, dim, keepdim=True).clamp(min=eps)
    return (a * b).sum(dim)


def pdist(input: Tensor, p: float = 2) -> Tensor:
    """[N, D] -> [N (N - 1) / 2], the p-norms of the differences of all pairs of rows, first row first."""
    if input.dim() != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.dim()}D")
    if p < 0:
        raise RuntimeError("pdist only supports non-negative p values")
    count = input.shape[0]
    first, second = warptape.triu_indices(count, count, 1, device=input.device)
    return (input[first] - input[second]).norm(p, -1)
