"""torch.ops._c10d_functional: the functional collectives as compiled programs call them, by a group's name.

`group_name` may be whatever `_functional_collectives` takes. Results are complete, and recorded as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape.core import Tensor
from warptape.distributed import collectives

from . import _functional_collectives as functional

__all__ = [
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "broadcast_",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "wait_tensor",
]


def _sized(name: str, group_size: int, group_name: str) -> Any:
    """The group, which must have `group_size` ranks. Raises ValueError."""
    group = functional._group(group_name)
    if group.size() != group_size:
        raise ValueError(f"{name}: expected group_size {group.size()}, the group's ranks, got {group_size}")
    return group


def all_reduce(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    """The tensors of all ranks combined by "sum", "avg", "product", "min" or "max"."""
    return functional.all_reduce(input, reduce_op, group_name)


def all_reduce_(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    """all_reduce into the tensor itself; not recorded."""
    return functional.all_reduce_inplace(input, reduce_op, group_name)


def all_reduce_coalesced(inputs: Sequence[Tensor], reduce_op: str, group_name: str) -> list[Tensor]:
    """all_reduce of each."""
    return functional.all_reduce_coalesced(inputs, reduce_op, group_name)


def all_gather_into_tensor(input: Tensor, group_size: int, group_name: str) -> Tensor:
    """(n, ...) on each rank -> (group_size * n, ...), joined in the order of ranks."""
    group = _sized("all_gather_into_tensor", group_size, group_name)
    return functional.all_gather_tensor(input, 0, group)


def all_gather_into_tensor_coalesced(
    inputs: Sequence[Tensor], group_size: int, group_name: str
) -> list[Tensor]:
    """all_gather_into_tensor of each."""
    return [all_gather_into_tensor(t, group_size, group_name) for t in inputs]


def reduce_scatter_tensor(input: Tensor, reduce_op: str, group_size: int, group_name: str) -> Tensor:
    """(group_size * n, ...) on each rank -> this rank's (n, ...) of their "sum" or "avg"."""
    group = _sized("reduce_scatter_tensor", group_size, group_name)
    return functional.reduce_scatter_tensor(input, reduce_op, 0, group)


def reduce_scatter_tensor_coalesced(
    inputs: Sequence[Tensor], reduce_op: str, group_size: int, group_name: str
) -> list[Tensor]:
    """reduce_scatter_tensor of each."""
    return [reduce_scatter_tensor(t, reduce_op, group_size, group_name) for t in inputs]


def all_to_all_single(
    input: Tensor,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    group_name: str,
) -> Tensor:
    """Rows go to the ranks and come from them, as many as the sizes say."""
    return functional.all_to_all_single(input, output_split_sizes, input_split_sizes, group_name)


def broadcast(input: Tensor, src: int, group_name: str) -> Tensor:
    """The tensor of rank `src` of the group; without a gradient."""
    return broadcast_(input.detach().clone(), src, group_name)


def broadcast_(input: Tensor, src: int, group_name: str) -> Tensor:
    """broadcast into the tensor itself; not recorded."""
    collectives.broadcast(input, group=functional._group(group_name), group_src=src)
    return input


def wait_tensor(tensor: Tensor) -> Tensor:
    """The tensor: it is complete."""
    return functional.wait_tensor(tensor)
