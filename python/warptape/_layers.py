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
    "conv_tbc",
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


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """nn.functional.grid_sample, its modes by number."""
    return F.grid_sample(input, grid, _MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners)


def affine_grid_generator(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """nn.functional.affine_grid."""
    return F.affine_grid(theta, size, align_corners)


def _loss(name: str, arguments: str) -> Any:
    order, function = arguments.split(), getattr(F, name)

    def loss(*args: Any, **kwargs: Any) -> Tensor:
        if len(args) > len(order):
            raise TypeError(f"{name}() takes at most {len(order)} arguments, {len(args)} were given")
        given = dict(zip(order, args, strict=False), **kwargs)
        return function(**{**given, "reduction": _REDUCTIONS[given.get("reduction", 0)]})

    loss.__name__ = loss.__qualname__ = name
    loss.__doc__ = f"nn.functional.{name}({', '.join(order)})."
    return loss


_LOSSES = {
    "binary_cross_entropy_with_logits": "input target weight pos_weight reduction",
    "cosine_embedding_loss": "input1 input2 target margin reduction",
    "ctc_loss": "log_probs targets input_lengths target_lengths blank reduction zero_infinity",
    "hinge_embedding_loss": "input target margin reduction",
    "kl_div": "input target reduction",
    "margin_ranking_loss": "input1 input2 target margin reduction",
    "poisson_nll_loss": "input target log_input full eps reduction",
    "triplet_margin_loss": "anchor positive negative margin p eps swap reduction",
}
globals().update({name: _loss(name, arguments) for name, arguments in _LOSSES.items()})

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
