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


def update_split(
    optimizer: Any, group: dict[str, Any], params: list[Tensor], grads: list[Any]
) -> tuple[list[Tensor], list[Any]]:
    """Updates the parameters that ranks have parts of: gathered, one after the other, on every rank, which
    keeps its part. Returns the others. Collective."""
    left: tuple[list[Tensor], list[Any]] = [], []
    for p, grad in zip(params, grads):
        if not getattr(p, "_norm_groups", ()):
            left[0].append(p)
            left[1].append(grad)
            continue
        part: Any = p
        whole, state = part.full_tensor(), optimizer.state[p]
        laid = [name for name in optimizer._laid_as_parameter if name in state]
        state |= {name: part.full_tensor(state[name]) for name in laid}
        optimizer.state[whole] = state
        try:
            optimizer._update(group, [whole], [part.full_tensor(grad)])
        finally:
            del optimizer.state[whole]
            laid = [name for name in optimizer._laid_as_parameter if name in state]
            state |= {name: part.part_of(state[name]) for name in laid}
        part.copy_(part.part_of(whole))
    return left
