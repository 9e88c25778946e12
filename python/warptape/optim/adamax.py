"""Adamax: Kingma and Ba, "Adam: a method for stochastic optimization", algorithm 2."""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, check_betas, check_range, options

__all__ = ["Adamax"]


class Adamax(PerParameter):
    """Adam with a decaying maximum of the gradient's size in place of the root.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: learning rate.
        betas: decay of the average and of the maximum, each in [0, 1).
        eps: added to the gradient's size.
        weight_decay: L2 factor.
        foreach, capturable, maximize, differentiable: as in :class:`Adam`.

    Raises:
        ValueError: an option out of range.

    >>> optimizer = torch.optim.Adamax([torch.ones(1, requires_grad=True)], lr=2e-3)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_range("epsilon value", eps)
        check_betas(betas)
        super().__init__(params, options(locals()))

    def _fresh(self, group, p):
        return {"exp_avg": wt.zeros_like(p), "exp_inf": wt.zeros_like(p)}

    def _advance(self, group, p, g, state, t, lr):
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(g, 1 - beta1)
        largest = (state["exp_inf"] * beta2).maximum(g.abs().add_(group["eps"]))
        state["exp_inf"].copy_(largest)
        p.addcdiv_(mean, largest, value=-lr / (1 - beta1**t))
