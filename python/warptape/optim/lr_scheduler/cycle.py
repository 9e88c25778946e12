"""Cyclic schedules of rate and momentum: Smith, "Cyclical learning rates for training neural networks",
section 3; Smith and Topin, "Super-convergence", section 3 (one cycle).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from ..optimizer import Optimizer
from .base import LRScheduler, check_optimizer, functions_state, per_group


def _uses_beta1(optimizer: Optimizer) -> bool:
    """Whether the momentum to cycle is ``betas[0]``.

    Raises:
        ValueError: the optimizer has neither momentum nor betas.
    """
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
    return "betas" in optimizer.defaults


def _set_momentum(group: dict[str, Any], momentum: float, use_beta1: bool) -> None:
    if use_beta1:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum


def _annealing_cos(start: float, end: float, pct: float) -> float:
    """Half a cosine from ``start`` (pct 0) to ``end`` (pct 1)."""
    return end + (start - end) / 2.0 * (math.cos(math.pi * pct) + 1)


def _annealing_linear(start: float, end: float, pct: float) -> float:
    return (end - start) * pct + start


class OneCycleLR(LRScheduler):
    """Up from ``max_lr / div_factor`` to ``max_lr``, then down to the initial rate over ``final_div_factor``;
    the momentum goes the other way. Step it after every batch.

    Args:
        max_lr: peak, one for all groups or a list.
        total_steps: length of the cycle, or give ``epochs`` and ``steps_per_epoch``.
        pct_start: share of the cycle spent going up.
        anneal_strategy: "cos" or "linear".
        cycle_momentum, base_momentum, max_momentum: whether and between what the momentum (or beta1) moves.
        three_phase: come down to the initial rate as fast as it went up, and only then below it.

    Raises:
        ValueError: an option out of range, or more steps than the cycle has.

    From Smith and Topin, "Super-Convergence" (2017).

    Args:
        optimizer: the one whose rates are set.
        epochs, steps_per_epoch: their product is the length, without `total_steps`.
        div_factor: the first rate is `max_lr / div_factor`.
        final_div_factor: the last rate is the first one divided by it.
        last_epoch: step to resume from; -1 starts anew.

    >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0, momentum=0.9)
    >>> scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    >>> round(scheduler.get_last_lr()[0], 6)
    0.04
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        self.total_steps = _cycle_length(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, (float, int)) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self._schedule_phases = _phases(float(pct_start * self.total_steps), self.total_steps, three_phase)
        self._anneal_func_type = anneal_strategy
        max_lrs = per_group(optimizer, max_lr, "max_lr")
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _uses_beta1(optimizer)
            high = per_group(optimizer, max_momentum, "max_momentum")
            low = per_group(optimizer, base_momentum, "base_momentum")
        if last_epoch == -1:
            for i, group in enumerate(optimizer.param_groups):
                group["initial_lr"] = max_lrs[i] / div_factor
                group["max_lr"] = max_lrs[i]
                group["min_lr"] = group["initial_lr"] / final_div_factor
                if cycle_momentum:
                    _set_momentum(group, high[i], self.use_beta1)
                    group["max_momentum"], group["base_momentum"] = high[i], low[i]
        super().__init__(optimizer, last_epoch)

    def _rates(self) -> list[Any]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The specified number of total steps is {self.total_steps}"
            )
        anneal = _annealing_cos if self._anneal_func_type == "cos" else _annealing_linear
        start = 0.0
        phase = self._schedule_phases[0]
        for phase in self._schedule_phases:
            if step <= phase["end_step"]:
                break
            start = phase["end_step"]
        else:
            start = self._schedule_phases[-2]["end_step"]
        # Step total_steps itself lies past the last phase's end: it extrapolates, as it always has.
        pct = (step - start) / (phase["end_step"] - start)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(anneal(group[phase["start_lr"]], group[phase["end_lr"]], pct))
            if self.cycle_momentum:
                momentum = anneal(group[phase["start_momentum"]], group[phase["end_momentum"]], pct)
                _set_momentum(group, momentum, self.use_beta1)
        return rates


