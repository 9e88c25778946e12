"""Adafactor: Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", algorithms 4
to 6."""

from __future__ import annotations

from warptape import core as wt

from ._per_parameter import PerParameter
from .optimizer import ParamsT, check_range, options


class Adafactor(PerParameter):
    """Adam without a first average, and with the second kept as row and column means of matrices.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or group dicts.
        lr: the largest relative step size; step t takes at most ``1 / sqrt(t)``.
        beta2_decay: power of t in ``1 - beta2``.
        eps: lower bounds of the root of the second average (None: the dtype's epsilon) and of the parameter's
            root mean square.
        d: the root mean square at which the update is clipped.
        weight_decay: the share of ``p`` taken off per ``lr``.
        foreach: accepted, without effect.
        maximize: go up instead of down.

    Raises:
        ValueError: an option out of range.

    >>> weight = torch.ones(4, 2, requires_grad=True)
    >>> optimizer = torch.optim.Adafactor([weight], lr=1e-2)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> sorted(optimizer.state[weight])
    ['col_var', 'row_var', 'step']
    """

    update_scope = "parameter"
    _laid_as_parameter = ("variance", *PerParameter._laid_as_parameter)
    _decays_itself = True

    _takes_complex = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | wt.Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        if not beta2_decay <= 0.0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        if eps[0] is not None:
            check_range("epsilon1", eps[0])
        check_range("epsilon2", eps[1])
        if not d >= 1.0:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {d}")
        super().__init__(params, options(locals()))

    def _fresh(self, group, p):
        if p.dim() < 2:
            return {"variance": wt.zeros_like(p)}
        rows, columns = list(p.shape), list(p.shape)
        rows[-1] = columns[-2] = 1
        return {"row_var": p.new_zeros(rows), "col_var": p.new_zeros(columns)}

    def _advance(self, group, p, g, state, t, lr):
        low, low_rms = group["eps"]
        low = wt.finfo(p.dtype).eps if low is None else low
        weight = t ** group["beta2_decay"]
        scale = max(low_rms, _rms(p)) * min(lr, t**-0.5)
        if group["weight_decay"]:
            p.mul_(1 - lr * group["weight_decay"])
        if p.dim() < 2:
            variance = state["variance"].lerp_(g.square(), weight).clone()
        else:
            squares = g.square()
            rows = state["row_var"].lerp_(squares.mean(-1, keepdim=True), weight)
            columns = state["col_var"].lerp_(squares.mean(-2, keepdim=True), weight)
            variance = (rows @ columns).div_(rows.mean(-2, keepdim=True).clamp_(min=low))
        update = variance.clamp_(min=low * low).rsqrt_().mul_(g)
        p.add_(update, alpha=-scale / max(1.0, _rms(update) / group["d"]))


def _rms(t: wt.Tensor) -> float:
    return t.norm().item() / t.numel() ** 0.5 if t.numel() else 0.0
