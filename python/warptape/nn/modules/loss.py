"""Losses as layers. `reduction` is 'mean', 'sum' or 'none'; `size_average` and `reduce` are its deprecated
forms."""

from __future__ import annotations

import math
import re
import sys
from collections import namedtuple
from typing import TYPE_CHECKING, Any

from warptape.core import Tensor

from .. import functional as F
from ._loss_base import _Loss, _WeightedLoss
from .linear import Linear
from .margin_loss import (
    CosineEmbeddingLoss,
    HingeEmbeddingLoss,
    MarginRankingLoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    SoftMarginLoss,
    TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)

if TYPE_CHECKING:
    from warptape import core as wt
    from warptape.core.types import Device

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LinearCrossEntropyLoss",
    "LinearCrossEntropyOptions",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]


class L1Loss(_Loss):
    """|x - target|; any shape.

    Args:
        reduction: 'mean' over the elements, 'sum', or 'none' for a loss of each element.

    >>> nn.L1Loss()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(1.)
    """

    _function = F.l1_loss


class MSELoss(_Loss):
    """(x - target)^2; any shape.

    Args:
        reduction: 'mean' over the elements, 'sum', or 'none' for a loss of each element.

    >>> nn.MSELoss()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(2.)
    """

    _function = F.mse_loss


class SmoothL1Loss(_Loss):
    """(x - target)^2 / (2 beta) where the difference is below `beta`, |x - target| - beta / 2 elsewhere.

    Outliers pull less than in the squared loss (Girshick, "Fast R-CNN", 2015, section 2.3).

    Args:
        reduction: 'mean', 'sum' or 'none'.
        beta: the difference at which the parabola meets the line; 0 gives L1Loss.

    >>> nn.SmoothL1Loss()(torch.tensor([0.0]), torch.tensor([2.0]))
    tensor(1.5000)
    """

    _function, _passed = F.smooth_l1_loss, ("beta",)

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta


class HuberLoss(_Loss):
    """(x - target)^2 / 2 where the difference is below `delta`, else delta * (|x - target| - delta / 2).

    It is SmoothL1Loss times delta (Huber, "Robust Estimation of a Location Parameter", 1964).

    Args:
        reduction: 'mean', 'sum' or 'none'.
        delta: the difference at which the parabola meets the line.

    Raises: TypeError for a delta that is no number.

    >>> nn.HuberLoss()(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0]))
    tensor(1.5000)
    """

    _function, _passed = F.huber_loss, ("delta",)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        if not isinstance(delta, (float, int)):
            raise TypeError(f"delta must be a float or int, got: {type(delta)}")
        super().__init__(reduction=reduction)
        self.delta = delta


class NLLLoss(_WeightedLoss):
    """Log-probabilities [N, C, *] and class indices [N, *] -> -weight[y] * x[y], or its weighted mean.

    Args:
        weight: a factor of each class, [C].
        ignore_index: targets of this value count for nothing.
        reduction: 'mean' (weighted by `weight`), 'sum' or 'none'.

    >>> nn.NLLLoss()(torch.tensor([[-0.5, -1.5]]), torch.tensor([1]))
    tensor(1.5000)
    """

    _function, _passed = F.nll_loss, ("weight", "ignore_index")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index


class CrossEntropyLoss(_WeightedLoss):
    """Logits [N, C, *] and class indices [N, *], or probabilities [N, C, *] -> the cross entropy of their
    softmax.

    Targets equal to `ignore_index` count for nothing; `label_smoothing` is the share spread evenly over all
    classes. `weight` [C] counts a class more or less; `reduction` is "mean" (of these), "sum" or "none".

    Args:
        weight: a factor of each class, [C].
        ignore_index: a target that counts for nothing.
        reduction: 'mean', 'sum' or 'none', which gives [N, *].
        label_smoothing: from 0 to 1 ("Rethinking the Inception Architecture", section 7).

    >>> nn.CrossEntropyLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1269)
    """

    _function, _passed = F.cross_entropy, ("weight", "ignore_index", "label_smoothing")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing


