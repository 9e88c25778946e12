"""Adam: Kingma and Ba, "Adam: a method for stochastic optimization", algorithm 1; AMSGrad: Reddi, Kale and
Kumar, "On the convergence of Adam and beyond", algorithm 2 (the maximum is taken before the bias correction).
"""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ._recorded import check_recorded, check_unscaled, descend
from .optimizer import (
    BucketOptimizer,
    ParamsT,
    as_real,
    check_betas,
    check_common_options,
    check_range,
    options,
    rate_of,
)

__all__ = ["Adam"]


class Adam(BucketOptimizer):
    """Steps scaled by running averages of the gradient and of its square.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: learning rate, a number or a one-element tensor.
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root of the second average.
        weight_decay: L2 factor, or the share of ``p`` taken off per ``lr`` if ``decoupled_weight_decay``.
        amsgrad: divide by the largest second average so far.
        maximize: go up instead of down.
        capturable: accepted; ``step`` always lies on the parameter's device.
        foreach, fused: accepted; the step is always the fused one.
        differentiable: record the step, so that what comes after can be differentiated through it; the
            parameters must not be leaves, and each step's state is a new tensor.
        decoupled_weight_decay: AdamW's weight decay.
        master_weights: keep a float32 copy of each float16 or bfloat16 parameter in the state, as
            ``master_param``, and the averages in float32. Steps are taken from the copy and rounded to the
            parameter, so that updates below half a unit in its last place add up. Not in PyTorch. Values
            written to a parameter by other means do not reach a copy that is there already.

    Raises:
        ValueError: an option out of range.
        RuntimeError: ``master_weights`` together with ``differentiable``.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> optimizer = torch.optim.Adam([weight], lr=0.1)
    >>> (3 * weight).sum().backward()
    >>> optimizer.step()
    >>> weight
    tensor([0.9000], requires_grad=True)
    """

    _reads_scale = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        master_weights: bool = False,
    ) -> None:
        # PyTorch would not know the group's key master_weights.
        defaults = options(locals(), *([] if master_weights else ["master_weights"]))
        if isinstance(lr, wt.Tensor) and foreach and not capturable:
            raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        check_common_options(lr, weight_decay, differentiable, foreach, fused)
        check_recorded(differentiable, master_weights)
        check_range("epsilon value", eps)
        check_betas(betas)
        if isinstance(betas[0], wt.Tensor) != isinstance(betas[1], wt.Tensor):
            raise ValueError("betas must be either both floats or both Tensors")
        for i, beta in enumerate(betas):
            if not isinstance(beta, wt.Tensor):
                continue
            if foreach and not capturable:
                raise ValueError(
                    f"betas[{i}] as a Tensor is not supported for capturable=False and foreach=True"
                )
            if beta.numel() != 1:
                raise ValueError(f"Tensor betas[{i}] must be 1-element")
        super().__init__(params, defaults)

    def _newer_options(self) -> dict[str, Any]:
        flags = dict.fromkeys(("amsgrad", "maximize", "capturable", "differentiable"), False)
        decoupled = self.defaults.get("decoupled_weight_decay", False)
        return {**flags, "foreach": None, "fused": None, "decoupled_weight_decay": decoupled}

    def _init_state(self, params: list[Tensor], amsgrad: bool) -> None:
        for p in params:
            state = self.state[p]
            if "exp_avg" not in state:
                like = state.get("master_param", p)
                # All at once: a step that is interrupted or runs out of memory here can be taken again.
                state.update(
                    step=wt.zeros((), dtype=wt.float32, device=p.device),
                    exp_avg=wt.zeros_like(like),
                    exp_avg_sq=wt.zeros_like(like),
                )
            if amsgrad and "max_exp_avg_sq" not in state:
                # Also when amsgrad was turned on midway: the largest average so far is the present one.
                state["max_exp_avg_sq"] = state["exp_avg_sq"].clone()

    def _record(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
        check_unscaled(self)
        self._init_state(params, group["amsgrad"])
        for p, grad in zip(params, grads):
            if p.is_complex():
                raise NotImplementedError("Adam: a recorded step of complex parameters is not there")
            state = self.state[p]
            state["step"] += 1
            t = state["step"].item()
            g = -grad if group["maximize"] else grad
            if decay and group["decoupled_weight_decay"]:
                p.mul_(1 - lr * decay)
            elif decay:
                g = g + decay * p
            state["exp_avg"] = state["exp_avg"] + (1 - beta1) * (g - state["exp_avg"])
            state["exp_avg_sq"] = largest = beta2 * state["exp_avg_sq"] + (1 - beta2) * g * g
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = largest = largest.maximum(state["max_exp_avg_sq"])
            root = (largest / (1 - beta2**t)).sqrt() + group["eps"]
            descend(p, state["exp_avg"] / root, lr / (1 - beta1**t))

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        if group["differentiable"]:
            self._record(group, params, grads)
            return
        amsgrad = group["amsgrad"]
        masters = self._master_params(params) if group.get("master_weights") else None
        states = [self.state[p] for p in params]
        try:
            exp_avgs = [s["exp_avg"] for s in states]
            largest = [s["max_exp_avg_sq"] for s in states] if amsgrad else []
        except KeyError:
            self._init_state(params, amsgrad)
            exp_avgs = [s["exp_avg"] for s in states]
            largest = [s["max_exp_avg_sq"] for s in states] if amsgrad else []
        exp_avg_sqs = [s["exp_avg_sq"] for s in states]
        steps = [s["step"] for s in states]
        if params[0].is_complex():
            params, grads, exp_avgs, exp_avg_sqs, largest = (
                [*map(as_real, tensors)] for tensors in (params, grads, exp_avgs, exp_avg_sqs, largest)
            )
        lr = group["lr"]
        beta1, beta2 = group["betas"]
        update = wt._fused_adamw_ if group["decoupled_weight_decay"] else wt._fused_adam_
        scaling = {} if self.found_inf is None else self._scaling(params[0])
        wt._foreach_add_(steps, 1)
        try:
            update(
                params,
                grads,
                exp_avgs,
                exp_avg_sqs,
                largest,
                steps,
                **rate_of(lr, params[0]),
                beta1=beta1 if type(beta1) is float else float(beta1),
                beta2=beta2 if type(beta2) is float else float(beta2),
                weight_decay=float(group["weight_decay"]),
                eps=group["eps"],
                amsgrad=amsgrad,
                maximize=group["maximize"],
                master_params=masters,
                **scaling,
            )
        except BaseException:
            wt._foreach_add_(steps, -1)  # a refused update must not count as a step
            raise
        if scaling:  # nor must one that the device left out
            wt._foreach_add_(steps, [scaling["found_inf"]] * len(steps), alpha=-1)
