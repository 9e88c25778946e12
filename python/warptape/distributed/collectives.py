"""Calls between the ranks of a group, in place and unrecorded: torch.distributed's.

Every rank of the group makes the same calls in the same order. A call on tensors that differ between ranks
in op, dtype, shape or root raises DistBackendError on every rank and changes nothing; so does a rank that has
died, left or is late, and the error says which. Tensors need not be contiguous. `src` and `dst` are ranks of
the job, `group_src` and `group_dst` ranks of the group. With `async_op` a call returns a Work at once, whose
wait() must be called before the tensors are used; without it, it returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .._C import _distributed as _C
from ..core import Tensor
from .collective_hooks import Observed, collective_hooks
from .groups import get_group_rank
from .state import Group, GroupMember, Work, resolve

if TYPE_CHECKING:
    from warptape.core.types import Device

ReduceOp: Any = _C.ReduceOp
ReduceOp.RedOpType = ReduceOp  # the type of its members, which in PyTorch is another one
_Op = _C._Op


def _skipped(group: Group) -> bool:
    """A rank outside of a group may call: nothing happens, as in PyTorch."""
    return group is not None and group == GroupMember.NON_GROUP_MEMBER


def _root(
    group: Group, rank: int | None, group_rank: int | None, name: str, default: int | None = None
) -> int:
    """The rank of the group that is meant; `default` where neither is given."""
    if rank is not None and group_rank is None:
        return -1 if _skipped(group) else get_group_rank(group, rank)
    if rank is not None or (group_rank is None and default is None):
        raise ValueError(f"give either {name} or group_{name}")
    return int(default if group_rank is None else group_rank)  # type: ignore[arg-type]


def _call(
    group: Group, op: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], **how: Any
) -> Work | None:
    if _skipped(group):
        return None
    together = _coalescing.get(_C._rank_key()) if _coalescing else None
    if together is not None and resolve(group) == together.group:
        together.calls.append((op, inputs, outputs, how))
        return None
    work = resolve(group)._run(op, inputs, outputs, **how)
    if collective_hooks:
        work = Observed(work, op, outputs)
        if not how.get("async_op"):
            work.tell()
    return work if how.get("async_op") else None


class _CoalescingManager:
    """What `_coalescing_manager` gives."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.calls: list[tuple[Any, Sequence[Tensor], Sequence[Tensor], dict[str, Any]]] = []
        self.works: list[Any] = []

    def start(self) -> None:
        """Makes the calls: all_reduce calls in a row with one dtype and op are one."""
        rows: list[tuple[Any, Sequence[Tensor], Sequence[Tensor], dict[str, Any]]] = []
        for op, inputs, outputs, how in self.calls:
            last = rows[-1] if rows else None
            if (
                last is not None
                and op == _Op.all_reduce == last[0]
                and how.get("reduce") == last[3].get("reduce")
                and outputs[0].dtype == last[2][0].dtype
            ):
                rows[-1] = (op, [], [*last[2], *outputs], how)
            else:
                rows.append((op, inputs, outputs, how))
        for op, inputs, outputs, how in rows:
            self.works.append(self.group._run(op, inputs, outputs, **{**how, "async_op": True}))

    def wait(self) -> None:
        """Until all calls are done."""
        for work in self.works:
            work.wait()


_coalescing: dict[int, _CoalescingManager] = {}  # by rank: ranks may be threads


@contextmanager
def _coalescing_manager(
    group: Group = None, device: Device = None, async_ops: bool = False
) -> Iterator[_CoalescingManager]:
    """Collectives of the group within it are made together at its end. Their results are there after it, or
    with `async_ops` after wait() of what it gives. Raises ValueError for one within another."""
    key = _C._rank_key()
    if key in _coalescing:
        raise ValueError("_coalescing_manager: there is one already; end it first")
    _coalescing[key] = manager = _CoalescingManager(resolve(group))
    try:
        yield manager
    finally:
        del _coalescing[key]
    manager.start()
    if not async_ops:
        manager.wait()


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """The tensor of rank `src` comes to all ranks.

    >>> def run():
    ...     x = torch.tensor([torch.distributed.get_rank()])
    ...     torch.distributed.broadcast(x, src=1)
    ...     return x.item()
    >>> torch.distributed.simulate(2, run)  # on ranks that are threads
    [1, 1]
    """
    return _call(
        group, _Op.broadcast, [], [tensor], root=_root(group, src, group_src, "src"), async_op=async_op
    )


