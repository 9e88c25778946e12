"""Schedulers made of schedulers: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ..optimizer import Optimizer
from .base import LRScheduler, set_option
from .plateau import ReduceLROnPlateau


class _Composed(LRScheduler):
    """Checks the parts, and saves each part's state inside its own."""

    _schedulers: list[LRScheduler]

    def _take(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer) -> None:
        name = type(self).__name__
        for i, part in enumerate(schedulers):
            kind = type(part).__name__
            if not hasattr(part, "optimizer"):
                raise TypeError(f"{name} at index {i} should have `optimizer` as its attribute, got {kind}.")
            if isinstance(part, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional kwargs "
                    f"to be specified when calling `step`, but got one at index {i} in the given schedulers "
                    "sequence."
                )
            if part.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but got scheduler "
                    f"{kind} at index {i} whose {type(part.optimizer).__name__} is a different one"
                )
        self._schedulers = list(schedulers)
        self.optimizer = optimizer

    def _update_lr(self, epoch: int | None = None) -> None:
        # An enclosing SequentialLR hands over: begin anew on the initial rates. The parts stand undone.
        _reset_rates(self.optimizer)
        self._initial_step()

    def state_dict(self) -> dict[str, Any]:
        """All but the optimizer; the parts' states are in ``"_schedulers"``.

        Loading it into a scheduler of the same parts restores all.
        """
        return {**super().state_dict(), "_schedulers": [part.state_dict() for part in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the state of the same composition.

        Raises:
            ValueError: the number of parts differs.
        """
        saved = state_dict["_schedulers"]
        if len(saved) != len(self._schedulers):
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: expected the states of {len(self._schedulers)} "
                f"schedulers, got {len(saved)}; build the same composition before loading"
            )
        self.__dict__.update({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for part, state in zip(self._schedulers, saved):
            part.load_state_dict(state)


class SequentialLR(_Composed):
    """Runs ``schedulers[i]`` from epoch ``milestones[i - 1]`` up to ``milestones[i]``; each starts at 0.

    Raises:
        ValueError: no scheduler, ``len(milestones) != len(schedulers) - 1``, another optimizer, or a
            ReduceLROnPlateau among them.

    Args:
        optimizer: the one that all schedulers have.
        schedulers: in the order in which they run.
        milestones: ascending epochs, one fewer than schedulers.
        last_epoch: the epoch that it has before its first step.

    >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0)
    >>> warm = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=2)
    >>> decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    >>> scheduler, rates = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, decay], [2]), []
    >>> for _ in range(4):
    ...     rates.append(scheduler.get_last_lr()[0])
    ...     optimizer.step()
    ...     scheduler.step()
    >>> rates
    [0.1, 0.1, 1.0, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(schedulers) < 1:
            raise ValueError("SequentialLR expects at least one scheduler, but got no scheduler.")
        self._take(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number "
                f"of milestone points, but got number of schedulers {len(schedulers)} and the number of "
                f"milestones to be equal to {len(milestones)}"
            )
        self._milestones = list(milestones)
        self.last_epoch = last_epoch
        # Each part has made its initial step on the shared rate. Undo them all; then the first makes its own.
        _reset_rates(optimizer)
        for part in self._schedulers:
            _undo_initial_step(part)
        self._initial_step()

    def _initial_step(self) -> None:
        self.last_epoch += 1
        self._schedulers[0]._initial_step()
        self._last_lr = self._schedulers[0].get_last_lr()

    def step(self) -> None:  # type: ignore[override]
        """Goes to the next epoch, handing over to the next scheduler at a milestone.

        At a milestone the next scheduler begins at its own epoch 0.
        """
        self.last_epoch += 1
        at = bisect_right(self._milestones, self.last_epoch)
        part = self._schedulers[at]
        if at > 0 and self._milestones[at - 1] == self.last_epoch:
            part._update_lr(0)
        else:
            part.step()
        self._last_lr = part.get_last_lr()


def _reset_rates(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        set_option(group, "lr", group["initial_lr"])


def _undo_initial_step(scheduler: LRScheduler) -> None:
    for part in getattr(scheduler, "_schedulers", ()):
        _undo_initial_step(part)
    if hasattr(scheduler, "last_epoch"):
        scheduler.last_epoch -= 1


class ChainedScheduler(_Composed):
    """Steps all ``schedulers`` at once on the same rate: their factors multiply.

    Raises:
        ValueError: no scheduler, another optimizer, or a ReduceLROnPlateau among them.

    Args:
        schedulers: they are stepped in this order.
        optimizer: the one that all schedulers have; that of the first if None.

    >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0)
    >>> half = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=9)
    >>> decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    >>> scheduler = torch.optim.lr_scheduler.ChainedScheduler([half, decay])
    >>> optimizer.step()
    >>> scheduler.step()
    >>> scheduler.get_last_lr()
    [0.25]
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if len(schedulers) < 1:
            raise ValueError(
                "ChainedScheduler expects at least one scheduler to be chained, but got no scheduler."
            )
        first: Any = getattr(schedulers[0], "optimizer", None)
        self._take(schedulers, optimizer or first)
        self._last_lr = self._current()

    def _initial_step(self) -> None:
        for part in self._schedulers:
            part._initial_step()
        self._last_lr = self._current()

    def step(self) -> None:  # type: ignore[override]
        """Steps every scheduler.

        The rate that the last one leaves is what `get_last_lr` returns.
        """
        for part in self._schedulers:
            part.step()
        self._last_lr = self._current()
