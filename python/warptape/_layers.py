"""What the top level has of nn.functional: the same functions, or the same with other arguments (a loss's
reduction is 0 for none, as by default, 1 for the mean, 2 for the sum)."""

from __future__ import annotations

from typing import Any

from ._arguments import checked
from ._tensor import Tensor
from .nn import functional as F
from .nn.utils.weight_norm import norm_except_dim as _norms
from .nn.utils.weight_norm import scaled as _scaled

_SAME = (
    "adaptive_avg_pool1d",
    "avg_pool1d",
    "celu",
    "channel_shuffle",
    "cosine_similarity",
    "hardshrink",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool3d",
    "pairwise_distance",
    "pdist",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prelu",
    "rrelu",
    "rrelu_",
    "threshold",
)
_REDUCTIONS = ("none", "mean", "sum")
_MODES, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """The `pow`-norm over all dims but `dim`, which are kept; over all of them, a scalar, if `dim` is -1."""
    return _norms(v, pow, dim)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """v with its norms along `dim` made `g`."""
    return _scaled(v, g, dim)


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """nn.functional.embedding, the table first; a negative padding_idx is none."""
    padding = padding_idx if padding_idx >= 0 else None
    return F.embedding(indices, weight, padding, None, 2.0, scale_grad_by_freq, sparse)


def adaptive_max_pool1d(input: Tensor, output_size: Any) -> Any:
    """nn.functional.adaptive_max_pool1d with its indices."""
    return F.adaptive_max_pool1d_with_indices(input, output_size)


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """nn.functional.batch_norm; `cudnn_enabled` has no effect."""
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """nn.functional.instance_norm; `cudnn_enabled` has no effect."""
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.alpha_dropout."""
    return F.alpha_dropout(input, p, train)


def alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.alpha_dropout in place."""
    return F.alpha_dropout(input, p, train, inplace=True)


def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.feature_alpha_dropout."""
    return F.feature_alpha_dropout(input, p, train)


def feature_alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.feature_alpha_dropout in place."""
    return F.feature_alpha_dropout(input, p, train, inplace=True)


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """[T, N, C] and weight [K, C, O] -> [T', N, O]: conv1d over the first dim."""
    out = F.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return out.permute(2, 0, 1)


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """nn.functional.grid_sample, its modes by number."""
    return F.grid_sample(input, grid, _MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners)


def affine_grid_generator(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """nn.functional.affine_grid."""
    return F.affine_grid(theta, size, align_corners)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 0,
) -> Tensor:
    """nn.functional.binary_cross_entropy_with_logits."""
    how = {"reduction": _REDUCTIONS[reduction], "pos_weight": pos_weight}
    return F.binary_cross_entropy_with_logits(input, target, weight, **how)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    """nn.functional.cosine_embedding_loss."""
    return F.cosine_embedding_loss(input1, input2, target, margin, reduction=_REDUCTIONS[reduction])


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    """nn.functional.ctc_loss."""
    lengths = (input_lengths, target_lengths)
    return F.ctc_loss(log_probs, targets, *lengths, blank, _REDUCTIONS[reduction], zero_infinity)


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 0) -> Tensor:
    """nn.functional.hinge_embedding_loss."""
    return F.hinge_embedding_loss(input, target, margin, reduction=_REDUCTIONS[reduction])


def kl_div(input: Tensor, target: Tensor, reduction: int = 0, *, log_target: bool = False) -> Tensor:
    """nn.functional.kl_div."""
    return F.kl_div(input, target, reduction=_REDUCTIONS[reduction], log_target=log_target)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    """nn.functional.margin_ranking_loss."""
    return F.margin_ranking_loss(input1, input2, target, margin, reduction=_REDUCTIONS[reduction])


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: int
) -> Tensor:
    """nn.functional.poisson_nll_loss."""
    how = {"eps": eps, "reduction": _REDUCTIONS[reduction]}
    return F.poisson_nll_loss(input, target, log_input, full, **how)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = 0,
) -> Tensor:
    """nn.functional.triplet_margin_loss."""
    how = {"reduction": _REDUCTIONS[reduction]}
    return F.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, **how)


_OWN = [
    name
    for name, value in list(globals().items())
    if getattr(value, "__module__", None) == __name__ and name[0] != "_"
]
globals().update({name: checked(globals()[name]) for name in _OWN})
globals().update({name: getattr(F, name) for name in _SAME})
__all__: list[str] = [*_OWN, *_SAME, "_weight_norm"]
for _name in ("hardshrink", "prelu"):
    setattr(Tensor, _name, getattr(F, _name))
