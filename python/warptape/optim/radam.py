"""RAdam: Liu et al., "On the variance of the adaptive learning rate and beyond", algorithm 2."""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, check_betas, check_range, options

__all__ = ["RAdam"]


class RAdam(PerParameter):
    """Adam that divides by the second average only once its variance is tractable, and rectified.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: learning rate.
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root of the second average.
        weight_decay: L2 factor, or the share of ``p`` taken off per ``lr`` if ``decoupled_weight_decay``.
        decoupled_weight_decay: AdamW's weight decay.
        foreach, capturable, maximize, differentiable: as in :class:`Adam`.

    Raises:
        ValueError: an option out of range.

    >>> optimizer = torch.optim.RAdam([torch.ones(1, requires_grad=True)], lr=1e-3)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_range("epsilon value", eps)
        check_betas(betas)
        super().__init__(params, options(locals()))

    def _fresh(self, group, p):
        return {"exp_avg": wt.zeros_like(p), "exp_avg_sq": wt.zeros_like(p)}

    def _advance(self, group, p, g, state, t, lr):
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(g, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        rate, bias2 = lr / (1 - beta1**t), 1 - beta2**t
        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 * t * beta2**t / bias2
        if rho <= 5:
            p.add_(mean, alpha=-rate)
            return
        rectified = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
        p.addcdiv_(mean, square.sqrt().add(group["eps"]), value=-rate * bias2**0.5 * rectified)
