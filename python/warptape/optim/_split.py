"""Parameters that are spread over ranks (DTensors), and what an update of one reads of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warptape.core import Tensor

from ..core.placed import Placed

if TYPE_CHECKING:
    pass


def full_tensor_of(t: Any) -> Any:
    """The whole of a DTensor, any other tensor as it is. Collective; not recorded."""
    return t.detach().full_tensor() if isinstance(t, Placed) else t  # type: ignore[attr-defined]


def _local(t: Any) -> Any:
    """This rank's shard of a DTensor, any other tensor as it is."""
    return t.to_local() if isinstance(t, Placed) else t


def _local_gradient(grad: Any, p: Any) -> Any:
    if isinstance(grad, Placed) and grad.placements != p.placements:
        grad = grad.redistribute(placements=p.placements)
    return _local(grad)


def update_shards(optimizer: Any, group: dict[str, Any], params: list[Any], grads: list[Any]) -> None:
    """An update that reads of each parameter single elements: on this rank's shards, which are plain tensors.
    States stay DTensors."""
    if group.get("differentiable") or not any(isinstance(p, Placed) for p in params):
        optimizer._update(group, params, grads)
        return
    states, shards = optimizer.state, [_local(p) for p in params]
    before_update: list[dict[str, Any]] = []
    for p, shard in zip(params, shards):
        before_update.append({k: _local(v) for k, v in states[p].items()})
        if shard is not p:
            states[shard] = dict(before_update[-1])
    try:
        optimizer._update(group, shards, [_local_gradient(grad, p) for p, grad in zip(params, grads)])
    finally:
        for p, shard, before in zip(params, shards, before_update):
            if shard is not p:
                now, state = states.pop(shard), states[p]
                for k, v in now.items():
                    if k not in before or v is not before[k]:
                        laid = isinstance(v, Tensor) and v.shape == shard.shape and v.ndim
                        state[k] = p.detach().like_local(v) if laid else v


def update_full_tensors(
    optimizer: Any, group: dict[str, Any], params: list[Any], grads: list[Any]
) -> tuple[list[Any], list[Any]]:
    """An update that reads all of a parameter: of what is split the full tensor, one after the other, on
    every rank, which keeps its shard. Returns the others. Collective."""
    left: tuple[list[Any], list[Any]] = [], []
    for p, grad in zip(params, grads):
        if not isinstance(p, Placed):
            left[0].append(p)
            left[1].append(grad)
            continue
        full, state = full_tensor_of(p).clone(), optimizer.state[p]
        state |= {name: full_tensor_of(state[name]) for name in optimizer._laid_as_parameter if name in state}
        optimizer.state[full] = state
        try:
            optimizer._update(group, [full], [full_tensor_of(grad)])
        finally:
            del optimizer.state[full]
            laid = [name for name in optimizer._laid_as_parameter if name in state]
            state |= {name: p.detach().like_full(state[name]) for name in laid}
        p.copy_(p.detach().like_full(full))
    return left
