"""Adadelta: Zeiler, "ADADELTA: an adaptive learning rate method", algorithm 1, times a learning rate."""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, check_range, options

__all__ = ["Adadelta"]


class Adadelta(PerParameter):
    """Steps in the ratio of two running roots: of past steps and of past gradients.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: factor on the step.
        rho: decay of both averages, in [0, 1].
        eps: added under both roots.
        weight_decay: L2 factor.
        foreach, capturable, maximize, differentiable: as in :class:`Adam`.

    Raises:
        ValueError: an option out of range.

    >>> optimizer = torch.optim.Adadelta([torch.ones(1, requires_grad=True)], lr=1.0)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        check_range("epsilon value", eps)
        super().__init__(params, options(locals()))

    def _fresh(self, group, p):
        return {"square_avg": wt.zeros_like(p), "acc_delta": wt.zeros_like(p)}

    def _advance(self, group, p, g, state, t, lr):
        rho, eps = group["rho"], group["eps"]
        root = state["square_avg"].mul_(rho).addcmul_(g, g, value=1 - rho).add(eps).sqrt_()
        delta = state["acc_delta"].add(eps).sqrt_().div(root).mul(g)
        state["acc_delta"].mul_(rho).addcmul_(delta, delta, value=1 - rho)
        p.add_(delta, alpha=-lr)