class LinearCrossEntropyOptions(
    namedtuple(
        "_Options",
        "allow_retain_graph batch_chunk_size chunking_method acc_policy acc_dtype",
    )
):
    """How many rows `linear_cross_entropy` takes at a time, so that the logits of all are never in memory.

    `batch_chunk_size` is that number. Without it `chunking_method` decides: "aspect_ratio:f" (f = 1 if left
    out, 2 for "auto") gives a chunk's logits at most the memory of the input, divided by f; None takes all
    rows at once. The others are taken as PyTorch has them and change nothing: the backward computes the
    logits again, so that it can run any number of times, and sums in float32 at least.

    Args:
        allow_retain_graph, acc_policy, acc_dtype: accepted, without effect.

    Raises: ValueError for names and sizes that are not known.

    >>> int(nn.LinearCrossEntropyOptions(batch_chunk_size=4).__index__())
    4
    """

    __slots__ = ()

    def __new__(
        cls,
        allow_retain_graph: bool = False,
        batch_chunk_size: int | None = None,
        chunking_method: str | None = "auto",
        acc_policy: str = "auto",
        acc_dtype: Any = None,
    ) -> LinearCrossEntropyOptions:
        if acc_policy not in ("auto", "accurate", "balanced", "compact"):
            raise ValueError(f"invalid acc_policy: {acc_policy!r}")
        if not re.fullmatch("auto|aspect_ratio(:0*[1-9][0-9]*)?", chunking_method or "auto"):
            raise ValueError(f"invalid chunking_method: {chunking_method!r}")
        size = batch_chunk_size
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ValueError(f"batch_chunk_size must be positive int or None, got {size!r}")
        return super().__new__(cls, allow_retain_graph, size, chunking_method, acc_policy, acc_dtype)

    def __index__(self) -> int:
        """As the op takes it: the rows of a chunk, -f for an aspect ratio, 0 for "auto"."""
        if self.batch_chunk_size is not None:
            return self.batch_chunk_size
        if self.chunking_method is None:
            return sys.maxsize
        factor = self.chunking_method.partition(":")[2]
        return 0 if self.chunking_method == "auto" else -int(factor or 1)


