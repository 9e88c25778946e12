"""Optimizers of single parameters that step inside of backward, so that gradients need not be kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warptape.core import Tensor

from ... import _C
from ..modules.module import Module


def _apply_optimizer_in_backward(
    optimizer_class: type, params: Iterable[Any], optimizer_kwargs: dict[str, Any], register_hook: bool = True
) -> None:
    """Gives each parameter an optimizer of its own, which steps once the parameter's gradient is complete in
    backward; the gradient is None then. Under fully_shard and DistributedDataParallel that is once it is
    reduced.

    Args:
        register_hook: with False nothing steps until a DistributedDataParallel has the parameter.

    >>> w = torch.ones(2, requires_grad=True)
    >>> torch.distributed.optim._apply_optimizer_in_backward(torch.optim.SGD, [w], {"lr": 0.5})
    >>> (w * w).sum().backward()
    >>> w.tolist(), w.grad
    ([0.0, 0.0], None)
    """
    for p in params:
        known = hasattr(p, "_in_backward_optimizers")
        if not known:
            p._in_backward_optimizers = []
        p._in_backward_optimizers.append(optimizer_class([p], **optimizer_kwargs))
        if register_hook and "_in_backward_handles" not in p.__dict__:
            p._in_backward_handles = [p.register_post_accumulate_grad_hook(_step)]


def _step(parameter: Tensor) -> None:
    for optimizer in parameter._in_backward_optimizers:  # type: ignore[attr-defined]
        optimizer.step()
    parameter.grad = None


def _get_in_backward_optimizers(module: Module) -> list[Any]:
    """The optimizers that step inside of backward, of all parameters of a module."""
    return [optimizer for p in module.parameters() for optimizer in getattr(p, "_in_backward_optimizers", ())]


class BackwardOptimizers:
    """Steps of the optimizers that `_apply_optimizer_in_backward` gave to parameters, once gradients are
    averages; the gradients are None then."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self.parameters = [p for p in parameters if hasattr(p, "_in_backward_optimizers")]
        for p in self.parameters:  # which step with gradients of this rank alone
            for handle in p.__dict__.pop("_in_backward_handles", ()):
                handle.remove()
        self._queued = False

    def prepare(self, outputs: Iterable[Tensor]) -> None:
        """Has backward passes through `outputs` end with a step."""
        self._queued = False
        for output in outputs if self.parameters else ():
            if output.requires_grad:
                output.register_hook(self._queue)

    def _queue(self, gradient: Tensor) -> None:
        if not self._queued:
            self._queued = True
            queue = _C._queue_callback
            queue(lambda: queue(lambda: queue(self.step)))  # behind the reducers'

    def step(self) -> None:
        """One step of each."""
        self._queued = False
        for p in self.parameters:
            for optimizer in p._in_backward_optimizers:
                optimizer.step()
            p.grad = None
