"""Losses. `reduction` is 'mean', 'sum' or 'none'; `size_average` and `reduce` are its deprecated forms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import warptape
from warptape import _C, Tensor
from warptape._arguments import same_device
from warptape.amp.autocast_mode import casts_inputs

from .distance import pairwise_distance

__all__ = [
    "cosine_embedding_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def legacy_reduction(size_average: bool | None, reduce: bool | None) -> str:
    """The `reduction` that the two deprecated flags stand for; warns."""
    size_average = True if size_average is None else size_average
    reduce = True if reduce is None else reduce
    reduction = "none" if not reduce else "mean" if size_average else "sum"
    warnings.warn(
        f"size_average and reduce args will be deprecated, please use reduction='{reduction}' instead.",
        stacklevel=3,
    )
    return reduction


def _reduced(loss: Tensor, size_average: bool | None, reduce: bool | None, reduction: str) -> Tensor:
    if size_average is not None or reduce is not None:
        reduction = legacy_reduction(size_average, reduce)
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f"{reduction} is not a valid value for reduction; expected 'none', 'mean' or 'sum'")


@casts_inputs(_C.float32)
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """x where target is 1, max(0, margin - x) where it is -1; any shape."""
    far = warptape.where(target != 1, (margin - input).clamp(min=0), 0.0)
    near = warptape.where(target != -1, input, 0.0)
    return _reduced(far + near, size_average, reduce, reduction)


@casts_inputs(_C.float32)
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """[N, D], [N, D], [N]: 1 - cos where target is 1, max(0, cos - margin) where it is -1."""
    eps = 1e-12
    squares = ((input1 * input1).sum(-1) + eps) * ((input2 * input2).sum(-1) + eps)
    cosine = (input1 * input2).sum(-1) / squares.sqrt()
    near = warptape.where(target == 1, 1 - cosine, 0.0)
    far = warptape.where(target == -1, (cosine - margin).clamp(min=0), 0.0)
    return _reduced(near + far, size_average, reduce, reduction)


@casts_inputs(_C.float32)
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -target * (x1 - x2) + margin)."""
    if not input1.dim() == input2.dim() == target.dim():
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.shape}, input2: {input2.shape}, target: {target.shape} "
        )
    return _reduced((-target * (input1 - input2) + margin).clamp(min=0), size_average, reduce, reduction)


@casts_inputs(_C.float32)
def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-target * x)), target -1 or 1."""
    return _reduced(-_C._nn.logsigmoid(target * input), size_average, reduce, reduction)


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """[N, C] or [C], target class indices of the same shape, those before the first -1: the mean over classes
    of max(0, 1 - (x[y] - x[i])), summed over the targets y, for all i that are no target."""
    if target.dtype != _C.int64:
        raise _C.DtypeError(f"multilabel_margin_loss: expected scalar type Long but found {target.dtype}")
    if input.shape != target.shape or input.dim() > 2 or 0 in input.shape[-1:]:
        raise _C.ShapeError(
            "multilabel_margin_loss: Expected non-empty vector or matrix and a target of its shape, got "
            f"{tuple(input.shape)} and {tuple(target.shape)}"
        )
    x, y = (
        input.reshape(-1, input.shape[-1] if input.dim() else 1),
        target.reshape(-1, *target.shape[-1:] or (1,)),
    )
    counts = (y >= 0).long().cumprod(1).bool()
    places = y.where(counts, 0)
    wanted = warptape.zeros_like(y).scatter_add(1, places, counts.long()) > 0
    gaps = (1 - x.gather(1, places).unsqueeze(2) + x.unsqueeze(1)).clamp(min=0)
    loss = gaps.masked_fill(~(counts.unsqueeze(2) & ~wanted.unsqueeze(1)), 0.0).sum((1, 2)) / x.shape[1]
    return _reduced(loss if input.dim() == 2 else loss[0], size_average, reduce, reduction)


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """[*, C], target 0 or 1 of the same shape: the mean over classes of the binary cross entropy of each."""
    loss = -(target * _C._nn.logsigmoid(input) + (1 - target) * _C._nn.logsigmoid(-input))
    if weight is not None:
        loss = loss * weight
    return _reduced(loss.sum(-1) / input.shape[-1], size_average, reduce, reduction)


@casts_inputs(_C.float32)
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """[N, C] and class indices [N]: the mean over classes i other than y of max(0, margin - x[y] +
    x[i])^p."""
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.dim() != 1:
        raise ValueError("weight must be one-dimensional")
    single = input.dim() == 1
    scores, classes = (input.unsqueeze(0), target.reshape(1)) if single else (input, target)
    index = classes.unsqueeze(1)
    loss = (margin - scores.gather(1, index) + scores).clamp(min=0).pow(p)
    if weight is not None:
        loss = loss * weight[classes].unsqueeze(1)
    loss = loss.scatter(1, index, 0.0).sum(1) / scores.shape[1]
    return _reduced(loss[0] if single else loss, size_average, reduce, reduction)


@casts_inputs(_C.float32)
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """[*, D] each: max(0, |anchor - positive|_p - |anchor - negative|_p + margin) (Balntas et al. 2016)."""
    if size_average is not None or reduce is not None:
        reduction = legacy_reduction(size_average, reduce)
    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda a, b: pairwise_distance(a, b, p, eps),
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """The triplet loss over a distance of one's own; with `swap` the positive may stand in for the anchor."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = warptape.minimum(far, distance(positive, negative))
    return _reduced((near - far + margin).clamp(min=0), None, None, reduction)


@casts_inputs(_C.float32)
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood of counts under Poisson rates, given as logarithms if `log_input`.

    `full` adds Stirling's approximation of log(target!) where target is above 1.
    """
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        loss = loss + warptape.where(target > 1, stirling, 0.0)
    return _reduced(loss, size_average, reduce, reduction)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood under normal distributions of mean `input` and variance `var`, at least `eps`.

    `var` has the input's shape, or lacks its last dimension, or has 1 there. `full` adds log(2 pi) / 2.
    """
    if not isinstance(var, Tensor):
        filled = warptape.full_like(input, var)
        return gaussian_nll_loss(input, target, filled, full, eps, reduction)
    same_device("gaussian_nll_loss", input, target, var)
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.shape[:-1] != var.shape[:-1] or var.shape[-1] != 1:
            raise ValueError(
                f"var is of incorrect size: expected {tuple(input.shape)}, or without its last dimension, or "
                "1 there, "
                f"got {tuple(var.shape)}"
            )
    if bool((var < 0).any()):
        raise ValueError("var has negative entry/entries")
    # The gradient of var passes as if it had not been raised to eps.
    clamped = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (clamped.log() + (input - target) ** 2 / clamped)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, None, None, reduction)
