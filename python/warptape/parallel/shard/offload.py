"""Parts in host memory: how they come to the device and gradients go back, while it computes."""

from __future__ import annotations

import contextlib
from typing import Any

from ... import _C, cuda
from ... import core as wt
from ...core import Tensor
from ..dtensor.tensor import plain, wrap


def add_gradient(part: Any, gradient: Tensor) -> None:
    """Adds a reduced gradient to that of a parameter, and calls the hooks that wait for it.

    Args:
        part: a parameter.
        gradient: of the part.
    """
    before = part.grad
    if before is not None:
        gradient = plain(before) + gradient
    part.grad = wrap(gradient, part._spec)
    if part.requires_grad:
        with wt.no_grad():
            for hook in list(_C._post_accumulate_dict(part).values()):
                hook(part)


class HostParts:
    """Of a group whose parts lie on the CPU and whose wholes on a device.

    Parts go up on a stream of their own, on which they are also put together: so those of the next module
    travel while this one computes. Gradients come down on another, and nobody waits for them before the end
    of backward. Only page-locked memory lets copies run beside the rest (`pin`).
    """

    def __init__(self, device: Any, pin: bool) -> None:
        self.device, self.pin = device, pin
        self._streams: tuple[Any, Any] | None = None
        self._uploaded: Any = None  # an event after the last copy of parts
        self.pending: list[tuple[Any, Tensor]] = []  # (part, its gradient on the way down)

    def keep(self, part: Any) -> None:
        """Moves a parameter's values to the host, if they have any yet.

        Args:
            part: a parameter.
        """
        held = plain(part).detach()
        if held.device.type == "meta" or (held.device.type == "cpu" and held.is_pinned() >= self.pin):
            return
        with wt.no_grad():
            values = held.cpu()
            part.data = values.pin_memory() if self.pin else values

    def streams(self) -> tuple[Any, Any]:
        """(for parts, for gradients), made by the thread that trains."""
        if self._streams is None:
            self._streams = cuda.Stream(self.device), cuda.Stream(self.device)
        return self._streams

    def upload_stream(self) -> Any:
        """A context: parts come up, and are put together, on a stream of their own."""
        return cuda.stream(self.streams()[0])

    @contextlib.contextmanager
    def going_up(self) -> Any:
        """What copies parts runs here; they may be changed after wait_uploaded()."""
        with self.upload_stream():
            yield
            self._uploaded = self.streams()[0].record_event()

    def take(self, whole: Tensor) -> None:
        """The computing stream uses memory that was made on the other one.

        Args:
            whole: from the stream of parts.
        """
        current = cuda.current_stream(self.device)
        current.wait_stream(self.streams()[0])
        whole.record_stream(current)

    def wait_uploaded(self) -> None:
        """Until parts have been read: then they may be changed."""
        if self._uploaded is not None:
            self._uploaded.synchronize()
            self._uploaded = None

    def send_down(self, part: Any, gradient: Tensor) -> None:
        """Begins to copy a gradient.

        Args:
            part: a parameter.
            gradient: of the part, on the device.
        """
        down = self.streams()[1]
        down.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(down):
            gradient.record_stream(down)
            self.pending.append((part, gradient.contiguous().to("cpu", non_blocking=self.pin)))

    def settle(self) -> None:
        """Adds the gradients that came down to those of the parts."""
        if not self.pending:
            return
        self.streams()[1].synchronize()
        for part, gradient in self.pending:
            add_gradient(part, gradient)
        self.pending.clear()
