"""A softmax over many classes of which few are frequent ("Efficient softmax approximation for GPUs", section
4). Legend: N batch, I features in."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor

from .. import functional as F
from .container import ModuleList, Sequential
from .linear import Linear
from .module import Module

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["AdaptiveLogSoftmaxWithLoss"]

_ASMoutput = namedtuple("_ASMoutput", ["output", "loss"])


class AdaptiveLogSoftmaxWithLoss(Module):
    """[N, I] and classes [N] -> (output [N], the log probability of each, and loss, minus their mean).

    Classes below cutoffs[0] have logits of their own in `head`, and each further cluster, up to the next
    cutoff, one for all; `tail` tells its classes apart, from I / div_value^i features. Class indices must be
    sorted by falling frequency.

    Args:
        in_features: I.
        n_classes: the number of all classes.
        cutoffs: where each cluster of rarer classes begins, ascending.
        div_value: by what the features of each further cluster are divided.
        head_bias: whether the head has a bias.
        device, dtype: of the weights.

    Raises: ValueError for cutoffs that do not ascend between 1 and n_classes - 1.

    >>> loss = nn.AdaptiveLogSoftmaxWithLoss(8, 100, cutoffs=[10, 50])
    >>> loss(torch.zeros(4, 8), torch.tensor([0, 9, 20, 99])).output.shape
    torch.Size([4])
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__()
        cutoffs = list(cutoffs)
        if len(cutoffs) == 0:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            cutoffs != sorted(set(cutoffs))
            or cutoffs[0] <= 0
            or cutoffs[-1] > n_classes - 1
            or any(int(c) != c for c in cutoffs)
        ):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, "
                "where each value is between 1 and n_classes-1"
            )
        self.in_features, self.n_classes, self.div_value = in_features, n_classes, div_value
        self.cutoffs, self.head_bias = [*cutoffs, n_classes], head_bias
        self.shortlist_size = self.cutoffs[0]
        self.n_clusters = len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **factory)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            width = int(in_features // div_value ** (i + 1))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            first = Linear(in_features, width, bias=False, **factory)
            self.tail.append(Sequential(first, Linear(width, size, bias=False, **factory)))

    def reset_parameters(self) -> None:
        """Draws new values for all weights.

        Each linear layer draws as Linear does.
        """
        for layer in (self.head, *(part for pair in self.tail for part in pair)):
            layer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        input, target = (input_, target_) if target_.dim() else (input_.unsqueeze(0), target_.unsqueeze(0))
        if target_.dim() > 1:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if input.dim() != 2 or input.shape[0] != target.shape[0]:
            raise RuntimeError(
                "Input and target should have the same size in the batch dimension: expected input [N, "
                f"{self.in_features}] and target [N], got {tuple(input_.shape)} and {tuple(target_.shape)}"
            )
        if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < self.n_classes:
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range "
                f"[{target.min().item()}, {target.max().item()}] were found. "
            )
        shortlist, index = self.shortlist_size, target.clamp(max=self.shortlist_size - 1)
        parts = []
        for i in range(self.n_clusters):
            low, high = self.cutoffs[i : i + 2]
            rows = wt.nonzero((target >= low) & (target < high)).squeeze(1)
            if rows.numel():
                index = index.index_fill(0, rows, shortlist + i)
                scores = F.log_softmax(self.tail[i](input.index_select(0, rows)), 1)
                local = scores.gather(1, (target.index_select(0, rows) - low).unsqueeze(1)).squeeze(1)
                parts.append((rows, local))
        output = F.log_softmax(self.head(input), 1).gather(1, index.unsqueeze(1)).squeeze(1)
        for rows, local in parts:
            output = output.index_add(0, rows, local)
        loss = -output.mean()
        return _ASMoutput(output if target_.dim() else output.squeeze(0), loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """[N, I] -> the log probabilities of all classes, [N, n_classes].

        All clusters are computed, so that it costs as much as an ordinary softmax.

        Args:
            input: features [N, I].
        """
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i, tail in enumerate(self.tail):
            at = self.shortlist_size + i
            parts.append(F.log_softmax(tail(input), 1) + head[:, at : at + 1])
        return wt.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """[N, I] -> the likeliest class of each, [N]; tails are computed where the head asks for them.

        Args:
            input: features [N, I].

        Returns: class indices; the same as log_prob(input).argmax(1).
        """
        best = self.head(input).argmax(1)
        rows = wt.nonzero(best >= self.shortlist_size).squeeze(1)
        if rows.numel():
            best = best.index_copy(0, rows, self.log_prob(input.index_select(0, rows)).argmax(1))
        return best
