"""A way to lay a model out over ranks, as `verify` takes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import nn
from ...core import Tensor
from ...distributed import DeviceMesh


@dataclass(frozen=True)
class Layout:
    """How many ranks, and what each makes of the model.

    Args:
        ranks: their number.
        apply: apply(model, mesh) splits the model, which has the same values on every rank; returns what is
            to be called (None: the model), or a pipeline's schedule with a loss_fn of its own.
        shape, names: of the mesh; by default one axis "ranks".
        batch: names of the axes whose ranks share the batch along dim 0, such as ("dp",).
        sequence: of those whose ranks share each sequence, cut by `context.shard_sequence`, such as ("cp",).
        loss_fn: loss_fn(mesh) is this layout's loss function, where outputs stay split.
        step: step(model, inputs, target) runs forward and backward and returns the loss, for loops of one's
            own, such as accumulation.
        after: this layout's `after` of verify.
        micro_batches: into how many `step` cuts its batch; a schedule tells it.

    Raises: ValueError for numbers that do not agree.
    """

    ranks: int
    apply: Callable[[nn.Module, DeviceMesh], Any]
    shape: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None
    batch: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    loss_fn: Callable[[DeviceMesh], Callable[..., Tensor]] | None = None
    step: Callable[..., Tensor] | None = None
    after: Callable[[Any], Any] | None = None
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if math.prod(self.sizes) != self.ranks:
            raise ValueError(f"Layout: a mesh of shape {self.sizes} does not have {self.ranks} ranks")
        if len(self.axes) != len(self.sizes):
            raise ValueError(f"Layout: expected {len(self.sizes)} names of axes, got {self.names}")
        for what, named in (("batch", self.batch), ("sequence", self.sequence)):
            for name in named:
                if name not in self.axes:
                    raise ValueError(f"Layout: {what} names the axis {name!r}; the mesh has {self.axes}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the mesh's axes."""
        return self.shape or (self.ranks,)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the mesh's axes."""
        return self.names or ("ranks",)

    @property
    def copies(self) -> int:
        """Into how many parts the batch goes."""
        return math.prod(n for name, n in zip(self.axes, self.sizes, strict=True) if name in self.batch)

    def place(self, rank: int) -> dict[str, int]:
        """A rank's coordinates.

        Args:
            rank: its number.
        """
        out: dict[str, int] = {}
        for name, n in reversed(list(zip(self.axes, self.sizes, strict=True))):
            rank, out[name] = divmod(rank, n)
        return out

    def copy_of(self, rank: int) -> int:
        """Which part of the batch a rank has.

        Args:
            rank: its number.
        """
        at, index = self.place(rank), 0
        for name, n in zip(self.axes, self.sizes, strict=True):
            index = index * n + at[name] if name in self.batch else index
        return index

    def lines(self, axis: str, ranks: list[int]) -> list[list[int]]:
        """Ranks that differ in this coordinate alone, together.

        Args:
            axis: its name.
            ranks: which.
        """
        out: dict[Any, list[int]] = {}
        for rank in ranks:
            rest = tuple(i for name, i in self.place(rank).items() if name != axis)
            out.setdefault(rest, []).append(rank)
        return list(out.values())
