"""Training where ranks run out of inputs at different times: torch.distributed.algorithms.join's names.

A rank that has none left takes part in the others' collectives by hooks, until all are done.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from .. import collectives

if TYPE_CHECKING:
    from warptape.core.types import Device
    from warptape.distributed.state import Group

__all__ = ["Join", "JoinHook", "Joinable"]


class JoinHook:
    """What a rank does that has no inputs left.

    A subclass overrides both methods; neither needs to do anything.
    """

    def main_hook(self) -> None:
        """In place of each iteration of the others: the collectives that they make in it."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Once, when all ranks are done; the last joiners are those that had inputs for longest.

        Args:
            is_last_joiner: whether this rank is one of those.
        """


@dataclass
class _JoinConfig:
    enable: bool = False
    throw_on_early_termination: bool = False
    is_first_joinable: bool = False
    nonjoined: int = 0  # ranks that had inputs in this iteration
    kwargs: dict[str, Any] = field(default_factory=dict)


class Joinable:
    """Base of classes whose collectives of each iteration `Join` can take the place of.

    A subclass defines `join_hook`, `join_device` and `join_process_group`, and calls
    `Join.notify_join_context` in each iteration.
    """

    def __init__(self) -> None:
        super().__init__()
        self._join_config = _JoinConfig()

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook; gets what `Join` was given by name.

        Args:
            **kwargs: `Join`'s own, the same for all its objects.
        """
        raise NotImplementedError(f"{type(self).__name__}.join_hook")

    @property
    def join_device(self) -> Any:
        """Where the tensors of Join's own collectives are made."""
        raise NotImplementedError(f"{type(self).__name__}.join_device")

    @property
    def join_process_group(self) -> Any:
        """The ranks that join."""
        raise NotImplementedError(f"{type(self).__name__}.join_process_group")


class Join:
    """`with Join([ddp_model]): for batch in own_batches: ..`, where ranks have different numbers of batches.

    Each iteration of each rank must call the forward of the first joinable (or what else calls
    `Join.notify_join_context`) once. Costs one small all-reduce an iteration.

    Args:
        joinables: objects of one process group and device; further arguments by name go to their hooks.
        enable: False turns all of it off, where inputs are known to be even.
        throw_on_early_termination: all ranks raise RuntimeError as soon as one has no inputs left.

    Raises: ValueError for joinables that do not fit each other, TypeError for others.
    """

    def __init__(
        self,
        joinables: list[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        if not joinables:
            raise ValueError("The join context manager requires at least one joinable")
        for each in joinables:
            if not isinstance(each, Joinable):
                raise TypeError(f"Join: expected objects that are Joinable, got {type(each).__name__}")
        groups = {id(each.join_process_group): each.join_process_group for each in joinables}
        devices = {str(each.join_device): each.join_device for each in joinables}
        if len(groups) > 1:
            raise ValueError("Using join context manager with multiple process groups")
        if len(devices) > 1:
            raise ValueError("Using join context manager with multiple devices")
        self._joinables, self._enable = list(joinables), enable
        self._throw = throw_on_early_termination
        [self._group], [self._device] = groups.values(), devices.values()
        self._hooks = [each.join_hook(**kwargs) for each in joinables]
        self._kwargs = kwargs

    def __enter__(self) -> None:
        for i, each in enumerate(self._joinables):
            each._join_config = _JoinConfig(
                self._enable, self._throw, i == 0, self._group.size(), dict(self._kwargs)
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in self._joinables:
            each._join_config.is_first_joinable = False  # what runs here notifies nobody
        try:
            if self._enable and kind is None:
                self._shadow()
        finally:
            for each in self._joinables:
                each._join_config = _JoinConfig()

    def _shadow(self) -> None:
        """Stands in for the other ranks' iterations, then makes all ranks equal."""
        iterations, last = 0, True
        while True:
            left = _count(self._group, self._device, 0)
            if left == 0:
                break
            if self._throw:
                _agree_to_stop(self._group, self._device, True)
                raise RuntimeError(
                    "Detected at least one rank that exhausted inputs. Throwing across all ranks."
                )
            last, iterations = False, iterations + 1
            if iterations == 1000:
                warnings.warn(
                    f"Detected uneven input skew of greater than {iterations}. This means that rank "
                    f"{self._group.rank()} has at least {iterations} fewer inputs than other "
                    "currently-active ranks. This level of skew could lead to performance degradation "
                    "during training.",
                    stacklevel=3,
                )
            for each in self._joinables:
                each._join_config.nonjoined = left
            for hook in self._hooks:
                hook.main_hook()
        for hook in self._hooks:
            hook.post_hook(last)

    @staticmethod
    def notify_join_context(joinable: Joinable) -> Any:
        """Tells the ranks without inputs that this one begins an iteration. Returns None, for it waits; it
        does nothing outside of `Join`, and for all joinables but the first. Raises RuntimeError on all ranks
        when one has run out and Join was asked to."""
        config = getattr(joinable, "_join_config", None)
        if config is None or not (config.enable and config.is_first_joinable):
            return None
        group, device = joinable.join_process_group, joinable.join_device
        config.nonjoined = _count(group, device, 1)
        if config.throw_on_early_termination and config.nonjoined < group.size():
            _agree_to_stop(group, device, True)
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        return None


def _count(group: Group, device: Device, mine: int) -> int:
    """How many ranks begin an iteration."""
    active = wt.tensor(float(mine), device=device)
    collectives.all_reduce(active, group=group)
    return round(active.item())


def _agree_to_stop(group: Group, device: Device, stop: bool) -> None:
    """All ranks are here before any of them raises, so that none finds the others gone."""
    collectives.all_reduce(wt.tensor(float(stop), device=device), group=group)