def all_reduce(
    tensor: Tensor, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """The tensors of all ranks are combined by `op`; every rank gets the same bits. 16-bit floats are added
    in float32 and rounded once.

    >>> def run():
    ...     x = torch.tensor([torch.distributed.get_rank(), 1])
    ...     torch.distributed.all_reduce(x)
    ...     return x.tolist()
    >>> torch.distributed.simulate(3, run)  # on ranks that are threads
    [[3, 3], [3, 3], [3, 3]]
    """
    return _call(group, _Op.all_reduce, [], [tensor], reduce=op, async_op=async_op)


def all_reduce_coalesced(
    tensors: Sequence[Tensor], op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """all_reduce of several tensors of one dtype as one call.

    Args:
        tensors: changed in place; the same shapes on all ranks.
        op: how values are combined.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
    """
    return _call(group, _Op.all_reduce, [], list(tensors), reduce=op, async_op=async_op)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """As all_reduce, for rank `dst` alone; the tensors of the others stay as they are.

    Args:
        tensor: on rank `dst` it becomes the result.
        dst: a rank of the job.
        op: how values are combined.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
        group_dst: a rank of the group, in place of `dst`.
    """
    root = _root(group, dst, group_dst, "dst")
    return _call(group, _Op.reduce, [], [tensor], reduce=op, root=root, async_op=async_op)


def all_gather(
    tensor_list: Sequence[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False
) -> Work | None:
    """`tensor_list[r]` becomes the tensor of rank r, on every rank. Sizes may differ between the ranks.

    >>> def run():
    ...     parts = [torch.zeros(1) for _ in range(2)]
    ...     torch.distributed.all_gather(parts, torch.tensor([torch.distributed.get_rank() + 1.0]))
    ...     return torch.cat(parts).tolist()
    >>> torch.distributed.simulate(2, run)  # on ranks that are threads
    [[1.0, 2.0], [1.0, 2.0]]
    """
    _expect_list(tensor_list, group, "all_gather")
    even = all(each.numel() == tensor.numel() for each in tensor_list)
    op = _Op.all_gather if even else _Op.all_gather_v
    return _call(group, op, [tensor], list(tensor_list), async_op=async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False
) -> Work | None:
    """The tensors of all ranks one after the other (or stacked) in one: world size times the elements.

    Args:
        output_tensor: [world * n, *] or [world, n, *].
        input_tensor: [n, *], the same shape on all ranks.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
    """
    return _call(group, _Op.all_gather, [input_tensor], [output_tensor], async_op=async_op)


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[Tensor]],
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """all_gather of several tensors: `output_tensor_lists[r][i]` becomes tensor i of rank r.

    Args:
        output_tensor_lists: a list of tensors for each rank.
        input_tensor_list: this rank's tensors.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
    """
    if _skipped(group):
        return None
    works = [
        _call(group, _Op.all_gather, [tensor], [row[i] for row in output_tensor_lists], async_op=True)
        for i, tensor in enumerate(input_tensor_list)
    ]
    return _finish(works, async_op)


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """As all_gather, for rank `dst` (default 0) alone; the others give no `gather_list`.

    Args:
        tensor: this rank's, of the same shape on all ranks.
        gather_list: on `dst` a tensor for each rank.
        dst: a rank of the job.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
        group_dst: a rank of the group, in place of `dst`.
    """
    if _skipped(group):
        return None
    root = _root(group, dst, group_dst, "dst", default=0)
    if resolve(group).rank() == root:
        _expect_list(gather_list or [], group, "gather")
    elif gather_list:
        raise ValueError("gather: Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    return _call(group, _Op.gather, [tensor], list(gather_list or []), root=root, async_op=async_op)


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Rank r gets `scatter_list[r]` of rank `src` (default 0); the others give no list.

    Args:
        tensor: becomes this rank's.
        scatter_list: on `src` a tensor for each rank.
        src: a rank of the job.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
        group_src: a rank of the group, in place of `src`.
    """
    if _skipped(group):
        return None
    root = _root(group, src, group_src, "src", default=0)
    if resolve(group).rank() == root:
        _expect_list(scatter_list or [], group, "scatter")
    elif scatter_list:
        raise ValueError("scatter: Argument ``scatter_list`` must NOT be specified on non-source ranks.")
    return _call(group, _Op.scatter, list(scatter_list or []), [tensor], root=root, async_op=async_op)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: Any = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Rank r gets the combination of `input_list[r]` of all ranks.

    Args:
        output: becomes this rank's.
        input_list: a tensor for each rank, of output's shape.
        op: how values are combined.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
    """
    _expect_list(input_list, group, "reduce_scatter")
    return _call(group, _Op.reduce_scatter, list(input_list), [output], reduce=op, async_op=async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """As reduce_scatter, of one tensor that holds the parts of all ranks one after the other.

    Args:
        output: [n, *].
        input: [world * n, *] or [world, n, *].
        op: how values are combined.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
    """
    return _call(group, _Op.reduce_scatter, [input], [output], reduce=op, async_op=async_op)


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """`output_tensor_list[r]` becomes `input_tensor_list[me]` of rank r; sizes may differ.

    Args:
        output_tensor_list: a tensor for each rank that sends.
        input_tensor_list: a tensor for each rank that receives.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
    """
    return _call(group, _Op.all_to_all, list(input_tensor_list), list(output_tensor_list), async_op=async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """all_to_all of the parts of one tensor, split along dim 0 (evenly if no sizes are given).

    Args:
        output: what ranks send, one after the other.
        input: what ranks get, one after the other.
        output_split_sizes, input_split_sizes: rows for each rank; both sides of a pair must agree.
        group: the ranks; all if None.
        async_op: whether a Work is returned at once.
    """
    if _skipped(group):
        return None
    n = resolve(group).size()

    def parts(tensor: Tensor, sizes: Sequence[int] | None, name: str) -> list[Tensor]:
        length = tensor.shape[0]
        if not sizes:
            if length % n:
                raise ValueError(f"all_to_all_single: {name} has {length} rows, not a multiple of {n} ranks")
            sizes = [length // n] * n
        if sum(sizes) != length or len(sizes) != n:
            raise ValueError(
                f"all_to_all_single: split sizes {list(sizes)} do not fit {name} of {length} rows"
            )
        return list(tensor.detach().split(list(sizes)))

    if not output.is_contiguous():
        raise ValueError("all_to_all_single: output must be contiguous")
    return _call(
        group,
        _Op.all_to_all,
        parts(input, input_split_sizes, "input"),
        parts(output, output_split_sizes, "output"),
        async_op=async_op,
    )


def send(
    tensor: Tensor, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Sends to one rank, which calls recv; returns when the tensor may be changed again.

    Args:
        tensor: what is sent.
        dst: a rank of the job.
        group: the ranks; all if None.
        tag: only a recv of the same one gets it.
        group_dst: a rank of the group, in place of `dst`.
    """
    work = isend(tensor, dst, group, tag, group_dst)
    if work is not None:
        work.wait()


def isend(
    tensor: Tensor, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """As send, without waiting.

    Args:
        tensor: must not change before the Work is done.
        dst: a rank of the job.
        group: the ranks; all if None.
        tag: only a recv of the same one gets it.
        group_dst: a rank of the group, in place of `dst`.
    """
    root = _root(group, dst, group_dst, "dst")
    return _call(group, _Op.send, [tensor], [], root=root, tag=tag, async_op=True)


def recv(
    tensor: Tensor, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Receives from rank `src`, or whoever sends first; returns whose it is (-1 outside of the group).

    Args:
        tensor: of the shape and dtype that is sent.
        src: a rank of the job; None for any.
        group: the ranks; all if None.
        tag: only a send of the same one fits.
        group_src: a rank of the group, in place of `src`.
    """
    work = irecv(tensor, src, group, tag, group_src)
    if work is None:
        return -1
    work.wait()
    return resolve(group)._ranks[work._source_rank()]


def irecv(
    tensor: Tensor, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """As recv, without waiting.

    Args:
        tensor: must not be read before the Work is done.
        src: a rank of the job; None for any.
        group: the ranks; all if None.
        tag: only a send of the same one fits.
        group_src: a rank of the group, in place of `src`.
    """
    root = _root(group, src, group_src, "src", default=-1)
    return _call(group, _Op.recv, [], [tensor], root=root, tag=tag, async_op=True)


@dataclass
class P2POp:
    """One transfer of batch_isend_irecv: `op` is isend or irecv.

    Args:
        tensor: what is sent or received.
        peer: a rank of the job.
        group: the ranks; all if None.
        tag: must be the same on both sides.
        group_peer: a rank of the group, in place of `peer`.
    """

    op: Callable[..., Any]
    tensor: Tensor
    peer: int | None = None
    group: Group = None
    tag: int = 0
    group_peer: int | None = None

    def __post_init__(self) -> None:
        if self.op not in (isend, irecv):
            raise ValueError("P2POp: expected op to be isend or irecv of this module")

    def _call(self) -> tuple[Any, Tensor, int, int]:
        if self.op is isend:
            return _Op.send, self.tensor, _root(self.group, self.peer, self.group_peer, "dst"), self.tag
        root = _root(self.group, self.peer, self.group_peer, "src", default=-1)
        return _Op.recv, self.tensor, root, self.tag


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Starts all transfers of the list, in whatever order they can go; returns a Work for each.

    Args:
        p2p_op_list: at least one.

    Raises: ValueError for an empty list, or anything else in it.
    """
    if not p2p_op_list or not all(isinstance(each, P2POp) for each in p2p_op_list):
        raise ValueError("batch_isend_irecv: expected a list of P2POp with at least one")
    works: dict[int, Work] = {}
    together: dict[Any, list[int]] = {}
    for i, each in enumerate(p2p_op_list):
        if not _skipped(each.group):
            together.setdefault(resolve(each.group), []).append(i)
    for group, places in together.items():
        calls = [p2p_op_list[i]._call() for i in places]
        works.update(zip(places, group._run_batch(calls), strict=True))
    return [works[i] for i in sorted(works)]


def barrier(
    group: Group = None, async_op: bool = False, device_ids: Sequence[int] | None = None
) -> Work | None:
    """Returns when all ranks of the group have called it.

    >>> torch.distributed.simulate(2, torch.distributed.barrier)  # on ranks that are threads
    [None, None]
    """
    return _call(group, _Op.barrier, [], [], async_op=async_op)


def monitored_barrier(
    group: Group = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """A barrier with a time of its own, whose error names all ranks that did not come.

    Args:
        group: the ranks; all if None.
        timeout: how long to wait; the group's own if None.
        wait_all_ranks: accepted: all that are missing are always named.
    """
    _call(group, _Op.barrier, [], [], timeout=timeout)


class _Works:
    """Several calls as one Work."""

    def __init__(self, works: Sequence[Any]) -> None:
        self.works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self.works:
            work.wait(timeout)
        return True


def _finish(works: Sequence[Any], async_op: bool) -> Any:
    together = _Works(works)
    if async_op:
        return together
    together.wait()
    return None


def _expect_list(tensors: Sequence[Tensor], group: Group, op: str) -> None:
    if _skipped(group):
        return
    n = resolve(group).size()
    if isinstance(tensors, Tensor) or len(tensors) != n:
        got = "a tensor" if isinstance(tensors, Tensor) else f"{len(tensors)} tensors"
        raise ValueError(f"{op}: expected a list of {n} tensors, one for each rank of the group; got {got}")


_all_gather_base = all_gather_single = all_gather_into_tensor
_reduce_scatter_base = reduce_scatter_single = reduce_scatter_tensor