class LinearCrossEntropyLoss(_WeightedLoss):
    """Features [N, in] and targets [N, *out_features] -> the cross entropy of `linear`'s logits
    [N, num_classes, *out_features].

    The rest as in `CrossEntropyLoss`; targets that are probabilities have no `ignore_index`. With `options`
    the logits are computed in chunks, and again in the backward.

    Args:
        in_features: size of the input's last dimension.
        num_classes: C.
        out_features: further dimensions of the logits.
        bias: whether the linear layer has one.
        device, dtype: of the linear layer.
        reduction: 'mean', 'sum' or 'none'.
        weight: a factor of each class, [C].
        ignore_index: a target that counts for nothing.
        label_smoothing: the share spread evenly over all classes.
        options: how the logits are computed in chunks; None computes them at once.

    Raises: RuntimeError for a weight of another shape and a label_smoothing outside [0, 1].

    >>> loss = nn.LinearCrossEntropyLoss(8, 5)
    >>> loss(torch.zeros(3, 8), torch.tensor([0, 1, 4])).shape
    torch.Size([])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Device = None,
        dtype: wt.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:
        if weight is not None and weight.shape != (num_classes,):
            raise RuntimeError(f"expected weight shape to be {(num_classes,)}, got {tuple(weight.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise RuntimeError(f"expected label_smoothing to be in range [0, 1], got {label_smoothing}")
        super().__init__(weight, reduction=reduction)
        self.num_classes, self.out_features, self.options = num_classes, out_features, options
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        outputs = math.prod(out_features, start=num_classes)
        self.linear = Linear(in_features, outputs, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        linear, sizes = self.linear, (self.num_classes, *self.out_features)
        return F.linear_cross_entropy(
            input,
            linear.weight.reshape(*sizes, linear.in_features),
            target,
            linear_bias=None if linear.bias is None else linear.bias.reshape(sizes),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, "
            f"reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )


class BCELoss(_WeightedLoss):
    """Probabilities and targets between 0 and 1 of any one shape -> their binary cross entropy.

    Args:
        weight: a factor of each element, of a shape that broadcasts.
        reduction: 'mean', 'sum' or 'none'.

    >>> nn.BCELoss()(torch.tensor([0.5]), torch.tensor([1.0]))
    tensor(0.6931)
    """

    _function, _passed = F.binary_cross_entropy, ("weight",)


class BCEWithLogitsLoss(_WeightedLoss):
    """Logits and targets between 0 and 1 of any one shape -> the binary cross entropy of their sigmoid.

    `pos_weight` multiplies what positive targets contribute.

    Args:
        weight: a factor of each element, of a shape that broadcasts.
        reduction: 'mean', 'sum' or 'none'.
        pos_weight: of a shape that broadcasts, as [C] for one number of each class.

    >>> nn.BCEWithLogitsLoss()(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor(0.6931)
    """

    pos_weight: Tensor | None
    _function, _passed = F.binary_cross_entropy_with_logits, ("weight", "pos_weight")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.register_buffer("pos_weight", pos_weight)


class KLDivLoss(_Loss):
    """Log-probabilities x and probabilities t (their logarithms if `log_target`) -> t * (log t - x).

    'batchmean' sums and divides by the size of the first dimension, which is the divergence itself.

    Args:
        reduction: 'batchmean', 'mean' (over all elements), 'sum' or 'none'.
        log_target: whether the target is logarithms.

    >>> nn.KLDivLoss(reduction="sum")(torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]))
    tensor(0.6931)
    """

    _function, _passed = F.kl_div, ("log_target",)

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target


class PoissonNLLLoss(_Loss):
    """Negative log likelihood of counts under Poisson rates, given as logarithms if `log_input`.

    The loss is rate - count * log(rate).

    Args:
        log_input: whether inputs are logarithms of rates.
        full: whether Stirling's approximation of log(count!) is added, for counts above 1.
        eps: added to rates before the logarithm, if not `log_input`.
        reduction: 'mean', 'sum' or 'none'.

    >>> nn.PoissonNLLLoss()(torch.tensor([0.0]), torch.tensor([2.0]))
    tensor(1.)
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-8,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(
            log_input,
            target,
            log_input=self.log_input,
            full=self.full,
            eps=self.eps,
            reduction=self.reduction,
        )


class GaussianNLLLoss(_Loss):
    """Negative log likelihood under normal distributions of mean x and variance `var`, at least `eps`.

    The loss is (log(var) + (x - target)^2 / var) / 2 (Nix and Weigend, "Estimating the mean and variance",
    1994).

    Args:
        full: whether the constant log(2 pi) / 2 is added.
        eps: the least variance.
        reduction: 'mean', 'sum' or 'none'.

    >>> nn.GaussianNLLLoss()(torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([1.0]))
    tensor(2.)
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)


class CTCLoss(_Loss):
    """log_probs [T, N, C], labels [N, S] or one sample after the other in 1-D, and how many steps and labels
    of each sample count -> the negative log likelihood of the labels ("Connectionist Temporal
    Classification", section 4.1). `zero_infinity` drops samples whose labels do not fit.

    Args:
        blank: the class that stands for no label.
        reduction: 'mean' (each sample's loss divided by its number of labels first), 'sum' or 'none'.
        zero_infinity: whether samples of infinite loss count as 0, with gradient 0.

    >>> log_probs = torch.zeros(4, 1, 3).log_softmax(2)
    >>> nn.CTCLoss()(log_probs, torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])).shape
    torch.Size([])
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> Tensor:
        lengths = (input_lengths, target_lengths)
        return F.ctc_loss(log_probs, targets, *lengths, self.blank, self.reduction, self.zero_infinity)
