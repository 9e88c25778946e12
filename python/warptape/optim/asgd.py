"""ASGD: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", with the step sizes of
Bottou, "Large-scale machine learning with stochastic gradient descent", section 5."""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, options

__all__ = ["ASGD"]


class ASGD(PerParameter):
    """SGD with decaying steps; ``state[p]["ax"]`` is the average of the parameter from step ``t0`` on.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: the first learning rate.
        lambd: decay of the parameter and of the rate.
        alpha: power of the rate's decay.
        t0: the step at which averaging starts.
        weight_decay: L2 factor.
        foreach, capturable, maximize, differentiable: as in :class:`Adam`.

    Raises:
        ValueError: an option out of range.

    >>> optimizer = torch.optim.ASGD([torch.ones(1, requires_grad=True)], lr=0.01)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, options(locals()))

    def _fresh(self, group, p):
        return {
            "eta": wt.tensor(float(group["lr"]), dtype=wt.float32),
            "mu": wt.ones((), dtype=wt.float32),
            "ax": wt.zeros_like(p),
        }

    def _advance(self, group, p, g, state, t, lr):
        eta, mu = state["eta"].item(), state["mu"].item()
        p.mul_(1 - group["lambd"] * eta).add_(g, alpha=-eta)
        if mu == 1:
            state["ax"].copy_(p)
        else:
            state["ax"].lerp_(p, mu)
        state["eta"].fill_(lr / (1 + group["lambd"] * lr * t) ** group["alpha"])
        state["mu"].fill_(1 / max(1.0, t - group["t0"]))
