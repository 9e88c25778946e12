"""Steps that are recorded (`differentiable=True`), of the optimizers whose usual step is one fused call."""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape.core import Tensor


def check_recorded(differentiable: bool, master_weights: bool) -> None:
    """RuntimeError where both are asked for."""
    if differentiable and master_weights:
        raise RuntimeError("`master_weights` does not support `differentiable`")


def check_unscaled(optimizer: Any) -> None:
    """RuntimeError where a GradScaler drives the step: its factor is taken off by the fused calls alone."""
    if optimizer.found_inf is not None:
        raise RuntimeError("a recorded step (`differentiable=True`) takes no GradScaler")


def descend(p: Tensor, direction: Tensor, lr: float | Tensor) -> None:
    """``p -= lr * direction``; a rate that is a tensor has a gradient too."""
    if isinstance(lr, wt.Tensor):
        p.addcmul_(direction, lr.to(direction.device), value=-1)
    else:
        p.add_(direction, alpha=-lr)
