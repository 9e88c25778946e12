"""Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); rates that fit
AdamW's: Liu et al., "Muon is scalable for LLM training", section 2.2."""

from __future__ import annotations

from typing import Any

import warptape

from ._per_parameter import PerParameter
from .optimizer import ParamsT, options


class Muon(PerParameter):
    """Momentum whose matrix is made nearly orthogonal before it is added.

    Args:
        params: matrices, ``(name, matrix)`` pairs, or group dicts of them.
        lr: learning rate.
        weight_decay: the share of ``p`` taken off per ``lr``.
        momentum: decay of the gradient's average.
        nesterov: look ahead along the average.
        ns_coefficients: of the odd polynomial of degree 5 that is iterated.
        eps: the smallest norm that is divided by.
        ns_steps: number of iterations.
        adjust_lr_fn: "original" (or None) multiplies the rate by ``sqrt(max(1, rows / columns))``,
            "match_rms_adamw" by ``0.2 sqrt(max(rows, columns))``.

    Raises:
        ValueError: a parameter that is no matrix, or an option out of range.
    """

    _counts_steps = False
    update_scope = "parameter"
    _laid_as_parameter = ("momentum_buffer", *PerParameter._laid_as_parameter)
    _decays_itself = True

    _takes_complex = False

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        if not momentum >= 0.0:
            raise ValueError(f"momentum should be >= 0 but is: {momentum}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        if not 0 <= ns_steps < 100 or len(ns_coefficients) != 3:
            raise ValueError(
                "Muon: expected fewer than 100 iterations and three coefficients, "
                f"got {ns_steps} and {ns_coefficients}"
            )
        super().__init__(params, options(locals()))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of matrices."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dim() != 2:
                self.param_groups.pop()
                raise ValueError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: {p.size()}"
                )

    def _fresh(self, group, p):
        return {"momentum_buffer": warptape.zeros_like(p)}

    def _advance(self, group, p, g, state, t, lr):
        mean = state["momentum_buffer"].lerp_(g, 1 - group["momentum"])
        ahead = g.lerp(mean, group["momentum"]) if group["nesterov"] else mean
        lr = group["lr"]  # of a tensor, what is computed is rounded to its dtype, as PyTorch does
        p.mul_(1 - lr * group["weight_decay"])
        rows, columns = p.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            lr = lr * (0.2 * max(rows, columns) ** 0.5)
        else:
            lr = lr * max(1.0, rows / columns) ** 0.5
        p.add_(
            _orthogonal(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"]).to(p.dtype),
            alpha=-float(lr),
        )


def _orthogonal(matrix: Any, coefficients: tuple[float, float, float], steps: int, eps: float) -> Any:
    """The nearest orthogonal matrix, roughly: Newton-Schulz iterations in bfloat16 drive all singular values
    to about 1."""
    a, b, c = coefficients
    x = matrix.bfloat16()
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = warptape.addmm(x, warptape.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
