"""Lowers the rate when a metric stops getting better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ..optimizer import Optimizer
from .base import LRScheduler, check_optimizer, set_option

if TYPE_CHECKING:
    from warptape.core import Tensor


class ReduceLROnPlateau(LRScheduler):
    """``lr *= factor`` after more than ``patience`` epochs without a better metric.

    Args:
        mode: "min" if the metric should fall, "max" if it should rise.
        factor: below 1.
        patience: epochs without progress that are let pass.
        threshold: what counts as progress, as a share of the best ("rel") or absolutely ("abs").
        cooldown: epochs after a reduction in which bad ones are not counted.
        min_lr: lower bound, one for all groups or a list.
        eps: reductions smaller than this are left out.

    Raises:
        ValueError: ``factor`` of 1 or more, an unknown mode, or ``min_lr`` of another length.

    Args:
        optimizer: the one whose rates are set.
        threshold_mode: "rel" or "abs".

    >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0)
    >>> scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    >>> for loss in (3.0, 3.0):
    ...     scheduler.step(loss)
    >>> scheduler.get_last_lr()
    [0.1]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: list[float] | float = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        check_optimizer(optimizer)
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        groups = len(optimizer.param_groups)
        self.factor, self.optimizer = factor, optimizer
        if isinstance(min_lr, (list, tuple)):
            if len(min_lr) != groups:
                raise ValueError(f"expected {groups} min_lrs, got {len(min_lr)}")
            self.default_min_lr: float | None = None
            self.min_lrs = list(min_lr)
        else:
            self.default_min_lr = min_lr
            self.min_lrs = [min_lr] * groups
        self.patience, self.cooldown, self.eps = patience, cooldown, eps
        self.last_epoch = 0
        self._last_lr = self._current()
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self._reset()

    def _reset(self) -> None:
        """Forgets the best metric and all counts."""
        self.best = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @property
    def in_cooldown(self) -> bool:
        """Whether bad epochs are not being counted now.

        They are not counted for `cooldown` epochs after each reduction.
        """
        return self.cooldown_counter > 0

    def step(self, metrics: Tensor | float, epoch: int | None = None) -> None:  # type: ignore[override]
        """Takes this epoch's metric (a number or a one-element tensor) and lowers the rates if it is time.

        Args:
            metrics: as the validation loss of the epoch.
            epoch: the epoch's number; the last one plus 1 if None.
        """
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._current()

    def _is_better(self, a: float, best: float) -> bool:
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "rel":
            return sign * a > sign * best * (1.0 + sign * self.threshold)
        return sign * a > sign * best + self.threshold

    def _reduce_lr(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"ReduceLROnPlateau: expected {len(self.min_lrs)} parameter groups as in min_lr, got "
                    f"{len(groups)}; add the new groups' bound to min_lrs"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, low in zip(groups, self.min_lrs):
            old = float(group["lr"])
            new = max(old * self.factor, low)
            if old - new > self.eps:
                set_option(group, "lr", new)
