"""Averages of weights along a training: Izmailov et al., "Averaging weights leads to wider optima and better
generalization", algorithm 1; exponential averages: Polyak and Juditsky (1992)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.nn import Module
from warptape.nn.modules.batchnorm import _BatchNorm

from .lr_scheduler import LRScheduler
from .lr_scheduler.base import per_group

if TYPE_CHECKING:
    from warptape.core.types import Device
    from warptape.optim import Optimizer

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]


def get_ema_avg_fn(decay: float = 0.999) -> Callable[..., Any]:
    """average * decay + weight * (1 - decay).

    Args:
        decay: the share of the old average, in [0, 1].

    Raises: ValueError for another decay.

    >>> average = torch.optim.swa_utils.get_ema_avg_fn(0.9)
    >>> average(torch.tensor(1.0), torch.tensor(2.0), 0)
    tensor(1.1000)
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay}. Please provide a value in [0,1] range.")

    def average(averaged: wt.Tensor, weight: wt.Tensor, n: int | wt.Tensor) -> Any:
        return averaged * decay + weight * (1 - decay)

    return average


def get_swa_avg_fn() -> Callable[..., Any]:
    """The mean of all weights so far.

    From Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization" (2018).

    >>> average = torch.optim.swa_utils.get_swa_avg_fn()
    >>> average(torch.tensor(1.0), torch.tensor(4.0), 2)
    tensor(2.)
    """

    def average(averaged: wt.Tensor, weight: wt.Tensor, n: int | wt.Tensor) -> Any:
        return averaged + (weight - averaged) / (n + 1)

    return average


def _in_place(average: Callable[..., Any]) -> Callable[..., Any]:
    def update(averaged: Iterable[Any], weights: Iterable[Any], n: Any) -> None:
        for a, w in zip(averaged, weights):
            a.copy_(average(a, w, n))

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[..., Any]:
    """`get_ema_avg_fn` over lists, in place.

    Args:
        decay: the share of the old average, in [0, 1].

    Returns: a function of (averages, weights, number of averaged models).
    """
    return _in_place(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Callable[..., Any]:
    """`get_swa_avg_fn` over lists, in place.

    Returns: a function of (averages, weights, number of averaged models).
    """
    return _in_place(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of a model, as `module`, that holds averages of its parameters.

    Args:
        model: whose parameters are averaged.
        device: where the averages lie.
        avg_fn: (averaged, parameter, number averaged) to the new average; the mean unless given.
        multi_avg_fn: the same over lists, in place.
        use_buffers: average buffers, too; else they are copied.

    Raises:
        AssertionError: both functions.
    """

    n_averaged: Any

    def __init__(
        self,
        model: Module,
        device: Device = None,
        avg_fn: Callable[..., Any] | None = None,
        multi_avg_fn: Callable[..., Any] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", wt.tensor(0, dtype=wt.long, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The averaged model's.

        Args:
            *args, **kwargs: what the model takes.
        """
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Takes the model's present parameters into the averages.

        Args:
            model: of the same parameters, in the same order.
        """
        with wt.no_grad():
            kinds = (Module.parameters, Module.buffers) if self.use_buffers else (Module.parameters,)
            both = chain(*(zip(of(self.module), of(model)) for of in kinds))
            pairs = [(a, p.detach().to(a.device)) for a, p in both]
            floating = [(a, p) for a, p in pairs if a.is_floating_point()]
            if self.n_averaged == 0:
                for a, p in pairs:
                    a.copy_(p)
            elif self.multi_avg_fn is not None:
                self.multi_avg_fn([a for a, _ in floating], [p for _, p in floating], self.n_averaged)
            else:
                average = self.avg_fn or get_swa_avg_fn()
                for a, p in floating:
                    a.copy_(average(a, p, self.n_averaged.to(a.device)))
            if not self.use_buffers:
                for a, b in zip(self.module.buffers(), model.buffers()):
                    a.copy_(b.detach().to(a.device))
            self.n_averaged += 1


def update_bn(loader: Iterable[Any], model: Module, device: Device = None) -> None:
    """Sets the running statistics of all batch norms to those of one pass over the data. The model's mode and
    the norms' momentum stay."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    training = model.training
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # the plain mean of all batches
    model.train()
    try:
        with wt.no_grad():
            for batch in loader:
                x = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(x if device is None else x.to(device))
    finally:
        for m, momentum in zip(norms, momenta):
            m.momentum = momentum
        model.train(training)


class SWALR(LRScheduler):
    """Goes from the present learning rate to `swa_lr` in `anneal_epochs` steps, and stays there.

    Args:
        optimizer: whose rates are set.
        swa_lr: for all groups, or one for each.
        anneal_epochs: number of steps.
        anneal_strategy: "cos" or "linear".
        last_epoch: see the other schedules.

    Raises:
        ValueError: another strategy, or negative `anneal_epochs`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        for group, rate in zip(optimizer.param_groups, per_group(optimizer, swa_lr, "swa_lr")):
            group["swa_lr"] = rate.clone() if isinstance(rate, wt.Tensor) else rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must by one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _weight(self, epoch: int) -> float:
        """The share of swa_lr."""
        share = max(0.0, min(1.0, epoch / max(1, self.anneal_epochs)))
        return share if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * share)) / 2

    def _rates(self) -> list[Any]:
        before = self._weight(max(self.last_epoch - 1, 0)) if self.anneal_epochs else 1.0
        now = self._weight(self.last_epoch) if self.anneal_epochs else 1.0
        rates = []
        for group in self.optimizer.param_groups:
            target = group["swa_lr"]
            start = target if before == 1 else (group["lr"] - before * target) / (1 - before)
            rates.append(now * target + (1 - now) * start)
        return rates
