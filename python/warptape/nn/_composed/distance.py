"""Distances between vectors, and products of two of them."""

from __future__ import annotations

import warptape
from warptape import Tensor

__all__ = ["bilinear", "cosine_similarity", "normalize", "pairwise_distance"]


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """[*, D] and [*, D] -> [*], the p-norm of x1 - x2 + eps."""
    return (x1 - x2 + eps).norm(p, dim=-1, keepdim=keepdim)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[*, I], [*, J], [O, I, J] and [O] -> [*, O], x1 weight[o] x2 + bias[o]."""
    if weight.dim() != 3 or input1.shape[-1] != weight.shape[1] or input2.shape[-1] != weight.shape[2]:
        raise RuntimeError(
            f"bilinear: expected weight of shape [out, {input1.shape[-1]}, {input2.shape[-1]}] for inputs "
            f"{tuple(input1.shape)} and {tuple(input2.shape)}, got {tuple(weight.shape)}"
        )
    out = warptape.einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """input divided by its p-norm over dim, which counts as at least eps."""
    unit = input / input.norm(p, dim, keepdim=True).clamp(min=eps)
    return unit if out is None else out.copy_(unit)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between x1 and x2 along dim, each norm counting as at least eps."""
    a = x1 / x1.norm(2.0, dim, keepdim=True).clamp(min=eps)
    b = x2 / x2.norm(2.0, dim, keepdim=True).clamp(min=eps)
    return (a * b).sum(dim)
