"""Attention between ranks in the place of scaled_dot_product_attention, by PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from warptape import _C, autograd
from warptape import core as wt

from ...core import Tensor
from ...core.overrides import TorchFunctionMode, _get_current_function_mode_stack
from ...distributed import DeviceMesh
from ...nn import functional as F
from .order import check_length, shard_sequence, unshard_sequence
from .ring import ROTATIONS, ring_attention
from .ulysses import ulysses_attention

ATTENTIONS = ("ring", "ulysses")
_rotation = ROTATIONS[0]
# Ops that have attention inside.
_FULL = (F.multi_head_attention_forward, _C._private.multi_head_attention)


def set_rotate_method(rotate_method: str) -> None:
    """How keys and values go round in contexts entered from now on: "alltoall", from rank to rank while the
    block before is computed (the default), or "allgather", all at once. Raises ValueError for another."""
    global _rotation
    if rotate_method not in ROTATIONS:
        raise ValueError(f"set_rotate_method: expected one of {ROTATIONS}, got {rotate_method!r}")
    _rotation = rotate_method


class SharedSequence(TorchFunctionMode):
    """Inside, scaled_dot_product_attention is of the sequence that the ranks of a mesh of one axis share.

    Args:
        attention: "ring", or "ulysses", which splits heads.

    Raises: ValueError where a call is not supported among ranks: multi_head_attention_forward.
    """

    def __init__(self, mesh: DeviceMesh, attention: str = "ring") -> None:
        if attention not in ATTENTIONS:
            raise ValueError(f"SharedSequence: expected attention of {ATTENTIONS}, got {attention!r}")
        if mesh.ndim != 1:
            raise ValueError(f"SharedSequence: expected a mesh of one axis, got {mesh}; take mesh['name']")
        self.mesh, self.attention, self.rotation = mesh, attention, _rotation

    def __torch_function__(
        self, func: Any, types: tuple[type, ...], args: Any = (), kwargs: Any = None
    ) -> Any:
        """The call, or attention between ranks."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            if self.attention == "ulysses":
                return ulysses_attention(*args, **kwargs, mesh=self.mesh)
            return ring_attention(*args, **kwargs, group=self.mesh.get_group(), rotate=self.rotation)
        if func in _FULL:
            raise ValueError(
                "multi_head_attention_forward: it would attend to this rank's part of the sequence alone; "
                "where ranks share a sequence, call scaled_dot_product_attention"
            )
        if func is wt.Tensor.backward:
            with self:  # also while checkpointed layers run again
                return _backward(*args, **kwargs)
        return func(*args, **kwargs)


def _backward(
    tensor: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Tensor.backward below what modes take over."""
    autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def positions(length: int, device: Any = None) -> Tensor:
    """Where in its sequence each of this rank's `length` tokens is, int64 [length]: what a model takes for
    arange(length), which it is outside of a shared sequence."""
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, SharedSequence):
            group = mode.mesh.get_group()
            return shard_sequence(wt.arange(length * group.size(), device=device), 0, group)
    return wt.arange(length, device=device)


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    buffers: Sequence[Tensor] | None = None,
    buffer_seq_dims: Sequence[int] | None = None,
    no_restore_buffers: set[Tensor] | None = None,
    attention: str = "ring",
) -> Iterator[None]:
    """Inside, the ranks of `mesh` share a sequence: buffers have this rank's slices of it, in place, and
    scaled_dot_product_attention is of the whole. Call backward inside, too, if it runs forward again.

    Args:
        mesh: of one axis.
        buffers: tensors that have the whole sequence, the same on every rank: inputs, targets, positions.
        buffer_seq_dims: which dim of each is the sequence.
        no_restore_buffers: those of the buffers that stay cut.
        attention: "ring" or "ulysses"; not in PyTorch.

    Raises: ValueError, before any buffer changed, for lengths that are no multiple of 2 * mesh.size(), and
        for buffers that are not contiguous or require grad.
    """
    given, dims = list(buffers or ()), list(buffer_seq_dims or ())
    stay = {id(b) for b in no_restore_buffers or ()}
    if len(given) != len(dims):
        raise ValueError(
            f"context_parallel: expected a buffer_seq_dim for each buffer, got {len(dims)} for {len(given)}"
        )
    if stay - {id(b) for b in given}:
        raise ValueError("context_parallel: no_restore_buffers must be among buffers")
    mode = SharedSequence(mesh, attention)
    for b, dim in zip(given, dims, strict=True):
        check_length(b, dim, mesh.size(), "context_parallel")
        if b.requires_grad or not b.is_contiguous():  # it is resized, within its own memory
            raise ValueError(
                f"context_parallel: expected contiguous buffers that need no gradient, got {list(b.shape)} "
                f"with strides {list(b.stride())}, requires_grad={b.requires_grad}; give a detached copy"
            )
    saved: list[tuple[Tensor, Tensor]] = []
    try:
        with wt.no_grad():
            for b, dim in zip(given, dims, strict=True):
                shard = shard_sequence(b, dim, mesh.get_group())
                if id(b) not in stay:
                    saved.append((b, b.clone()))
                _become(b, shard)
        with mode:
            yield
    finally:
        with wt.no_grad():
            for b, before in saved:
                _become(b, before)


def _become(buffer: Tensor, value: Tensor) -> None:
    buffer.resize_(value.shape)
    buffer.copy_(value)


def context_parallel_unshard(
    mesh: DeviceMesh, buffers: Sequence[Tensor], seq_dims: Sequence[int], load_balancer: Any = None
) -> list[Tensor]:
    """The whole of tensors that are cut along a sequence, such as outputs, on every rank. Collective; not
    recorded. Raises ValueError for a load_balancer: the order is always the zigzag one."""
    if load_balancer is not None:
        raise ValueError("context_parallel_unshard: load_balancer is not supported; pass None")
    return [unshard_sequence(b, dim, mesh.get_group()) for b, dim in zip(buffers, seq_dims, strict=True)]
