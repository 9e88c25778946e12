"""Communication hooks: hook(state, bucket) -> Future of the bucket's average, a tensor like bucket.buffer().

The state of those here is a process group, or None for the default one. DistributedDataParallel carries out
the three plain ones in C++.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from ....core import Tensor
from ....core.futures import Future
from ... import collectives

if TYPE_CHECKING:
    from warptape.distributed.state import Group

__all__ = [
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
]

Hook = Callable[[Any, Any], Future[Tensor]]


def _average(tensor: Tensor, group: Group) -> Future[Tensor]:
    work = collectives.all_reduce(tensor, collectives.ReduceOp.AVG, group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def allreduce_hook(process_group: Group, bucket: Any) -> Future[Tensor]:
    """The average of the buckets: what happens without a hook.

    Args:
        process_group: the ranks; all if None.
        bucket: DDP's, of several gradients in one buffer.
    """
    return _average(bucket.buffer(), process_group)


def _compressed(process_group: Group, bucket: Any, dtype: wt.dtype) -> Future[Tensor]:
    buffer = bucket.buffer()
    return _average(buffer.to(dtype), process_group).then(lambda done: buffer.copy_(done.value()))


def fp16_compress_hook(process_group: Group, bucket: Any) -> Future[Tensor]:
    """Half the bytes: gradients travel as float16; they are added in float32, so that no sum overflows.

    Args:
        process_group: the ranks; all if None.
        bucket: DDP's, of several gradients in one buffer.
    """
    return _compressed(process_group, bucket, wt.float16)


def bf16_compress_hook(process_group: Group, bucket: Any) -> Future[Tensor]:
    """Half the bytes: gradients travel as bfloat16 and are added in float32.

    Args:
        process_group: the ranks; all if None.
        bucket: DDP's, of several gradients in one buffer.
    """
    return _compressed(process_group, bucket, wt.bfloat16)


def _wrapper(hook: Hook, dtype: wt.dtype) -> Hook:
    def compressed(state: Any, bucket: Any) -> Future[Tensor]:
        buffer = bucket.buffer()
        bucket.set_buffer(buffer.to(dtype))
        return hook(state, bucket).then(lambda done: buffer.copy_(done.value()))

    return compressed


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """The hook, on a float16 copy of the bucket.

    Args:
        hook: any hook of (state, bucket); its result returns to the gradients' dtype.
    """
    return _wrapper(hook, wt.float16)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """The hook, on a bfloat16 copy of the bucket.

    Args:
        hook: any hook of (state, bucket); its result returns to the gradients' dtype.
    """
    return _wrapper(hook, wt.bfloat16)