def _cycle_length(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is not None:
        if not isinstance(total_steps, int) or total_steps <= 0:
            raise ValueError(f"Expected positive integer total_steps, but got {total_steps}")
        return total_steps
    if epochs is None or steps_per_epoch is None:
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    for name, value in (("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"Expected positive integer {name}, but got {value}")
    return epochs * steps_per_epoch


def _phases(rise: float, total_steps: int, three_phase: bool) -> list[dict[str, Any]]:
    """The cycle's phases: where each ends and between which of the group's values it goes."""
    ends = [("initial_lr", "max_momentum"), ("max_lr", "base_momentum")]
    last = ("min_lr", "max_momentum")
    if three_phase:
        steps, stops = [rise - 1, 2 * rise - 2, total_steps - 1], [*ends, ends[0], last]
    else:
        steps, stops = [rise - 1, total_steps - 1], [*ends, last]
    names = ("start_lr", "start_momentum", "end_lr", "end_momentum")
    return [{"end_step": end, **dict(zip(names, a + b))} for end, a, b in zip(steps, stops, stops[1:])]


class CyclicLR(LRScheduler):
    """Up and down between ``base_lr`` and ``max_lr``; the momentum goes the other way. Step every batch.

    Args:
        step_size_up, step_size_down: batches of the two halves of a cycle; down defaults to up.
        mode: "triangular", "triangular2" (the height halves each cycle) or "exp_range" (times gamma**batch).
        scale_fn: own height function instead of ``mode``, of the cycle or the iteration as ``scale_mode``
            says.

    Raises:
        ValueError: an unknown mode, or a list of another length than the groups.

    From Smith, "Cyclical Learning Rates for Training Neural Networks" (2015), section 3.

    Args:
        optimizer: the one whose rates are set.
        base_lr, max_lr: the ends, one number or one for each group.
        gamma: of "exp_range".
        scale_mode: "cycle" or "iterations".
        cycle_momentum, base_momentum, max_momentum: whether and between what the momentum moves.
        last_epoch: step to resume from; -1 starts anew.

    >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0, momentum=0.9)
    >>> scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.5, step_size_up=4)
    >>> optimizer.step()
    >>> scheduler.step()
    >>> [round(lr, 6) for lr in scheduler.get_last_lr()]
    [0.2]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: Literal["cycle", "iterations"] = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        base_lrs = per_group(optimizer, base_lr, "base_lr")
        self.max_lrs = per_group(optimizer, max_lr, "max_lr")
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        up = float(step_size_up)
        down = up if step_size_down is None else float(step_size_down)
        self.total_size = up + down
        self.step_ratio = up / self.total_size
        self.mode, self.gamma = mode, gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode if scale_fn else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _uses_beta1(optimizer)
            self.base_momentums = per_group(optimizer, base_momentum, "base_momentum")
            self.max_momentums = per_group(optimizer, max_momentum, "max_momentum")
        if last_epoch == -1:
            for i, group in enumerate(optimizer.param_groups):
                group["lr"] = base_lrs[i]
                group["initial_lr"] = base_lrs[i]
                if cycle_momentum:
                    _set_momentum(group, self.max_momentums[i], self.use_beta1)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """Height of the cycle as a share of the whole, for cycle (or iteration) number ``x``.

        Args:
            x: the cycle's number, from 1, or the iteration's, as `scale_mode` says.
        """
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return 1 / (2.0 ** (x - 1)) if self.mode == "triangular2" else self.gamma**x

    def _rates(self) -> list[Any]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums):
                _set_momentum(group, high - (high - low) * height, self.use_beta1)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs)]

    def state_dict(self) -> dict[str, Any]:
        """All but the optimizer. Of an own scale function, its ``__dict__`` if it is a callable object.

        A plain function or lambda is left out: who loads the state must give it anew.
        """
        fn = self._scale_fn_custom
        saved = None if fn is None else functions_state([fn])[0]
        return {**super().state_dict(), "_scale_fn_custom": saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state; an own scale function stays this scheduler's.

        Args:
            state_dict: what ``state_dict()`` returned.
        """
        self.__dict__.update({key: value for key, value in state_dict.items() if key != "_scale_fn_custom"})
        saved = state_dict.get("_scale_fn_custom")
        if saved is not None and self._scale_fn_custom is not None:
            vars(self._scale_fn_custom).update(saved)
