"""Rprop: Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP
algorithm", section D, without taking steps back."""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, options

__all__ = ["Rprop"]


class Rprop(PerParameter):
    """Steps of a size that grows while the gradient keeps its sign, and shrinks when it changes.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: the first step size.
        etas: factors on the step size when the sign changes (below 1) and when it stays (above 1).
        step_sizes: the smallest and the largest.
        capturable, foreach, maximize, differentiable: as in :class:`Adam`.

    Raises:
        ValueError: an option out of range.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> optimizer = torch.optim.Rprop([weight], lr=0.1)
    >>> (3 * weight).sum().backward()
    >>> optimizer.step()
    >>> weight
    tensor([0.9000], requires_grad=True)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        super().__init__(params, options(locals()))

    def _fresh(self, group, p):
        return {"prev": wt.zeros_like(p), "step_size": wt.full_like(p, float(group["lr"]))}

    def _advance(self, group, p, g, state, t, lr):
        shrink, grow = group["etas"]
        agreement = g * state["prev"]
        old = state["step_size"]
        size = wt.where(agreement < 0, old * shrink, old)
        size = old.copy_(wt.where(agreement > 0, old * grow, size).clamp_(*group["step_sizes"]))
        g = g.masked_fill(agreement < 0, 0)
        p.addcmul_(g.sign(), size, value=-1)
        state["prev"].copy_(g)
