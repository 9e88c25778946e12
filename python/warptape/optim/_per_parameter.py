"""What the optimizers share whose step is written with tensor operations, one parameter after the other."""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from .optimizer import BucketOptimizer, ParamsT, as_real, check_common_options


class PerParameter(BucketOptimizer):
    """Subclasses say what a parameter's state starts with (`_fresh`) and how a step is taken (`_advance`)."""

    _counts_steps = True
    _decays_itself = False

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        check_common_options(
            defaults["lr"],
            defaults.get("weight_decay", 0),
            defaults.get("differentiable", False),
            defaults.get("foreach"),
            defaults.get("fused"),
        )
        super().__init__(params, defaults)

    def _newer_options(self) -> dict[str, Any]:
        return self.defaults

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        weight_decay = 0.0 if self._decays_itself else float(group.get("weight_decay", 0))
        lr = float(group["lr"])
        for p, grad in zip(params, grads):
            state = self.state[p]
            if not state:
                state.update(self._first_state(group, p))
            if group.get("differentiable"):  # earlier steps keep what they saved of the state
                state.update({name: value.clone() for name, value in state.items() if name != "step"})
            if p.is_complex():
                p, grad = as_real(p), as_real(grad)
                state = {name: as_real(value) for name, value in state.items()}
            g = -grad if group.get("maximize") else grad
            if weight_decay and group.get("decoupled_weight_decay"):
                p.mul_(1 - lr * weight_decay)
            elif weight_decay:
                g = g.add(p, alpha=weight_decay)
            self._advance(group, p, g, state, state["step"].item() + 1 if self._counts_steps else 0, lr)
            if self._counts_steps:
                state["step"] += 1

    def _first_state(self, group: dict[str, Any], p: Tensor) -> dict[str, Tensor]:
        # All at once: a step that is interrupted or runs out of memory here can be taken again.
        real = as_real(p)
        state = self._fresh(group, real)
        if real is not p:
            state = {k: wt.view_as_complex(v) if v.shape == real.shape else v for k, v in state.items()}
        return {"step": wt.zeros((), dtype=wt.float32), **state} if self._counts_steps else state

    def _fresh(self, group: dict[str, Any], p: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def _advance(
        self, group: dict[str, Any], p: Tensor, g: Tensor, state: dict[str, Tensor], t: float, lr: float
    ) -> None:
        """Step number `t`, from 1, of one parameter; `g` is its gradient with sign and weight decay in it."""
        raise NotImplementedError
