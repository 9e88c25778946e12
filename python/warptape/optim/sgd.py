"""Stochastic gradient descent with momentum and weight decay.

Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep learning",
section 2; the learning rate multiplies the velocity in the update, as in PyTorch, not the gradient as in the
paper.
"""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ._recorded import check_recorded, check_unscaled, descend
from .optimizer import BucketOptimizer, ParamsT, as_real, check_common_options, options, rate_of

__all__ = ["SGD"]


class SGD(BucketOptimizer):
    """``v = momentum * v + (1 - dampening) * g;  p -= lr * v`` with ``g = grad + weight_decay * p``.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: learning rate, a number or a one-element tensor.
        momentum: factor on the velocity; the first step sets the velocity to ``g``.
        dampening: share of ``g`` left out of the velocity.
        weight_decay: L2 factor.
        nesterov: step along ``g + momentum * v``; needs momentum and no dampening.
        maximize: go up instead of down.
        foreach, fused: accepted; the step is always the fused one.
        differentiable: record the step, so that what comes after can be differentiated through it; the
            parameters must not be leaves, and each step's state is a new tensor.
        master_weights: as in :class:`Adam`, with the velocity in float32.

    Raises:
        ValueError: an option out of range.
        RuntimeError: ``master_weights`` together with ``differentiable``.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    >>> (3 * weight).sum().backward()
    >>> optimizer.step()
    >>> weight
    tensor([0.7000], requires_grad=True)
    """

    _reads_scale = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        master_weights: bool = False,
    ) -> None:
        check_common_options(lr, weight_decay, differentiable, foreach, fused)
        if momentum < 0.0:
            raise ValueError(f"Invalid momentum value: {momentum}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        check_recorded(differentiable, master_weights)
        # PyTorch would not know the group's key master_weights.
        super().__init__(params, options(locals(), *([] if master_weights else ["master_weights"])))

    def _newer_options(self) -> dict[str, Any]:
        flags = dict.fromkeys(("nesterov", "maximize", "differentiable"), False)
        return {**flags, "foreach": None, "fused": None}

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        if group["differentiable"]:
            self._record(group, params, grads)
            return
        if group["momentum"] == 0:
            self._apply(group, params, grads, [], first=False)
            return
        if group.get("master_weights"):
            self._master_params(params)
        states = [self.state[p] for p in params]
        velocities = [s.get("momentum_buffer") for s in states]
        fresh = [i for i, v in enumerate(velocities) if v is None]
        if not fresh:
            self._apply(group, params, grads, velocities, first=False)
            return
        if self.found_inf is not None and self.found_inf.item():
            return  # a velocity that starts from inf never recovers
        old = [i for i, v in enumerate(velocities) if v is not None]
        for i in fresh:  # parameters that get their first gradient now start their velocity from it
            velocities[i] = wt.empty_like(states[i].get("master_param", params[i]))
        for some, first in ((fresh, True), (old, False)):
            if some:
                p, g, v = ([every[i] for i in some] for every in (params, grads, velocities))
                self._apply(group, p, g, v, first)
            for i in some:
                states[i]["momentum_buffer"] = velocities[i]

    def _update_sparse(self, group: dict[str, Any], params: list[Tensor], grads: list[Any]) -> None:
        every_row = group["momentum"] or group["weight_decay"]
        if every_row or group["differentiable"] or self.found_inf is not None:
            self._update(group, params, [g.to_dense() for g in grads])
            return
        rate = float(group["lr"]) * (1 if group["maximize"] else -1)
        for p, g in zip(params, grads):
            g = g.coalesce()
            p[tuple(g.indices())] += rate * g.values()

    def _record(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        check_unscaled(self)
        momentum = group["momentum"]
        for p, grad in zip(params, grads):
            g = -grad if group["maximize"] else grad
            if group["weight_decay"]:
                g = g + group["weight_decay"] * p
            if momentum:
                state = self.state[p]
                v = state.get("momentum_buffer")
                v = g.clone() if v is None else momentum * v + (1 - group["dampening"]) * g
                state["momentum_buffer"] = v
                g = g + momentum * v if group["nesterov"] else v
            descend(p, g, group["lr"])

    def _apply(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        velocities: list[Tensor],
        first: bool,
    ) -> None:
        if params[0].is_complex():
            params, grads, velocities = ([*map(as_real, ts)] for ts in (params, grads, velocities))
        lr = group["lr"]
        weight_decay = group["weight_decay"]
        wt._fused_sgd_(
            params,
            grads,
            velocities,
            weight_decay=float(weight_decay),
            momentum=group["momentum"],
            **rate_of(lr, params[0]),
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            is_first_step=first,
            master_params=self._master_params(params) if group.get("master_weights") else None,
            **({} if self.found_inf is None else self._scaling(params[0])),
        )
