"""AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2."""

from __future__ import annotations

from warptape.core import Tensor

from .adam import Adam
from .optimizer import ParamsT, options

__all__ = ["AdamW"]


class AdamW(Adam):
    """Adam with ``p *= 1 - lr * weight_decay`` before each update instead of an L2 term in the gradient.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr, betas, eps, amsgrad, maximize, foreach, capturable, differentiable, fused, master_weights: as in
            :class:`Adam`.
        weight_decay: share of ``p`` taken off per unit of ``lr``.

    Raises:
        ValueError: an option out of range.
        RuntimeError: ``master_weights`` together with ``differentiable``.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    >>> model(torch.ones(2)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        master_weights: bool = False,
    ) -> None:
        super().__init__(params, **options(locals()), decoupled_weight_decay=True)
