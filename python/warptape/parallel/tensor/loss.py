"""Cross-entropy of logits that ranks hold by parts of the vocabulary: the logits are never gathered.

"Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", section 3. Between
ranks go three numbers for a row: the largest logit, the sum of exponentials, the target's logit.

Shapes: N rows, V vocabulary, n ranks.
"""

from __future__ import annotations

from typing import Any

import warptape
import warptape.distributed as dist

from ... import nn
from ..._tensor import Tensor
from ...autograd import Function
from ...distributed import DeviceMesh
from .placement import check_mesh


class _CrossEntropy(Function):
    """logits [N, V / n], target [N] -> losses [N], 0 for ignored rows."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, ignore_index: int, smoothing: float, mesh: DeviceMesh
    ) -> Tensor:
        rank, ranks, group = mesh.get_local_rank(), mesh.size(), mesh.get_group()
        width = logits.shape[1]
        size, place = width * ranks, target - rank * width
        ignored = target == ignore_index
        # What lies on another rank reads element 0; what lies nowhere is left for gather to refuse.
        away = ignored | ((target >= 0) & (target < size) & ((place < 0) | (place >= width)))
        place = place.masked_fill(away, 0).unsqueeze(1)  # [N, 1]
        z = logits.detach()
        own = z.gather(1, place).squeeze(1)
        top = z.amax(1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group)
        z = z - top.unsqueeze(1)
        parts = [(own - top).masked_fill(away, 0)] + ([z.sum(1)] if smoothing else [])
        z = z.exp_()
        sums = warptape.stack([z.sum(1), *parts])
        dist.all_reduce(sums, group=group)
        losses = sums[0].log() - (1 - smoothing) * sums[1]
        if smoothing:
            losses = losses - smoothing / size * sums[2]
        ctx.save_for_backward(z.div_(sums[0].unsqueeze(1)), place, away, ignored)
        ctx.smoothing, ctx.size = smoothing, size
        return losses.masked_fill(ignored, 0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if warptape.is_grad_enabled():
            raise RuntimeError("vocab_parallel_cross_entropy cannot be differentiated twice")
        probabilities, place, away, ignored = ctx.saved_tensors
        g = g.masked_fill(ignored, 0)
        grad = probabilities * g.unsqueeze(1)
        at_target = (g * (ctx.smoothing - 1)).masked_fill(away, 0)
        grad = grad.scatter_add(1, place, at_target.unsqueeze(1))
        if ctx.smoothing:
            grad = grad - (g * (ctx.smoothing / ctx.size)).unsqueeze(1)
        return grad, None, None, None, None


def vocab_parallel_cross_entropy(
    input: Tensor,
    target: Tensor,
    mesh: DeviceMesh,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """cross_entropy of logits [*, V / n], this rank's part of the vocabulary, for class indices [*].

    Computed in float32 at least. The loss is the same on all ranks; "mean" is over what is not ignored.
    Raises ValueError for shapes that do not fit, IndexError for a target outside of the vocabulary.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if target.shape != input.shape[:-1] or target.is_floating_point():
        raise ValueError(
            f"vocab_parallel_cross_entropy: expected logits [*, V / {mesh.size()}] and class indices [*], "
            f"got {list(input.shape)} and {target.dtype} {list(target.shape)}"
        )
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be between 0.0 and 1.0, got {label_smoothing}")
    logits = input.flatten(0, -2) if input.ndim > 1 else input.unsqueeze(0)
    if logits.dtype != warptape.float64:
        logits = logits.float()
    rows = target.flatten().long()
    losses = _CrossEntropy.apply(logits, rows, ignore_index, float(label_smoothing), mesh)
    if reduction == "none":
        return losses.view(target.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / (rows != ignore_index).sum()


class VocabParallelCrossEntropy(nn.Module):
    """`vocab_parallel_cross_entropy` as a module, for a mesh of one axis."""

    def __init__(
        self,
        mesh: DeviceMesh,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.mesh = check_mesh(mesh, "VocabParallelCrossEntropy")
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy(
            input,
            target,
            self.mesh,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
