"""What the groups of one model do in a pass: which is whole, which comes next, which gradients travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import _C
from ... import core as wt
from .group import ParameterGroup


class Progress:
    """Of all groups under one root. All ranks run the same modules in the same order, so they take the same
    decisions here.

    Forward puts together the next group of the last pass while a module computes, backward the one before;
    so two are whole at a time, and gradients of one travel while the next ones are computed.
    """

    def __init__(self) -> None:
        self.groups: list[ParameterGroup] = []
        self.order: list[ParameterGroup] = []  # as their forward began in this pass
        self.last_order: list[ParameterGroup] = []
        self.ended: list[ParameterGroup] = []  # as their forward ended
        self.backward = False
        self.travelling: ParameterGroup | None = None
        self.optimizer_event: Any = None  # after which shards may be read

    def begin(self) -> None:
        """A forward pass of the root begins."""
        if self.optimizer_event is not None:
            self.optimizer_event.wait()
            self.optimizer_event = None
        if self.backward:
            if in_backward():
                return  # an activation checkpoint runs it again
            self.forget()  # the last backward pass ended with an error
        for group in self.groups:
            # Left whole by a forward pass without backward: an optimizer may have changed the shards since.
            if not group.fresh and group.reshard_after_backward:
                group.reshard()
        self.last_order, self.order, self.ended = self.order, [], []

    def forget(self) -> None:
        """What a backward pass that ended with an error has left."""
        self.backward, self.travelling = False, None
        for group in self.groups:
            group.reducing = None
            group.arrived.clear()
            if group.host is not None:
                group.host.pending.clear()
            for entry in group.entries:
                entry.full.grad = None

    def enter(self, group: ParameterGroup, ahead: Sequence[ParameterGroup] | None) -> None:
        """A module's forward begins; `ahead` are the groups to put together meanwhile, None for the next.

        Args:
            group: the module's parameters.
            ahead: groups, or None.
        """
        group.unshard()
        group.fresh = False
        if self.backward:
            return
        at = len(self.order)
        self.order.append(group)
        if ahead is None:
            ahead = self.last_order[at + 1 : at + 2] if self.last_order[at : at + 1] == [group] else []
        for each in ahead:
            each.start()

    def leave(self, group: ParameterGroup) -> None:
        """A module's forward ended.

        Args:
            group: the module's parameters.
        """
        if self.backward:
            return  # it is needed right away
        self.ended.append(group)
        if not wt.is_grad_enabled():
            group.reshard()
        elif group.reshard_after_forward:
            group.leave_forward()

    def enter_backward(self, group: ParameterGroup, ahead: Sequence[ParameterGroup] | None) -> None:
        """The gradient of a module's output is there.

        Args:
            group: the module's parameters.
            ahead: groups, or None.
        """
        self._note_backward()
        if group.unshard_in_backward:
            group.unshard()
        if ahead is None:
            at = len(self.ended) - 1 - self.ended[::-1].index(group) if group in self.ended else 0
            ahead = self.ended[max(at - 1, 0) : at]
        for each in ahead:
            if each.unshard_in_backward:
                each.start()

    def arrived(self, group: ParameterGroup) -> None:
        """The gradient of one of its parameters is complete.

        Args:
            group: the parameter's.
        """
        self._note_backward()
        trained = group.trained()
        if len(group.arrived) == trained:
            if not group.reduces_unused:  # else at the end, as on ranks where some do not come
                self._let_travel(group)
            if trained == len(group.entries) and group.reshard_after_backward:
                group.reshard()

    def inputs_done(self, group: ParameterGroup) -> None:
        """Backward has left the module: nothing there needs frozen parameters any more.

        Args:
            group: the module's parameters.
        """
        if group.reshard_after_backward:
            group.reshard()

    def _let_travel(self, group: ParameterGroup | None) -> None:
        before, self.travelling = self.travelling, group
        if before is not None:
            before.finish_reducing()
        if group is not None:
            group.reduce()

    def _note_backward(self) -> None:
        if not self.backward:
            self.backward = True
            _C._queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self.backward = False
        for group in self.groups:
            late = group.sync and group.has_left()
            if group.arrived or late:  # some parameters had no part in the loss
                self._let_travel(group)
        self._let_travel(None)
        for group in self.groups:
            group.settle()
            if group.reshard_after_backward or group.gathering is not None:
                group.reshard()


def in_backward() -> bool:
    """Whether a backward pass is at work, so that a forward one is an activation checkpoint's again."""
    try:
        _C._queue_callback(lambda: None)
    except RuntimeError:
        return False
    return True
