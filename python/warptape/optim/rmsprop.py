"""RMSprop: Tieleman and Hinton, "Neural networks for machine learning", lecture 6.5 (2012); centered: Graves,
"Generating sequences with recurrent neural networks", equations 38 to 45 (without its damping of the root).
"""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, check_range, options

__all__ = ["RMSprop"]


class RMSprop(PerParameter):
    """Steps divided by the root of a running average of the squared gradient.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: learning rate.
        alpha: decay of the averages.
        eps: added to the root.
        weight_decay: L2 factor.
        momentum: factor on the velocity.
        centered: divide by an estimate of the standard deviation.
        capturable, foreach, maximize, differentiable: as in :class:`Adam`.

    Raises:
        ValueError: an option out of range.

    >>> optimizer = torch.optim.RMSprop([torch.ones(1, requires_grad=True)], lr=0.01)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_range("epsilon value", eps)
        check_range("momentum value", momentum)
        check_range("alpha value", alpha)
        super().__init__(params, options(locals()))

    def _fresh(self, group, p):
        state = {"square_avg": wt.zeros_like(p)}
        if group["momentum"] > 0:
            state["momentum_buffer"] = wt.zeros_like(p)
        if group["centered"]:
            state["grad_avg"] = wt.zeros_like(p)
        return state

    def _advance(self, group, p, g, state, t, lr):
        alpha = group["alpha"]
        square = state["square_avg"].mul_(alpha).addcmul_(g, g, value=1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"].lerp_(g, 1 - alpha)
            square = square.addcmul(mean, mean, value=-1)
        root = square.sqrt().add(group["eps"])
        if group["momentum"] > 0:
            p.add_(state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(g, root), alpha=-lr)
        else:
            p.addcdiv_(g, root, value=-lr)
