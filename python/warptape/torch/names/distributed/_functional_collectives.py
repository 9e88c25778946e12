"""torch.distributed._functional_collectives: collectives that return new tensors and are recorded.

A result is complete when the call returns, so that there is nothing to wait for. A group is a ProcessGroup,
its name, a DeviceMesh of one axis, (mesh, axis), or a list of ranks of the job; None is the default group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape._C import _distributed as _C
from warptape.core import Tensor
from warptape.distributed import collectives, functional
from warptape.distributed.device_mesh import DeviceMesh
from warptape.distributed.groups import get_process_group_ranks, new_group
from warptape.distributed.state import resolve, state

if TYPE_CHECKING:
    pass

RANK_TYPES = Any
_OPS = {"sum": "SUM", "avg": "AVG", "product": "PRODUCT", "min": "MIN", "max": "MAX"}


class AsyncCollectiveTensor:
    """A result that is still under way, in PyTorch; here no tensor is one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("AsyncCollectiveTensor: results are complete when a collective returns")


def _group(group: Any) -> Any:
    """The ProcessGroup that is meant. A list of ranks makes one the first time: collective."""
    if group is None or isinstance(group, _C.ProcessGroup):
        return resolve(group)
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"expected a mesh of one axis, got {group}; pass (mesh, axis)")
        return group.get_group()
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], DeviceMesh):
        return group[0].get_group(group[1])
    if isinstance(group, str):
        if group not in state().groups:
            raise ValueError(f"there is no group named {group!r}; there are {', '.join(state().groups)}")
        return state().groups[group]
    if isinstance(group, list | tuple) and all(isinstance(rank, int) for rank in group):
        for group_of_name in state().groups.values():
            if get_process_group_ranks(group_of_name) == list(group):
                return group_of_name
        return resolve(new_group(list(group), use_local_synchronization=True))
    raise ValueError(f"expected a ProcessGroup, a mesh, (mesh, axis), ranks or a name, got {group!r}")


def _reduce_op(name: Any) -> tuple[str, Any]:
    text = str(name).lower()
    if text not in _OPS:
        raise ValueError(f"expected a reduction out of {', '.join(_OPS)}, got {name!r}")
    return text, getattr(collectives.ReduceOp, _OPS[text])


def all_reduce(self: Tensor, reduceOp: str, group: Any, tag: str = "") -> Tensor:
    """The tensors of all ranks combined by "sum", "avg", "product", "min" or "max". The gradients of sums and
    averages are reduced, too; the others have none."""
    (kind, op), pg = _reduce_op(reduceOp), _group(group)
    if kind in ("sum", "avg"):
        out = functional.all_reduce_all_reduce(self, pg)
        return out / pg.size() if kind == "avg" else out
    out = self.detach().clone(memory_format=wt.contiguous_format)
    collectives.all_reduce(out, op, pg)
    return out


def broadcast(self: Tensor, src: int, group: Any, tag: str = "") -> Tensor:
    """The tensor of rank `src` of the job; without a gradient."""
    out = self.detach().clone(memory_format=wt.contiguous_format)
    collectives.broadcast(out, src, _group(group))
    return out


def all_gather_tensor(self: Tensor, gather_dim: int, group: Any, tag: str = "") -> Tensor:
    """The tensors of all ranks, joined along a dim. The gradient is reduce-scattered."""
    return functional.all_gather_reduce_scatter(self, gather_dim, _group(group))


def reduce_scatter_tensor(self: Tensor, reduceOp: str, scatter_dim: int, group: Any, tag: str = "") -> Tensor:
    """Of what all ranks' tensors come to, by "sum" or "avg", this rank's part along a dim. The gradient is
    gathered. Raises ValueError for a size that does not divide, NotImplementedError for other reductions."""
    (kind, _), pg = _reduce_op(reduceOp), _group(group)
    if kind not in ("sum", "avg"):
        raise NotImplementedError(f"reduce_scatter_tensor: {kind} is not supported; use sum or avg")
    out = functional.reduce_scatter_all_gather(self, scatter_dim, pg)
    return out / pg.size() if kind == "avg" else out


def all_to_all_single(
    self: Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: Any,
    tag: str = "",
) -> Tensor:
    """Rows go to the ranks, rows come from them: as many as the sizes say, evenly for None. The gradient
    takes the way back."""
    return functional.all_to_all(self, input_split_sizes, output_split_sizes, _group(group))


def wait_tensor(tensor: Tensor) -> Tensor:
    """The tensor: it is complete."""
    return tensor


def all_reduce_coalesced(self: Sequence[Tensor], reduceOp: str, group: Any, tag: str = "") -> list[Tensor]:
    """all_reduce of each."""
    return [all_reduce(t, reduceOp, group) for t in self]


def all_gather_into_tensor_coalesced(self: Sequence[Tensor], group: Any, tag: str = "") -> list[Tensor]:
    """all_gather_tensor of each, along dim 0."""
    return [all_gather_tensor(t, 0, group) for t in self]


def reduce_scatter_tensor_coalesced(
    inputs: Sequence[Tensor], reduceOp: str, scatter_dim: Sequence[int], group: Any, tag: str = ""
) -> list[Tensor]:
    """reduce_scatter_tensor of each."""
    return [
        reduce_scatter_tensor(t, reduceOp, dim, group) for t, dim in zip(inputs, scatter_dim, strict=True)
    ]


def all_reduce_inplace(
    tensor: Tensor, op: str = "sum", group: Any = None, async_op: bool = False, tag: str = ""
) -> Tensor:
    """all_reduce into the tensor itself."""
    collectives.all_reduce(tensor, _reduce_op(op)[1], _group(group))
    return tensor


# Names by which they are asked for where a gradient is wanted; all of these are recorded.
all_gather_tensor_autograd = all_gather_tensor
reduce_scatter_tensor_autograd = reduce_scatter_tensor
all_to_all_single_autograd = all_to_all_single
