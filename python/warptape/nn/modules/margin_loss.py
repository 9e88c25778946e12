"""Losses that are zero beyond a margin, as layers. `size_average` and `reduce` are deprecated forms of
`reduction`."""

from __future__ import annotations

from collections.abc import Callable

from warptape.core import Tensor

from .. import functional as F
from ._loss_base import _Loss, _MarginLoss, _WeightedLoss
from .distance import PairwiseDistance

__all__ = [
    "CosineEmbeddingLoss",
    "HingeEmbeddingLoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]


class HingeEmbeddingLoss(_Loss):
    """x where target is 1, max(0, margin - x) where it is -1.

    The input is a distance: pairs of target 1 are pulled together, others pushed apart up to the margin.

    Args:
        margin: the distance from which on pairs of target -1 cost nothing.
        reduction: 'mean', 'sum' or 'none'.

    >>> nn.HingeEmbeddingLoss()(torch.tensor([0.5, 0.2]), torch.tensor([1.0, -1.0]))
    tensor(0.6500)
    """

    _function, _passed = F.hinge_embedding_loss, ("margin",)

    def __init__(
        self,
        margin: float = 1.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin


class CosineEmbeddingLoss(_MarginLoss):
    """[N, D], [N, D], [N]: 1 - cos where target is 1, max(0, cos - margin) where it is -1.

    Inputs without N, [D] and [D] with a target [], are taken, too.

    Args:
        margin: the cosine up to which pairs of target -1 cost nothing.
        reduction: 'mean', 'sum' or 'none'.

    >>> nn.CosineEmbeddingLoss()(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([1.0]))
    tensor(1.)
    """

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class MarginRankingLoss(_MarginLoss):
    """max(0, -target * (x1 - x2) + margin).

    A target of 1 asks that x1 is larger than x2 by the margin, -1 the opposite; all have one shape.

    Args:
        margin: the least difference that costs nothing.
        reduction: 'mean', 'sum' or 'none'.

    >>> nn.MarginRankingLoss(0.5)(torch.tensor([1.0]), torch.tensor([1.2]), torch.tensor([1.0]))
    tensor(0.7000)
    """

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * x)), target -1 or 1.

    Input and target have one shape.

    Args:
        reduction: 'mean', 'sum' or 'none'.

    >>> nn.SoftMarginLoss()(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor(0.6931)
    """

    _function = F.soft_margin_loss


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """[*, C], target 0 or 1 of the same shape: the mean over classes of the binary cross entropy of each.

    Args:
        weight: a factor of each class, [C].
        reduction: 'mean', 'sum' or 'none', which gives [*].

    >>> nn.MultiLabelSoftMarginLoss()(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]]))
    tensor(0.6931)
    """

    _function, _passed = F.multilabel_soft_margin_loss, ("weight",)


class MultiLabelMarginLoss(_Loss):
    """[N, C] or [C], target class indices of the same shape, those before the first -1: the mean over classes
    of max(0, 1 - (x[y] - x[i])), summed over the targets y, for all i that are no target.

    Args:
        reduction: 'mean', 'sum' or 'none', which gives [N].

    >>> nn.MultiLabelMarginLoss()(torch.tensor([[0.1, 0.2, 0.4]]), torch.tensor([[2, -1, 0]]))
    tensor(0.5000)
    """

    _function = F.multilabel_margin_loss


class MultiMarginLoss(_WeightedLoss):
    """[N, C] and class indices [N]: the mean over classes i but y of max(0, margin - x[y] + x[i])^p.

    Args:
        p: 1 or 2, the exponent.
        margin: how far the right class must lead to cost nothing.
        weight: a factor of each class, [C], chosen by y.
        reduction: 'mean', 'sum' or 'none', which gives [N].

    Raises: ValueError for another p, and for a weight that is not 1-D.

    >>> nn.MultiMarginLoss()(torch.tensor([[0.5, 0.0]]), torch.tensor([0]))
    tensor(0.2500)
    """

    _function, _passed = F.multi_margin_loss, ("p", "margin", "weight")

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        if p not in (1, 2):
            raise ValueError("only p == 1 and p == 2 supported")
        if weight is not None and weight.dim() != 1:
            raise ValueError(
                f"MultiMarginLoss: expected weight to be None or 1D tensor, got {weight.dim()}D instead"
            )
        self.p, self.margin = p, margin


class TripletMarginLoss(_Loss):
    """[*, D] each: max(0, |anchor - positive|_p - |anchor - negative|_p + margin).

    From Balntas et al., "Learning shallow convolutional feature descriptors with triplet losses" (2016).

    Args:
        margin: how much further the negative must be to cost nothing; positive.
        p: the norm of the distances.
        eps: added to each difference, so that the gradient at equal vectors is finite.
        swap: whether the distance of positive and negative counts where it is less than anchor to negative.
        reduction: 'mean', 'sum' or 'none'.

    Raises: ValueError unless the margin is positive.

    >>> nn.TripletMarginLoss()(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))
    tensor(0.)
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: expected margin to be greater than 0, got {margin} instead")
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(
            anchor,
            positive,
            negative,
            margin=self.margin,
            p=self.p,
            eps=self.eps,
            swap=self.swap,
            reduction=self.reduction,
        )


class TripletMarginWithDistanceLoss(_Loss):
    """The triplet loss over a distance of one's own.

    max(0, distance(anchor, positive) - distance(anchor, negative) + margin).

    Args:
        distance_function: maps two tensors [N, D] to distances [N]; PairwiseDistance() if None.
        margin: how much further the negative must be to cost nothing; positive.
        swap: whether the distance of positive and negative counts where it is less than anchor to negative.
        reduction: 'mean', 'sum' or 'none'.

    Raises: ValueError unless the margin is positive.

    >>> loss = nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(-1))
    >>> loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.full((1, 2), 0.25))
    tensor(0.5000)
    """

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if margin <= 0:
            raise ValueError(
                f"TripletMarginWithDistanceLoss: expected margin to be greater than 0, got {margin} instead"
            )
        self.distance_function = PairwiseDistance() if distance_function is None else distance_function
        self.margin, self.swap = margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )
