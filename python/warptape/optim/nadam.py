"""NAdam: Dozat, "Incorporating Nesterov momentum into Adam", algorithm 2 with the schedule of section 3."""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, check_betas, check_range, options

__all__ = ["NAdam"]


class NAdam(PerParameter):
    """Adam with Nesterov's look ahead.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: learning rate.
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root of the second average.
        weight_decay: L2 factor, or the share of ``p`` taken off per ``lr`` if ``decoupled_weight_decay``.
        momentum_decay: how fast the momentum approaches ``betas[0]``.
        decoupled_weight_decay: AdamW's weight decay.
        foreach, capturable, maximize, differentiable: as in :class:`Adam`.

    Raises:
        ValueError: an option out of range.

    >>> optimizer = torch.optim.NAdam([torch.ones(1, requires_grad=True)], lr=2e-3)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_range("epsilon value", eps)
        check_betas(betas)
        check_range("momentum_decay value", momentum_decay)
        super().__init__(params, options(locals()))

    def _fresh(self, group, p):
        return {
            "mu_product": wt.ones((), dtype=wt.float32),
            "exp_avg": wt.zeros_like(p),
            "exp_avg_sq": wt.zeros_like(p),
        }

    def _advance(self, group, p, g, state, t, lr):
        beta1, beta2 = group["betas"]
        mu, mu_next = (beta1 * (1 - 0.5 * 0.96 ** (step * group["momentum_decay"])) for step in (t, t + 1))
        product = state["mu_product"].mul_(mu)
        if not group["differentiable"]:
            product = product.item()
        mean = state["exp_avg"].lerp_(g, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = square.div(1 - beta2**t).sqrt_().add(group["eps"])
        rates = -lr * (1 - mu) / (1 - product), -lr * mu_next / (1 - product * mu_next)
        for step, rate in zip((g, mean), rates):
            if group["differentiable"]:
                p.add_(step / root * rate)
            else:
                p.addcdiv_(step, root, value=rate)
