"""SparseAdam: Adam of which only the rows that a sparse gradient names take a step."""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ._per_parameter import PerParameter
from .optimizer import ParamsT, check_betas, check_range, options

__all__ = ["SparseAdam"]


class SparseAdam(PerParameter):
    """Adam (Kingma and Ba, algorithm 1) for sparse gradients: moments and elements that a gradient does not
    name stay as they are, whatever the step.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts; dense ones.
        lr: learning rate.
        betas: decay of the mean and of the mean of squares.
        eps: added to the root.
        maximize: steps along the gradient.

    Raises:
        ValueError: an option out of range, or a sparse parameter.
        RuntimeError: in step(), a dense gradient.

    >>> optimizer = torch.optim.SparseAdam([torch.ones(4, 2, requires_grad=True)], lr=0.01)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[Any, Any] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        check_range("epsilon value", eps)
        check_betas(betas)
        super().__init__(params, options(locals()))
        places = [(i, j, p) for i, g in enumerate(self.param_groups) for j, p in enumerate(g["params"])]
        if sparse := [[i, j] for i, j, p in places if p.is_sparse]:
            raise ValueError(
                f"Sparse params at indices {sparse}: SparseAdam requires dense parameter tensors"
            )
        if complex_ := [[i, j] for i, j, p in places if p.is_complex()]:
            raise ValueError(
                f"Complex params at indices {complex_}: SparseAdam does not support complex parameters"
            )

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        raise RuntimeError("SparseAdam does not support dense gradients, please consider Adam instead")

    _update_sparse = PerParameter._update

    def _fresh(self, group, p):
        return {"exp_avg": wt.zeros_like(p), "exp_avg_sq": wt.zeros_like(p)}

    def _advance(self, group, p, g, state, t, lr):
        g = g.coalesce()  # the update is not linear
        values, at = g.values(), tuple(g.indices())
        if not values.numel():
            return
        beta1, beta2 = map(float, group["betas"])
        mean = state["exp_avg"][at].lerp(values, 1 - beta1)
        square = state["exp_avg_sq"][at].lerp(values.square(), 1 - beta2)
        state["exp_avg"][at], state["exp_avg_sq"][at] = mean, square
        size = lr * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
        p.index_put_(at, size * mean / -(square.sqrt() + group["eps"]), accumulate=True)
