"""Cross-entropy of logits that ranks hold by parts of the vocabulary: the logits are never gathered.

"Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", section 3. Between
ranks go three numbers for a row: the largest logit, the sum of exponentials, the target's logit.

Shapes: N rows, V vocabulary, n ranks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ... import core as wt
from ... import distributed as dist
from ... import nn
from ...autograd import Function
from ...core import Tensor
from ...distributed import DeviceMesh
from ..dtensor.calls import to_full_tensor, without_partial
from ..dtensor.layout import Layout
from ..dtensor.placement import Partial, Placement, Replicate, Shard, check_mesh
from ..dtensor.tensor import HANDLERS, DTensor, plain, wrap


class _CrossEntropy(Function):
    """logits [N, own classes], of which this rank has those from `first`; target [N] -> losses [N], 0 for
    ignored rows."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        ignore_index: int,
        smoothing: float,
        first: int,
        size: int,
        group: Any,
    ) -> Tensor:
        width = logits.shape[1]
        place = target - first
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
        sums = wt.stack([z.sum(1), *parts])
        dist.all_reduce(sums, group=group)
        losses = sums[0].log() - (1 - smoothing) * sums[1]
        if smoothing:
            losses = losses - smoothing / size * sums[2]
        ctx.save_for_backward(z.div_(sums[0].unsqueeze(1)), place, away, ignored)
        ctx.smoothing, ctx.size = smoothing, size
        return losses.masked_fill(ignored, 0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if wt.is_grad_enabled():
            raise RuntimeError("vocab_parallel_cross_entropy cannot be differentiated twice")
        probabilities, place, away, ignored = ctx.saved_tensors
        g = g.masked_fill(ignored, 0)
        grad = probabilities * g.unsqueeze(1)
        at_target = (g * (ctx.smoothing - 1)).masked_fill(away, 0)
        grad = grad.scatter_add(1, place, at_target.unsqueeze(1))
        if ctx.smoothing:
            grad = grad - (g * (ctx.smoothing / ctx.size)).unsqueeze(1)
        return grad, *[None] * 6


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
    if logits.dtype != wt.float64:
        logits = logits.float()
    rows = target.flatten().long()
    size, first = logits.shape[1] * mesh.size(), logits.shape[1] * mesh.get_local_rank()
    losses = _CrossEntropy.apply(
        logits, rows, ignore_index, float(label_smoothing), first, size, mesh.get_group()
    )
    if reduction == "none":
        return losses.view(target.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / (rows != ignore_index).sum()


class VocabParallelCrossEntropy(nn.Module):
    """`vocab_parallel_cross_entropy` as a module, for a mesh of one axis.

    Args:
        mesh: of one axis, along which classes are split.
        ignore_index: a target that counts for nothing.
        reduction: 'mean', 'sum' or 'none'.
        label_smoothing: the share spread evenly over all classes.
    """

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


# ---- loss_parallel ----

_here = threading.local()  # ranks may be threads
_NAMES = (
    "input",
    "target",
    "weight",
    "size_average",
    "ignore_index",
    "reduce",
    "reduction",
    "label_smoothing",
)


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """Within it cross_entropy takes logits that are DTensors split by classes, along one axis of their mesh,
    and does not gather them. Rows may be split along other axes; then the target is a DTensor, too.

    The loss is replicated for "mean", which is over all rows of all ranks; for "sum" it is Partial() on axes
    that split rows; for "none" it lies as the target does.

    >>> from warptape.distributed.tensor import Shard, distribute_tensor
    >>> from warptape.distributed.tensor.parallel import loss_parallel
    >>> def run():
    ...     mesh = torch.distributed.init_device_mesh("cpu", (2,))
    ...     logits = distribute_tensor(torch.arange(8.0).reshape(2, 4), mesh, [Shard(1)])
    ...     with loss_parallel():
    ...         return F.cross_entropy(logits, torch.tensor([3, 0])).item()
    >>> [round(loss, 3) for loss in torch.distributed.simulate(2, run)]
    [1.94, 1.94]
    """
    before, _here.on = getattr(_here, "on", False), True
    try:
        yield
    finally:
        _here.on = before


@HANDLERS.handles("cross_entropy")
def _split_cross_entropy(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    named = dict(zip(_NAMES, args, strict=False)) | kwargs
    logits = named["input"]
    if not getattr(_here, "on", False) or not isinstance(logits, DTensor):
        return HANDLERS.other(func, args, kwargs)
    spec, dim = logits._spec, min(1, logits._spec.ndim - 1)
    axes = [axis for axis, p in enumerate(spec.placements) if p.is_shard(dim)]
    kind, smoothing = named.get("reduction", "mean"), float(named.get("label_smoothing", 0.0))
    weight = named.get("weight")
    if len(axes) != 1 or spec.size_before(axes[0]) != spec.shape[dim]:
        raise ValueError(
            f"loss_parallel: one axis is to split dim {dim} of the logits, got {spec.placements}"
        )
    if weight is not None and smoothing:
        raise NotImplementedError("loss_parallel: weight and label_smoothing together are not supported")
    axis, size = axes[0], spec.shape[dim]
    if -(-size // spec.mesh.size(axis)) * (spec.mesh.size(axis) - 1) >= size:
        raise ValueError(
            f"loss_parallel: {size} classes leave ranks of {spec.mesh} with none; use fewer ranks"
        )
    where = _target_placements(spec, axis, dim)
    target = _local_target(named["target"], spec, where)
    first = spec.regions()[dim][0][0]
    rows, x = target.flatten().long(), plain(logits).movedim(dim, -1).reshape(-1, plain(logits).shape[dim])
    ignored = named.get("ignore_index", -100)
    wide = x if x.dtype == wt.float64 else x.float()
    losses = _CrossEntropy.apply(wide, rows, ignored, smoothing, first, size, spec.mesh.get_group(axis))
    counted = (rows != ignored).to(losses.dtype)
    if weight is not None:
        counted = counted * to_full_tensor(weight).to(losses.dtype)[rows.masked_fill(rows == ignored, 0)]
        losses = losses * counted
    shape = (*spec.shape[:dim], *spec.shape[dim + 1 :])
    if kind == "none":
        return wrap(losses.to(x.dtype).view(target.shape), Layout(spec.mesh, where, shape, x.dtype))
    over = tuple(Partial() if p.is_shard() else p for p in where)
    total = Layout(spec.mesh, over, (), x.dtype)
    if kind == "sum":
        return wrap(losses.sum().to(x.dtype), total)
    count = counted.sum().detach()
    for each, p in enumerate(over):
        if isinstance(p, Partial):
            dist.all_reduce(count, group=spec.mesh.get_group(each))
    return without_partial(wrap((losses.sum() / count).to(x.dtype), total))


def _target_placements(spec: Layout, axis: int, dim: int) -> tuple[Placement, ...]:
    """Where the target lies, for logits that do so."""
    out: list[Placement] = []
    for i, p in enumerate(spec.placements):
        if i == axis or isinstance(p, Replicate):
            out.append(Replicate())
        elif isinstance(p, Shard):
            out.append(replace(p, dim=p.dim - (p.dim > dim)))
        else:
            raise ValueError(f"loss_parallel: logits are still to be summed, {spec.placements}")
    return tuple(out)


def _local_target(target: Tensor, spec: Layout, where: tuple[Placement, ...]) -> Tensor:
    """This rank's part of the target."""
    if isinstance(target, DTensor):
        return plain(target.redistribute(placements=where))
    if any(p.is_shard() for p in where):
        raise ValueError("loss_parallel: rows of the logits are split; make the target a DTensor, too")
    return target
