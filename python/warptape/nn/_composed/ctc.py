"""Connectionist temporal classification ("Connectionist Temporal Classification: Labelling Unsegmented
Sequence Data with Recurrent Neural Networks", section 4.1). Legend: T steps, N batch, C classes, S labels."""

from __future__ import annotations

import math
from typing import Any

import warptape
from warptape import _C, Tensor
from warptape._arguments import same_device
from warptape.amp.autocast_mode import casts_inputs

__all__ = ["ctc_loss"]

_NEVER = -1e30  # the logarithm of no chance; finite, so that differences of two are no NaN


def _lengths(name: str, given: Any, batch: int, most: int, device: Any) -> Tensor:
    lengths = given if isinstance(given, Tensor) else warptape.tensor(given, dtype=_C.int64)
    lengths = lengths.to(device=device, dtype=_C.int64).reshape(-1)
    if lengths.shape[0] != batch:
        raise RuntimeError(f"ctc_loss: {name} must be of size batch_size, {batch}, got {lengths.shape[0]}")
    low, high = (int(lengths.min()), int(lengths.max())) if batch else (0, 0)
    if low < 0 or high > most:
        raise RuntimeError(
            f"ctc_loss: Expected {name} to have values from 0 to {most}, but got {low if low < 0 else high}"
        )
    return lengths


def _padded(targets: Tensor, lengths: Tensor) -> Tensor:
    """Labels that lie one sample after the other [sum of lengths] as rows [N, S]."""
    longest = int(lengths.max()) if lengths.numel() else 0
    starts = lengths.cumsum(0) - lengths
    places = starts.unsqueeze(1) + warptape.arange(longest, device=lengths.device)
    return targets[places.clamp(max=max(targets.shape[0] - 1, 0))] if targets.numel() else places * 0


def _negative_log_likelihood(
    log_probs: Tensor, labels: Tensor, steps: Tensor, lengths: Tensor, blank: int
) -> Tensor:
    """[N]: minus the logarithm of the sum over all paths, forward through time; none fits from 1e29 on."""
    batch, count = labels.shape
    inside = warptape.arange(count, device=labels.device) < lengths.unsqueeze(1)
    states = labels.new_full((batch, 2 * count + 1), blank)  # blank, label, blank, label, .., blank
    states[:, 1::2] = labels.where(inside, blank)
    skips = warptape.full(states.shape, _NEVER, dtype=log_probs.dtype, device=labels.device)
    skips[:, 2:] = skips[:, 2:].masked_fill((states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2]), 0.0)
    seen = log_probs.gather(2, states.expand(log_probs.shape[0], -1, -1))  # [T, N, 2S + 1]
    start = warptape.full(states.shape, _NEVER, dtype=log_probs.dtype, device=labels.device)
    start[:, :2] = 0.0
    shortest = int(steps.min())
    alpha = start + seen[0] if len(seen) else start
    # The gradient of a part is a whole with zeros: parts of parts keep that from growing with T squared.
    rows = [row for block in seen.split(16) for row in block.unbind(0)]
    for t, row in enumerate(rows[1:], 1):
        before = _C._nn.pad(alpha, (2, 0), value=_NEVER)
        stay = warptape.logaddexp(alpha, before[:, 1:-1])
        new = warptape.logaddexp(stay, before[:, :-2] + skips) + row
        alpha = new if t < shortest else warptape.where((t < steps).unsqueeze(1), new, alpha)
    last = (2 * lengths).unsqueeze(1)
    ends = alpha.gather(1, warptape.cat([last, (last - 1).clamp(min=0)], 1))
    without = (lengths == 0).unsqueeze(1) & warptape.tensor([False, True], device=lengths.device)
    ends = ends.masked_fill(without, _NEVER)
    loss = -warptape.logaddexp(ends[:, 0], ends[:, 1])
    nothing = warptape.where(lengths == 0, 0.0, 1e30).to(loss.dtype)  # of no steps at all
    return warptape.where(steps > 0, loss, nothing)


@casts_inputs(_C.float32)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """log_probs [T, N, C] or [T, C], labels [N, S] or one after the other in 1-D, and how many steps and
    labels of each sample count -> the negative log likelihood of the labels.

    'mean' divides each by its number of labels first. A sample that no path fits has an infinite loss, with
    `zero_infinity` none; its gradient is 0. As in PyTorch the gradient takes log_probs to come from
    log_softmax.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if not log_probs.is_floating_point():
        raise _C.DtypeError(f"ctc_loss: expected floating log_probs, got {log_probs.dtype}")
    if targets.is_floating_point():
        raise _C.DtypeError(f"ctc_loss: targets must be integral, got {targets.dtype}")
    same_device("ctc_loss", log_probs, targets)
    single = log_probs.dim() == 2
    scores = log_probs.unsqueeze(1) if single else log_probs
    if scores.dim() != 3:
        raise _C.ShapeError(f"ctc_loss: expected log_probs [T, N, C] or [T, C], got {tuple(log_probs.shape)}")
    longest, batch, classes = scores.shape
    if not 0 <= blank < classes:
        raise RuntimeError(f"ctc_loss: blank must be in label range, 0 to {classes - 1}, got {blank}")
    steps = _lengths("input_lengths", input_lengths, batch, longest, scores.device)
    rows = targets.dim() == 2 and not single
    most = targets.shape[1] if rows else targets.numel()
    lengths = _lengths("target_lengths", target_lengths, batch, most, scores.device)
    labels = (targets if rows else _padded(targets.reshape(-1), lengths)).long()
    loss = _negative_log_likelihood(scores, labels, steps, lengths, blank)
    # PyTorch's gradient has exp(log_probs) beside the true one: it vanishes behind log_softmax.
    within = warptape.arange(longest, device=steps.device).unsqueeze(1) < steps
    extra = warptape.where(within.unsqueeze(2), scores, _NEVER).exp().sum((0, 2))
    loss = warptape.where(loss > 1e29, 0.0 if zero_infinity else math.inf, loss + (extra - extra.detach()))
    if reduction == "mean":
        return (loss / lengths.clamp(min=1).to(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss[0] if single else loss
