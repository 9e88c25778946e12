"""Adagrad: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
optimization", figure 1 with diagonal matrices."""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, check_range, options

__all__ = ["Adagrad"]


class Adagrad(PerParameter):
    """Steps divided by the root of the sum of all squared gradients.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: learning rate; step t takes ``lr / (1 + (t - 1) * lr_decay)``.
        lr_decay: see `lr`.
        weight_decay: L2 factor.
        initial_accumulator_value: what the sum starts with.
        eps: added to the root.
        foreach, fused, maximize, differentiable: as in :class:`Adam`.

    Raises:
        ValueError: an option out of range.

    >>> optimizer = torch.optim.Adagrad([torch.ones(1, requires_grad=True)], lr=0.01)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_range("lr_decay value", lr_decay)
        check_range("initial_accumulator_value value", initial_accumulator_value)
        check_range("epsilon value", eps)
        super().__init__(params, options(locals()))
        for group in self.param_groups:  # users read the sums before the first step
            for p in group["params"]:
                self.state[p].update(self._first_state(group, p))

    def share_memory(self) -> None:
        """Moves the sums into memory that processes share.

        Worker processes that train one model asynchronously call it once before they start.
        """
        for state in self.state.values():
            state["sum"].share_memory_()

    def _fresh(self, group, p):
        return {"sum": wt.full_like(p, group["initial_accumulator_value"])}

    def _update_sparse(self, group, params, grads):
        if group["weight_decay"]:
            raise RuntimeError("weight_decay option is not compatible with sparse gradients")
        self._update(group, params, grads)

    def _advance(self, group, p, g, state, t, lr):
        if g.is_sparse:  # sums and elements that it does not name stay as they are
            g = g.coalesce()
            at, values, sums = tuple(g.indices()), g.values(), state["sum"]
            sums[at] += values.square()
            rate = lr / (1 + (t - 1) * group["lr_decay"])
            p[at] -= rate * values / (sums[at].sqrt() + group["eps"])
            return
        root = state["sum"].addcmul_(g, g).sqrt().add(group["eps"])
        p.addcdiv_(g, root, value=-lr / (1 + (t - 1) * group["lr_decay"]))
