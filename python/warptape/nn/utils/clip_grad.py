"""Gradient clipping. The norm is that of all gradients as one vector."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import warptape
from warptape import Tensor

__all__ = ["clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The `norm_type`-norm (may be inf) of all elements of `tensors`, as a 0-dim tensor; 0 when there are
    none.

    Raises RuntimeError for a norm that is not finite if `error_if_nonfinite`. `foreach` False takes the
    tensors one by one even where one call could take them all.
    """
    tensors = [t.detach().abs() if t.is_complex() else t for t in _listed(tensors)]
    norm_type = float(norm_type)
    if not tensors:
        return warptape.tensor(0.0)
    all_at_once = _foreach("_foreach_norm", foreach)
    with warptape.no_grad():
        if all_at_once is not None:
            norms = [norm for group in _same_kind(tensors) for norm in all_at_once(group, norm_type)]
        else:
            norms = [t.norm(norm_type) for t in tensors]
        total = warptape.stack([norm.to(tensors[0].device) for norm in norms]).norm(norm_type)
    if error_if_nonfinite:
        _check_finite(total, norm_type)
    return total


def _check_finite(total: Tensor, norm_type: float) -> None:
    if not bool(total.isfinite()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it "
            "cannot be clipped. To disable this error and scale the gradients by the non-finite norm anyway, "
            "set `error_if_nonfinite=False`"
        )


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scales all gradients, in place, by max_norm / total_norm where that is below 1."""
    grads = [p.grad for p in _listed(parameters) if p.grad is not None]
    if not grads:
        return
    with warptape.no_grad():
        grads = [warptape.view_as_real(g) if g.is_complex() else g for g in grads]
        # The product is taken even when the factor is 1: to look at it would wait for the device.
        factor = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
        all_at_once = _foreach("_foreach_mul_", foreach)
        if all_at_once is None:
            for grad in grads:
                grad.mul_(factor.to(grad.device))
            return
        for group in _same_kind(grads):
            all_at_once(group, factor.to(group[0].device))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales the gradients, in place, so that their total norm is at most `max_norm`; returns what it was
    before. Of parameters that ranks hold parts of, or a pipeline's stages, it is the norm of the whole (each
    tied weight once), and all ranks must call.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> torch.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
    tensor(5.)
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    parameters = _listed(parameters)
    if not parameters:
        warnings.warn("`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=2)
    split: dict[Any, list[Tensor]] = {}  # gradients by the groups among whose ranks they are split
    stages: tuple[Any, ...] = ()  # the group of ranks that have a pipeline's stages
    for p in parameters:
        stages, counts = getattr(p, "_norm_stages", (stages, True))
        if p.grad is not None and counts:
            split.setdefault(getattr(p, "_norm_groups", ()), []).append(p.grad)
    grads = split.get((), [])
    if stages or split.keys() - {()}:
        from ...distributed.norms import norm_of_parts

        grads = [norm_of_parts(get_total_norm(g, norm_type), norm_type, over) for over, g in split.items()]
    total_norm = get_total_norm(grads, norm_type, False, foreach)
    if stages:  # of one dtype on all of them, also where a stage has no gradients
        total_norm = total_norm.to(parameters[0].device, warptape.float64)
        total_norm = norm_of_parts(total_norm, norm_type, stages).to(parameters[0].dtype)
    if error_if_nonfinite:
        _check_finite(total_norm, float(norm_type))
    clip_grads_with_norm_(parameters, max_norm, total_norm, foreach)
    return total_norm


def clip_grad_norm(*args: Any, **kwargs: Any) -> Tensor:
    """Deprecated name of `clip_grad_norm_`."""
    warnings.warn(
        "`nn.utils.clip_grad_norm` is now deprecated in favor of `nn.utils.clip_grad_norm_`.",
        FutureWarning,
        stacklevel=2,
    )
    return clip_grad_norm_(*args, **kwargs)


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Keeps every element of every gradient, in place, between -clip_value and clip_value.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> weight.grad = torch.tensor([3.0, -4.0])
    >>> nn.utils.clip_grad_value_([weight], 1.0)
    >>> weight.grad
    tensor([ 1., -1.])
    """
    clip_value = float(clip_value)
    with warptape.no_grad():
        for parameter in _listed(parameters):
            if parameter.grad is not None:
                parameter.grad.clamp_(min=-clip_value, max=clip_value)


def _listed(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _foreach(name: str, foreach: bool | None) -> Callable[..., Any] | None:
    """The core's function for many tensors at once, unless it is not wanted or not there."""
    return None if foreach is False else getattr(warptape, name, None)


def _same_kind(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Groups of one device and dtype, each in order."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((str(tensor.device), tensor.dtype), []).append(tensor)
    return list(groups.values())
