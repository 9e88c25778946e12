"""Parameters that ranks have parts of, under optimizers whose updates read more than single elements."""

from __future__ import annotations

from typing import Any

from warptape import Tensor

_SCOPES = {"parameter": "all of a parameter", "all": "all parameters"}


def refuse_split(optimizer: Any, params: list[Any]) -> None:
    """RuntimeError for a parameter of which this rank has a part, where an update reads more than that."""
    scope = optimizer.update_scope
    if scope == "element" or (scope == "parameter" and optimizer._gathers_split):
        return
    for p in params:
        if getattr(p, "_norm_groups", ()):
            raise RuntimeError(
                f"{type(optimizer).__name__}: an update reads {_SCOPES[scope]}, and of a parameter "
                f"{list(p.full_shape)} this rank has a part {list(p.shape)}; take an elementwise optimizer "
                "(SGD, AdamW), Muon or Adafactor, or do not shard the parameter"
            )


def _is_split(p: Any) -> bool:
    """Whether this rank has a part of it; of a DTensor, too, whose products of parts round otherwise."""
    if hasattr(type(p), "like_whole"):
        return any(where.is_shard() for where in p.placements)
    return bool(getattr(p, "_norm_groups", ()))


def _gathered(p: Any, t: Any) -> Any:
    """The whole of a tensor that lies as a parameter does."""
    return t.full_tensor() if hasattr(type(t), "like_whole") else p.full_tensor(t)


def _part_of(p: Any, whole: Any) -> Any:
    """What lies of a whole tensor where a parameter does."""
    return p.like_whole(whole) if hasattr(type(p), "like_whole") else p.part_of(whole)


def update_split(
    optimizer: Any, group: dict[str, Any], params: list[Tensor], grads: list[Any]
) -> tuple[list[Tensor], list[Any]]:
    """Updates the parameters that ranks have parts of: gathered, one after the other, on every rank, which
    keeps its part. Returns the others. Collective."""
    left: tuple[list[Tensor], list[Any]] = [], []
    for p, grad in zip(params, grads):
        if not _is_split(p):
            left[0].append(p)
            left[1].append(grad)
            continue
        whole, state = _gathered(p, p.detach()), optimizer.state[p]
        laid = [name for name in optimizer._laid_as_parameter if name in state]
        state |= {name: _gathered(p, state[name]) for name in laid}
        optimizer.state[whole] = state
        try:
            optimizer._update(group, [whole], [_gathered(p, grad)])
        finally:
            del optimizer.state[whole]
            laid = [name for name in optimizer._laid_as_parameter if name in state]
            state |= {name: _part_of(p, state[name]) for name in laid}
        p.copy_(_part_of(p, whole))
    return left
