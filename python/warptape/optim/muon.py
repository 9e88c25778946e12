"""Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); rates that fit
AdamW's: Liu et al., "Muon is scalable for LLM training", section 2.2."""

from __future__ import annotations

from typing import Any

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, options

# Numbers of the matrices that are made orthogonal together: where calls cost more than products do.
_BATCH_NUMBERS = {"cpu": 1 << 17, "cuda": 1 << 24}


class Muon(PerParameter):
    """Momentum whose matrix is made nearly orthogonal before it is added. Matrices of one shape, or of that
    shape turned, are made so together.

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

    >>> weight = torch.randn(4, 4, requires_grad=True)
    >>> optimizer = torch.optim.Muon([weight], lr=0.02)
    >>> weight.square().sum().backward()
    >>> optimizer.step()
    """

    _counts_steps = False
    update_scope = "parameter"
    _laid_as_parameter = ("momentum_buffer", *PerParameter._laid_as_parameter)
    _decays_itself = True

    _takes_complex = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 1e-3,
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
        """Adds a group of matrices.

        Args:
            param_group: a dict with "params" and options of its own.

        Raises: ValueError for a parameter that is no matrix.
        """
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dim() != 2:
                self.param_groups.pop()
                raise ValueError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: {p.size()}"
                )

    def _fresh(self, group, p):
        return {"momentum_buffer": wt.zeros_like(p)}

    def _update(self, group: dict[str, Any], params: list[wt.Tensor], grads: list[wt.Tensor]) -> None:
        for batch in _batches(params):
            ahead = [self._ahead(group, params[i], grads[i]) for i in batch]
            steps = _orthogonal(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
            for i, step in zip(batch, steps):
                self._move(group, params[i], step)

    def _ahead(self, group: dict[str, Any], p: wt.Tensor, g: wt.Tensor) -> wt.Tensor:
        """The momentum after a gradient."""
        state = self.state[p]
        if not state:
            state.update(self._first_state(group, p))
        mean = state["momentum_buffer"].lerp_(g, 1 - group["momentum"])
        return g.lerp(mean, group["momentum"]) if group["nesterov"] else mean

    def _move(self, group: dict[str, Any], p: wt.Tensor, step: wt.Tensor) -> None:
        lr = group["lr"]  # of a tensor, what is computed is rounded to its dtype, as PyTorch does
        p.mul_(1 - lr * group["weight_decay"])
        rows, columns = p.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            lr = lr * (0.2 * max(rows, columns) ** 0.5)
        else:
            lr = lr * max(1.0, rows / columns) ** 0.5
        p.add_(step.to(p.dtype), alpha=-float(lr))


def _batches(params: list[wt.Tensor]) -> list[list[int]]:
    """Numbers of matrices of one shape, or of that shape turned, which are made orthogonal together. Large
    ones keep a processor busy alone, and would cost memory."""
    open_: dict[Any, list[int]] = {}
    batches: list[list[int]] = []
    for i, p in enumerate(params):
        key = min(p.shape), max(p.shape), p.device
        batch = open_.get(key)
        if batch is None or (len(batch) + 1) * p.numel() > _BATCH_NUMBERS.get(p.device.type, 0):
            batch = open_[key] = []
            batches.append(batch)
        batch.append(i)
    return batches


def _orthogonal(
    matrices: list[wt.Tensor], coefficients: tuple[float, float, float], steps: int, eps: float
) -> list[wt.Tensor]:
    """The nearest orthogonal matrices, roughly: Newton-Schulz iterations in bfloat16 drive all singular
    values to about 1. Their shapes are the same, or turned."""
    a, b, c = coefficients
    tall = [m.size(0) > m.size(1) for m in matrices]
    x = wt.stack([(m.T if t else m).bfloat16() for m, t in zip(matrices, tall)])  # [n, rows, columns]
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = wt.baddbmm(x, wt.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return [m.T if t else m for m, t in zip(x.unbind(), tall)]
