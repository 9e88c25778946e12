"""Gradient clipping. The norm is that of all gradients as one vector."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from warptape import core as wt
from warptape.core import Tensor, offered

from ...core.placed import Placed, norm_stages

__all__ = ["clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The `norm_type`-norm (may be inf) of all elements of `tensors`, as a 0-dim tensor; 0 when there are
    none. Of tensors that ranks hold parts of, as the gradients of a sharded model are, it is the norm of the
    whole, and all ranks must call.

    Raises RuntimeError for a norm that is not finite if `error_if_nonfinite`. `foreach` False takes the
    tensors one by one even where one call could take them all.
    """
    held = [_held(t) for t in _listed(tensors)]
    total = _total_norm([t for t, _ in held], [over for _, over in held], norm_type, foreach)
    if error_if_nonfinite:
        _check_finite(total, float(norm_type))
    return total


def _held(t: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
    """What this rank holds of a tensor, and the groups of ranks among which it is split."""
    if not isinstance(t, Placed):
        return t, ()
    if any(where.is_partial() for where in t.placements):
        return t.full_tensor(), ()
    return t.to_local(), t.norm_groups


def _total_norm(
    tensors: list[Any], groups: list[tuple[Any, ...]], norm_type: float, foreach: bool | None
) -> Tensor:
    """get_total_norm of tensors each of which is split among the ranks of some groups. None stands for one
    that this rank has nothing of."""
    if not tensors:
        return wt.tensor(0.0)
    p = float(norm_type)
    split: dict[tuple[Any, ...], list[Any]] = {}
    for t, over in zip(tensors, groups, strict=True):
        split.setdefault(over, []).append(t)
    first = next((t for t in tensors if t is not None), None)
    device = wt.get_default_device() if first is None else first.device
    with wt.no_grad():
        norms: list[Any] = []
        for over, alike in split.items():
            own = [norm.to(device) for norm in _norms(alike, p, bool(over), foreach)]
            if over:
                norm_of_shards = offered("norms").norm_of_shards

                own = list(norm_of_shards(wt.stack(own), p, over))
            norms += own
        return wt.stack(norms).norm(p)


def _norms(tensors: list[Any], p: float, parts: bool, foreach: bool | None) -> list[Any]:
    """The norm of each."""
    out: dict[int, Any] = {}
    if parts:
        norm_of_nothing = offered("norms").norm_of_nothing

        like = next((t for t in tensors if t is not None), None)
        nothing = wt.full((), norm_of_nothing(p)) if like is None else like.new_full((), norm_of_nothing(p))
        out = {i: nothing.abs() for i, t in enumerate(tensors) if t is None or not t.numel()}
    left = [(i, t.detach().abs() if t.is_complex() else t) for i, t in enumerate(tensors) if i not in out]
    all_at_once = _foreach("_foreach_norm", foreach)
    if all_at_once is None:
        out |= {i: t.norm(p) for i, t in left}
    else:
        for group in _same_kind(left):
            out.update(zip([i for i, _ in group], all_at_once([t for _, t in group], p), strict=True))
    return [out[i] for i in range(len(tensors))]


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
    """Scales all gradients, in place, by max_norm / total_norm where that is below 1.

    Args:
        parameters: a tensor or tensors with gradients; those without are passed over.
        max_norm: the largest norm allowed.
        total_norm: the gradients' norm, as `get_total_norm` gives it.
        foreach: accepted, without effect.

    >>> w = torch.ones(2, requires_grad=True)
    >>> w.grad = torch.tensor([3.0, 4.0])
    >>> nn.utils.clip_grads_with_norm_([w], 1.0, torch.tensor(5.0))
    >>> w.grad
    tensor([0.6000, 0.8000])
    """
    grads = [_local(p.grad) for p in _listed(parameters) if p.grad is not None]
    if not grads:
        return
    with wt.no_grad():
        grads = [wt.view_as_real(g) if g.is_complex() else g for g in grads]
        if isinstance(total_norm, Placed):
            total_norm = total_norm.full_tensor()
        # The product is taken even when the factor is 1: to look at it would wait for the device.
        factor = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
        all_at_once = _foreach("_foreach_mul_", foreach)
        if all_at_once is None:
            for grad in grads:
                grad.mul_(factor.to(grad.device))
            return
        for group in _same_kind(list(enumerate(grads))):
            all_at_once([grad for _, grad in group], factor.to(group[0][1].device))


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
    grads: list[Any] = []
    groups: list[tuple[Any, ...]] = []  # of ranks among which each is split
    stages: tuple[Any, ...] = ()  # the group of ranks that have a pipeline's stages
    for p in parameters:
        own = norm_stages(p)
        stages = own.groups or stages
        over = p.norm_groups if isinstance(p, Placed) else ()
        # Other ranks may have a gradient of a parameter of which this one has none.
        if own.counts and p.grad is not None:
            held, over = _held(p.grad)
            grads.append(held)
            groups.append(over)
        elif own.counts and over and p.requires_grad:
            grads.append(None)
            groups.append(over)
    total_norm = _total_norm(grads, groups, norm_type, foreach)
    if stages:  # of one dtype on all of them, also where a stage has no gradients
        norm_of_shards = offered("norms").norm_of_shards

        total_norm = total_norm.to(parameters[0].device, wt.float64)
        total_norm = norm_of_shards(total_norm, norm_type, stages).to(parameters[0].dtype)
    if error_if_nonfinite:
        _check_finite(total_norm, float(norm_type))
    clip_grads_with_norm_(parameters, max_norm, total_norm, foreach)
    return total_norm


def clip_grad_norm(*args: Any, **kwargs: Any) -> Tensor:
    """Deprecated name of `clip_grad_norm_`.

    Args:
        *args, **kwargs: what `clip_grad_norm_` takes.
    """
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
    with wt.no_grad():
        for parameter in _listed(parameters):
            if parameter.grad is not None:
                _local(parameter.grad).clamp_(min=-clip_value, max=clip_value)


def _local(t: Tensor) -> Tensor:
    """What this rank holds of a tensor, on the same memory."""
    return t.to_local() if isinstance(t, Placed) else t


def _listed(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _foreach(name: str, foreach: bool | None) -> Callable[..., Any] | None:
    """The core's function for many tensors at once, unless it is not wanted or not there."""
    return None if foreach is False else getattr(wt, name, None)


def _same_kind(tensors: list[tuple[int, Tensor]]) -> list[list[tuple[int, Tensor]]]:
    """Groups of one device and dtype, each in order; with each tensor its number."""
    groups: dict[Any, list[tuple[int, Tensor]]] = {}
    for i, tensor in tensors:
        groups.setdefault((str(tensor.device), tensor.dtype), []).append((i, tensor))
    return list(groups.values())
