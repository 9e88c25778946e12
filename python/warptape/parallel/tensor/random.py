"""Dropout of tensors that ranks share: each draws its part of the numbers that one process would draw."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from warptape import _C

from ...distributed import DeviceMesh

_set: Any = _C._private._set_drop_parts
_entered = threading.local()


def _enter(mesh: DeviceMesh, dim: int | None, heads: bool, zigzag: bool = False) -> list[int]:
    """Sets what dropout sees parts of; returns what was set before. A part along dim 0 may be a part along
    another dim besides, and slices of a sequence a part of both."""
    before = list(_set(()))
    rank, ranks = mesh.get_local_rank(), mesh.size()
    batch, inner, over, slices = before[:1], before[1:4], before[4:6], before[6:]
    if dim == 0:
        batch = [rank]
    elif dim is not None and zigzag:
        slices = [dim, rank, ranks]
    elif dim is not None:
        inner = [dim, rank, ranks]
    _set((*batch, *inner, *([rank, ranks] if heads else over), *slices))
    return before


@contextmanager
def split_randomness(
    mesh: DeviceMesh, dim: int | None = None, heads: bool = False, *, zigzag: bool = False
) -> Iterator[None]:
    """Inside, dropout's inputs are this rank's part along `dim` of what one process has, and, with `heads`,
    the heads of scaled_dot_product_attention are a part of all. With `zigzag` the part along `dim` is the two
    slices that `context.shard_sequence` gives a rank. Nested, dim 0 (the batch, split among data
    parallel ranks) goes with any other dim and with heads, and inside of `zigzag` is a part of these slices:
    of their tokens, as sequence parallelism has, or along a later dim."""
    before = _enter(mesh, dim, heads, zigzag)
    try:
        yield
    finally:
        _set(tuple(before))


class RandomnessHooks:
    """`split_randomness` around a module's forward.

    Args:
        mesh: of one axis.
        dim: along which tensors are split.
        heads: whether they are split by heads.
    """

    def __init__(self, mesh: DeviceMesh, dim: int | None = None, heads: bool = False) -> None:
        self.mesh, self.dim, self.heads = mesh, dim, heads

    def enter(self, module: Any, args: Any) -> None:
        stack = _entered.__dict__.setdefault("stack", [])
        stack.append((self, _enter(self.mesh, self.dim, self.heads)))

    def leave(self, module: Any, args: Any, output: Any) -> None:
        stack = _entered.__dict__.get("stack")
        if stack and stack[-1][0] is self:  # or the forward failed before it was entered
            _set(tuple(stack.pop()[1]))

    def register(self, module: Any) -> None:
        """Around this module.

        Args:
            module: any.
        """
        module.register_forward_pre_hook(self.enter)
        module.register_forward_hook(self.leave, always_call=True)
