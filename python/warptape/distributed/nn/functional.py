"""torch.distributed.nn.functional: collectives that are recorded, where every rank has a loss of its own.

They return new tensors; `warptape.distributed.functional` has the other meanings of their gradients, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import warptape

from ..._tensor import Tensor
from .. import functional
from .._state import resolve
from ..collectives import ReduceOp
from ..groups import get_group_rank

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"]


def _needs_sum(op: Any, where: str) -> None:
    if op != ReduceOp.SUM:
        raise NotImplementedError(f"{where}: only ReduceOp.SUM has a gradient here")


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None) -> Tensor:
    """The sum over the ranks; so is the gradient."""
    _needs_sum(op, "all_reduce")
    return functional.all_reduce_all_reduce(tensor, group)


def all_gather(tensor: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """The tensors of all ranks; of the summed gradients each gets its own."""
    return functional.all_gather_reduce_scatter(tensor.unsqueeze(0), 0, group).unbind(0)


def broadcast(tensor: Tensor, src: int, group: Any = None) -> Tensor:
    """Rank src's tensor; the gradients are summed there."""
    return functional.broadcast_reduce(tensor, get_group_rank(resolve(group), src), group)


def reduce(tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, group: Any = None) -> Tensor:
    """The sum on rank dst, zeros elsewhere; its gradient is broadcast."""
    _needs_sum(op, "reduce")
    return functional.reduce_broadcast(tensor, get_group_rank(resolve(group), dst), group)


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: Any = ReduceOp.SUM, group: Any = None
) -> Tensor:
    """Of the sums over the ranks of each tensor in the list this rank's; the gradients are gathered. `output`
    is left as it is."""
    _needs_sum(op, "reduce_scatter")
    return functional.reduce_scatter_all_gather(warptape.stack(list(input_list)), 0, group)[0]
