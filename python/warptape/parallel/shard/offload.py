"""Parts in host memory: how they come to the device and gradients go back, while it computes."""

from __future__ import annotations

import contextlib
from typing import Any

from ... import _C, cuda
from ... import core as wt
from ...core import Tensor
from ..dtensor.tensor import plain, wrap


def add_gradient(shard: Any, gradient: Tensor) -> None:
    """Adds a reduced gradient to that of a parameter, and calls the hooks that wait for it.

    Args:
        shard: a parameter.
        gradient: of the shard.
    """
    before = shard.grad
    if before is not None:
        gradient = plain(before) + gradient
    shard.grad = wrap(gradient, shard._spec)
    if shard.requires_grad:
        with wt.no_grad():
            for hook in list(_C._post_accumulate_dict(shard).values()):
                hook(shard)


class HostShards:
    """Of a group whose shards lie on the CPU and whose full tensors on a device.

    Parts go up on a stream of their own, on which they are also put together: so those of the next module
    travel while this one computes. Gradients come down on another, and nobody waits for them before the end
    of backward. Only page-locked memory lets copies run beside the rest (`pin`).
    """

    def __init__(self, device: Any, pin: bool) -> None:
        self.device, self.pin = device, pin
        self._streams: tuple[Any, Any] | None = None
        self._uploaded: Any = None  # an event after the last copy of shards
        self.pending: list[tuple[Any, Tensor]] = []  # (part, its gradient on the way down)

    def keep(self, shard: Any) -> None:
        """Moves a parameter's values to the host, if they have any yet.

        Args:
            shard: a parameter.
        """
        held = plain(shard).detach()
        if held.device.type == "meta" or (held.device.type == "cpu" and held.is_pinned() >= self.pin):
            return
        with wt.no_grad():
            values = held.cpu()
            shard.data = values.pin_memory() if self.pin else values

    def streams(self) -> tuple[Any, Any]:
        """(for shards, for gradients), made by the thread that trains."""
        if self._streams is None:
            self._streams = cuda.Stream(self.device), cuda.Stream(self.device)
        return self._streams

    def upload_stream(self) -> Any:
        """A context: shards come up, and are put together, on a stream of their own."""
        return cuda.stream(self.streams()[0])

    @contextlib.contextmanager
    def going_up(self) -> Any:
        """What copies parts runs here; they may be changed after wait_uploaded()."""
        with self.upload_stream():
            yield
            self._uploaded = self.streams()[0].record_event()

    def take(self, full: Tensor) -> None:
        """The computing stream uses memory that was made on the other one.

        Args:
            full: from the stream of shards.
        """
        current = cuda.current_stream(self.device)
        current.wait_stream(self.streams()[0])
        full.record_stream(current)

    def wait_uploaded(self) -> None:
        """Until shards have been read: then they may be changed."""
        if self._uploaded is not None:
            self._uploaded.synchronize()
            self._uploaded = None

    def send_down(self, shard: Any, gradient: Tensor) -> None:
        """Begins to copy a gradient.

        Args:
            shard: a parameter.
            gradient: of the shard, on the device.
        """
        down = self.streams()[1]
        down.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(down):
            gradient.record_stream(down)
            self.pending.append((shard, gradient.contiguous().to("cpu", non_blocking=self.pin)))

    def settle(self) -> None:
        """Adds the gradients that came down to those of the shards."""
        if not self.pending:
            return
        self.streams()[1].synchronize()
        for shard, gradient in self.pending:
            add_gradient(shard, gradient)
        self.pending.clear()
