"""The updates of optimizers on tensors of classes that implement `__torch_dispatch__`: the fused ones taken
apart to in-place ops on one parameter after another, as PyTorch's `foreach=False` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _C
from ..core import Tensor

Tensors = Sequence[Tensor]


def _refuse(name: str, **given: Any) -> None:
    for option, value in given.items():
        if value is not None:
            raise NotImplementedError(
                f"{name}: {option} is not supported for parameters of classes with __torch_dispatch__"
            )


def _adam(decoupled: bool) -> Callable[..., None]:
    """Algorithm 1 of Kingma and Ba, "Adam"; with decoupled decay algorithm 2 of Loshchilov and Hutter."""

    def rule(
        params: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Any = None,
        found_inf: Any = None,
        lr_tensor: Any = None,
        master_params: Any = None,
    ) -> None:
        _refuse("_fused_adam_", grad_scale=grad_scale, found_inf=found_inf, master_params=master_params)
        lr = float(lr_tensor) if lr_tensor is not None else lr
        for i, (p, g, first, second) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs)):
            step = float(state_steps[i])
            g = -g if maximize else g
            if weight_decay and decoupled:
                p.mul_(1 - lr * weight_decay)
            elif weight_decay:
                g = g.add(p, alpha=weight_decay)
            first.lerp_(g, 1 - beta1)
            second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            largest = second
            if amsgrad:
                largest = max_exp_avg_sqs[i].copy_(max_exp_avg_sqs[i].maximum(second))
            root = (largest.sqrt() / (1 - beta2**step) ** 0.5).add_(eps)
            p.addcdiv_(first, root, value=-lr / (1 - beta1**step))

    return rule


def _sgd(
    params: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
    lr_tensor: Any = None,
    master_params: Any = None,
) -> None:
    _refuse("_fused_sgd_", grad_scale=grad_scale, found_inf=found_inf, master_params=master_params)
    lr = float(lr_tensor) if lr_tensor is not None else lr
    for i, (p, g) in enumerate(zip(params, grads)):
        g = -g if maximize else g
        if weight_decay:
            g = g.add(p, alpha=weight_decay)
        if momentum:
            velocity = momentum_buffer_list[i]
            if is_first_step:
                velocity.copy_(g)
            else:
                velocity.mul_(momentum).add_(g, alpha=1 - dampening)
            g = g.add(velocity, alpha=momentum) if nesterov else velocity
        p.add_(g, alpha=-lr)


def _each(name: str) -> Callable[..., Any]:
    """An op of lists as the op of one tensor for each item."""
    in_place = name.endswith("_")
    op = getattr(_C.TensorBase, name.removeprefix("_foreach_"))

    def rule(tensors: Tensors, *args: Any, **kwargs: Any) -> Any:
        out = []
        for i, t in enumerate(tensors):
            own = [a[i] if isinstance(a, (list, tuple)) else a for a in args]
            out.append(op(t, *own, **kwargs))
        return None if in_place else out

    return rule


def rule_of(name: str) -> Callable[..., Any] | None:
    """The rule of an op of lists of parameters, or None.

    Args:
        name: the op's, in C++.
    """
    if name.startswith("_foreach_") and name.removeprefix("_foreach_") in dir(_C.TensorBase):
        return _each(name)
    return {"_fused_adam_": _adam(False), "_fused_adamw_": _adam(True), "_fused_sgd_": _sgd}.get(name)
