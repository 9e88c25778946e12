"""Losses element by element: of numbers and of probabilities."""

from __future__ import annotations

import warnings

import warptape
from warptape import _C, Tensor
from warptape.amp.autocast_mode import casts_inputs

from .loss import _reduced

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "smooth_l1_loss",
]


def _difference(name: str, input: Tensor, target: Tensor) -> Tensor:
    if input.shape != target.shape:
        warnings.warn(
            f"Using a target size ({target.size()}) that is different to the input size "
            f"({input.size()}). This "
            "will likely lead to incorrect results due to broadcasting. Please ensure they have "
            "the same size.",
            stacklevel=4,
        )
    return input - target


def _weighted(loss: Tensor, weight: Tensor | None) -> Tensor:
    return loss if weight is None else loss * weight


@casts_inputs(_C.float32)
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target)^2, any shapes that broadcast."""
    d = _difference("mse_loss", input, target)
    return _reduced(_weighted(d * d, weight), size_average, reduce, reduction)


@casts_inputs(_C.float32)
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|input - target|, any shapes that broadcast."""
    d = _difference("l1_loss", input, target)
    return _reduced(_weighted(d.abs(), weight), size_average, reduce, reduction)


@casts_inputs(_C.float32)
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """d^2 / (2 beta) where |d| < beta, |d| - beta / 2 beyond."""
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta, got {beta}")
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)
    d = _difference("smooth_l1_loss", input, target)
    far = d.abs()
    loss = warptape.where(far.detach() < beta, d * d * (0.5 / beta), far - 0.5 * beta)
    return _reduced(loss, size_average, reduce, reduction)


@casts_inputs(_C.float32)
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """d^2 / 2 where |d| < delta, delta (|d| - delta / 2) beyond."""
    if delta <= 0:
        raise RuntimeError(f"huber_loss does not support non-positive values for delta, got {delta}")
    d = _difference("huber_loss", input, target)
    far = d.abs()
    loss = warptape.where(far.detach() < delta, 0.5 * d * d, delta * (far - 0.5 * delta))
    return _reduced(_weighted(loss, weight), None, None, reduction)


@casts_inputs(_C.float32)
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(t log p + (1 - t) log(1 - p)), logarithms not below -100; input holds probabilities, of
    target's shape."""
    if warptape.is_autocast_enabled("cpu"):
        raise RuntimeError(
            "binary_cross_entropy is unsafe to autocast; use binary_cross_entropy_with_logits on the logits"
        )
    if input.shape != target.shape:
        raise ValueError(
            f"Using a target size ({target.size()}) that is different to the input size ({input.size()}) is "
            "deprecated. Please ensure they have the same size."
        )
    if not input.is_meta and bool(((input < 0) | (input > 1)).any()):
        raise RuntimeError("binary_cross_entropy: all elements of input should be between 0 and 1")
    log_p = input.log().clamp(min=-100.0)
    log_q = (1 - input).log().clamp(min=-100.0)
    loss = (target - 1) * log_q - target * log_p
    return _reduced(_weighted(loss, weight), size_average, reduce, reduction)


@casts_inputs(_C.float32)
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(input), computed without overflow; pos_weight multiplies the
    positive part."""
    if input.shape != target.shape:
        raise ValueError(f"Target size ({target.size()}) must be the same as input size ({input.size()})")
    # log(1 + exp(-x)) without overflow; -log sigmoid(x).
    softplus = -warptape.nn.functional.logsigmoid(input)
    if pos_weight is None:
        loss = (1 - target) * input + softplus
    else:
        loss = (1 - target) * input + (1 + (pos_weight - 1) * target) * softplus
    return _reduced(_weighted(loss, weight), size_average, reduce, reduction)


@casts_inputs(_C.float32)
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """t (log t - input): input holds log-probabilities, target probabilities (or their logarithms)."""
    loss = target.exp() * (target - input) if log_target else warptape.xlogy(target, target) - target * input
    if reduction == "batchmean" and size_average is None and reduce is None:
        return loss.sum() / (input.shape[0] if input.dim() else 1)
    return _reduced(loss, size_average, reduce, reduction)
