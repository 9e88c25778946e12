"""Functions of nn.functional that take a Python function, which the core cannot call."""

from __future__ import annotations

from collections.abc import Callable

import warptape
from warptape import _C, Tensor

__all__ = ["triplet_margin_with_distance_loss"]


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
    for name, given in (("anchor", anchor), ("positive", positive), ("negative", negative)):
        if not isinstance(given, Tensor):
            raise TypeError(
                "triplet_margin_with_distance_loss(): "
                f"argument '{name}' must be Tensor, not {type(given).__name__}"
            )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, "
            f"but got: anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    distance = _C._nn.pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = warptape.minimum(far, distance(positive, negative))
    loss = (near - far + margin).clamp(min=0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
