"""torch.distributed.nn.functional: collectives that are recorded, where every rank has a loss of its own.

They return new tensors; `warptape.distributed.functional` has the other meanings of their gradients, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor
from warptape.distributed import functional
from warptape.distributed.collectives import ReduceOp
from warptape.distributed.groups import get_group_rank
from warptape.distributed.state import resolve

if TYPE_CHECKING:
    from warptape.distributed.state import Group

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


def _needs_sum(op: Any, where: str) -> None:
    if op != ReduceOp.SUM:
        raise NotImplementedError(f"{where}: only ReduceOp.SUM has a gradient here")


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The sum over the ranks; so is the gradient.

    Args:
        tensor: of the same shape on all ranks.
        op: must be SUM.
        group: the ranks; all if None.
    """
    _needs_sum(op, "all_reduce")
    return functional.all_reduce_all_reduce(tensor, group)


def all_gather(tensor: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """The tensors of all ranks; of the summed gradients each gets its own.

    Args:
        tensor: of the same shape on all ranks.
        group: the ranks; all if None.
    """
    return functional.all_gather_reduce_scatter(tensor.unsqueeze(0), 0, group).unbind(0)


def broadcast(tensor: Tensor, src: int, group: Group = None) -> Tensor:
    """Rank src's tensor; the gradients are summed there.

    Args:
        tensor: of the same shape on all ranks.
        src: a rank of the job.
        group: the ranks; all if None.
    """
    return functional.broadcast_reduce(tensor, get_group_rank(resolve(group), src), group)


def reduce(tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The sum on rank dst, zeros elsewhere; its gradient is broadcast.

    Args:
        tensor: of the same shape on all ranks.
        dst: a rank of the job.
        op: must be SUM.
        group: the ranks; all if None.
    """
    _needs_sum(op, "reduce")
    return functional.reduce_broadcast(tensor, get_group_rank(resolve(group), dst), group)


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: Any = ReduceOp.SUM, group: Group = None
) -> Tensor:
    """Of the sums over the ranks of each tensor in the list this rank's; the gradients are gathered. `output`
    is left as it is."""
    _needs_sum(op, "reduce_scatter")
    return functional.reduce_scatter_all_gather(wt.stack(list(input_list)), 0, group)[0]


def _all_gather_base(output_tensor: Tensor, input_tensor: Tensor, group: Group = None) -> Tensor:
    """The tensors of all ranks one after the other, in the shape of `output_tensor`, which is left as it is;
    the summed gradients are scattered."""
    gathered = functional.all_gather_reduce_scatter(input_tensor.flatten(), 0, group)
    return gathered.reshape(output_tensor.shape)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Rows of `input` go to the ranks, rows come from them; gradients take the way back. `output` is left as
    it is."""
    sizes = input_split_sizes or None, output_split_sizes or None
    return functional.all_to_all(input, *sizes, group).reshape(output.shape)


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Group = None
) -> tuple[Tensor, ...]:
    """Tensor r of the list goes to rank r; returns what came from each. Gradients take the way back. The
    tensors of the first list are left as they are, and give the shapes."""
    sent = wt.cat([t.flatten() for t in input_tensor_list])
    to_sizes, from_sizes = ([t.numel() for t in ts] for ts in (input_tensor_list, output_tensor_list))
    came = functional.all_to_all(sent, to_sizes, from_sizes, group).split(from_sizes)
    return tuple(t.reshape(o.shape) for t, o in zip(came, output_tensor_list, strict=True))


def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> tuple[Tensor, ...]:
    """The tensors of all ranks on rank dst, zeros elsewhere; the gradients of rank dst are scattered."""
    pg = resolve(group)
    n, root = pg.size(), get_group_rank(pg, dst)
    to_sizes = [int(r == root) for r in range(n)]
    from_sizes = [1] * n if pg.rank() == root else [0] * n
    came = functional.all_to_all(tensor.unsqueeze(0), to_sizes, from_sizes, group)
    missing = wt.zeros((n - came.shape[0], *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    return wt.cat([came, missing]).unbind(0)  # on all ranks with the history of what came


def scatter(tensors: Sequence[Tensor], src: int = 0, group: Group = None) -> Tensor:
    """Of rank src's tensors each rank gets its own; the gradients are gathered there. Other ranks' tensors
    give the shape, and get zeros."""
    pg = resolve(group)
    n, root = pg.size(), get_group_rank(pg, src)
    sends = pg.rank() == root
    from_sizes = [int(r == root) for r in range(n)]
    rows = wt.stack(list(tensors))
    to_sizes = [1] * n if sends else [0] * n
    return functional.all_to_all(rows if sends else rows[:0], to_sizes, from_sizes, group)[0]
