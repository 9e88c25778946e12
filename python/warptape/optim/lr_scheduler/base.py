"""The base of the schedulers: counts epochs, asks the subclass for the rates and writes them into the groups.

Most schedules are written as a recurrence on the group's present rate ("chainable"), so that several
schedulers, or a user, may change the same rate. Where a closed form exists it serves ``step(epoch)``.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ..optimizer import Optimizer

_ORDER = "https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"


def _copied(value: float | Tensor) -> float | Tensor:
    return value.clone() if isinstance(value, wt.Tensor) else value


def set_option(group: dict[str, Any], name: str, value: Any) -> None:
    """Writes an option; one that is kept as a tensor is filled in place, since others may hold it.

    Args:
        group: of an optimizer's param_groups.
        name: as "lr" or "momentum".
        value: a number, or a one-element tensor.
    """
    current = group.get(name)
    if isinstance(current, wt.Tensor):
        current.fill_(float(value))
    else:
        group[name] = value


def check_optimizer(optimizer: object) -> None:
    """TypeError for anything else.

    Args:
        optimizer: what a scheduler's constructor was given.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def per_group(optimizer: Optimizer, value: Any, name: str) -> list[Any]:
    """``value`` as a list with one entry per parameter group.

    Raises:
        ValueError: a list of another length.
    """
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. "
            f"{name} has {len(value)} values, param_groups has {count}."
        )
    return list(value)


def functions_state(functions: Sequence[Callable]) -> list[Any]:
    """What can be saved of user functions: an object's ``__dict__``; None for a function or lambda.

    Args:
        functions: user functions, or objects with `__call__`.

    Returns: one entry for each function.
    """
    plain = (types.FunctionType, types.BuiltinFunctionType, functools.partial)
    return [None if isinstance(f, plain) else dict(vars(f)) for f in functions]


class LRScheduler:
    """Base class. A subclass defines ``get_lr()``: the list of rates, one per group, for ``self.last_epoch``.

    Args:
        optimizer: whose ``param_groups[i]["lr"]`` is scheduled.
        last_epoch: epoch to resume from; -1 starts anew and takes the present rates as the initial ones.

    Raises:
        TypeError: ``optimizer`` is no Optimizer.
        KeyError: resuming, and a group has no ``initial_lr``.
    """

    _get_lr_called_within_step = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with "
                    "last_epoch >= 0; load the optimizer's state dict first, or start with last_epoch=-1"
                )
        self.base_lrs: list[Any] = [_copied(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._watch_optimizer()
        self._initial_step()

    def _watch_optimizer(self) -> None:
        """Starts the check of the order of the two step() calls (see ``_warn_order``)."""
        optimizer = self.optimizer
        if not getattr(optimizer.step, "hooked", False):
            # step was replaced on the object: count the calls of the replacement.
            replaced = optimizer.step

            @functools.wraps(replaced)
            def counted(*args: Any, **kwargs: Any) -> Any:
                optimizer._opt_called = True
                return replaced(*args, **kwargs)

            counted.hooked = True  # type: ignore[attr-defined]
            optimizer.step = counted  # type: ignore[method-assign]
        if "_scheduled" not in optimizer.__dict__:
            optimizer._scheduled = True  # type: ignore[attr-defined]
            optimizer._opt_called = False

    def _warn_order(self) -> None:
        if not getattr(self.optimizer.step, "hooked", False):
            warnings.warn(
                "Seems like `optimizer.step()` has been overridden after learning rate scheduler "
                "initialization. Please, make sure to call `optimizer.step()` before `lr_scheduler.step()`. "
                f"See {_ORDER}",
                UserWarning,
                stacklevel=3,
            )
        elif not self.optimizer._opt_called:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in the opposite "
                f"order: otherwise the first value of the learning rate schedule is skipped. See {_ORDER}",
                UserWarning,
                stacklevel=3,
            )

    def _initial_step(self) -> None:
        """Sets the rates of epoch 0 (or of the epoch after ``last_epoch`` when resuming)."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def state_dict(self) -> dict[str, Any]:
        """All of the scheduler but the optimizer.

        It can be pickled where all attributes can.
        """
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what ``state_dict()`` returned. Call it after loading the optimizer's.

        Args:
            state_dict: all entries become attributes.
        """
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list[Any]:
        """The rates that the last ``step`` set, one per group.

        They are numbers, or tensors where the optimizer keeps its rates as tensors.
        """
        return self._last_lr

    def get_lr(self) -> list[Any]:
        """The rates for ``self.last_epoch``, one per group. Call ``get_last_lr()`` from outside.

        It may read the present rates from the groups, so that a call outside of ``step`` warns.
        """
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
                UserWarning,
                stacklevel=2,
            )
        return self._rates()

    def _rates(self) -> list[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr()")

    def step(self, epoch: int | None = None) -> None:
        """Goes to the next epoch, or to ``epoch`` (deprecated), and writes its rates into the groups.

        >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
        >>> optimizer.step()
        >>> scheduler.step()
        >>> optimizer.param_groups[0]["lr"]
        0.1
        """
        if self._step_count == 1:
            self._warn_order()
        self._step_count += 1
        if epoch is not None:
            warnings.warn(
                "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where "
                "possible. Please use `scheduler.step()` to step the scheduler.",
                UserWarning,
                stacklevel=2,
            )
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        get = self.get_lr
        if epoch is None:
            self.last_epoch += 1
        else:
            self.last_epoch = epoch
            get = getattr(self, "_get_closed_form_lr", get)
        self._set_rates(get)

    def _set_rates(self, get: Callable[[], Sequence[Any]]) -> None:
        self._get_lr_called_within_step = True
        try:
            rates = get()
        finally:
            self._get_lr_called_within_step = False
        for group, rate in zip(self.optimizer.param_groups, rates):
            set_option(group, "lr", rate)
        self._last_lr: list[Any] = self._current()

    def _current(self) -> list[Any]:
        """The groups' present rates."""
        return [_copied(group["lr"]) for group in self.optimizer.param_groups]

    def _times(self, factor: float) -> list[Any]:
        """The groups' present rates times ``factor``."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]
