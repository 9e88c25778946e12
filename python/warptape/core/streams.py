"""torch.Stream and torch.Event: of the CPU, whose work is done when a call returns; the bases of CUDA's."""

from __future__ import annotations

from typing import Any

from .. import _C
from . import offered

_KINDS = {"cpu": 0, "cuda": 1, "meta": 14}


def _without_events(device: Any) -> RuntimeError:
    return RuntimeError(f"{device.type} backend doesn't support events.")


class _ByDevice(type):
    """Makes of Stream("cuda") and Event("cuda") what warptape.cuda has."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != __name__:
            return super().__call__(*args, **kwargs)
        if "device_type" in kwargs:  # and stream_id, device_index
            kind = next(kind for kind, number in _KINDS.items() if number == kwargs["device_type"])
            args, kwargs = (_C.device(kind, max(0, kwargs.get("device_index", 0))),), {}
        device, *rest = args or (kwargs.pop("device", None),)
        place = _C.device("cpu" if device is None else device)
        if place.type != "cuda":
            return super().__call__(place, *rest, **kwargs)
        cuda = offered("cuda")
        if not cuda.is_available():
            raise RuntimeError("PyTorch is not linked with support for cuda devices: there is none to use")
        return cuda.Stream(place, *rest, **kwargs) if cls is Stream else cuda.Event(*rest, **kwargs)


class Stream(metaclass=_ByDevice):
    """Stream(device="cpu", *, priority=0): work in order. On "cuda" it is a `torch.cuda.Stream`.

    Raises:
        RuntimeError: "cuda" where it is not served; `record_event` and `wait_stream` on a CPU.
    """

    __slots__ = ("_place",)

    def __init__(self, device: Any = None, *, priority: int = 0) -> None:
        self._place = _C.device(device.type)

    @property
    def device(self) -> Any:
        """Where its work is done."""
        return self._place

    @property
    def device_type(self) -> int:
        """The number of the kind of device."""
        return _KINDS[self.device.type]

    @property
    def device_index(self) -> int:
        """-1: there is no more than one."""
        return -1

    @property
    def stream_id(self) -> int:
        """0: the only one."""
        return 0

    def query(self) -> bool:
        """Whether all work of the stream is done.

        Returns:
            True: on the CPU each call returns when its work is done.
        """
        return True

    def synchronize(self) -> None:
        """Waits until all work of the stream is done.

        It returns at once: on the CPU each call returns when its work is done.
        """

    def wait_event(self, event: Any) -> None:
        """Lets later work of the stream wait for an event.

        It does nothing: on the CPU the work before an event is done when the event is made.

        Args:
            event: not looked at.
        """

    def wait_stream(self, stream: Any) -> None:
        """Lets later work of the stream wait for another stream, which takes an event.

        Args:
            stream: not looked at.

        Raises:
            RuntimeError: always, as in PyTorch: a CPU has no events.
        """
        raise _without_events(self.device)

    def record_event(self, event: Any = None) -> Any:
        """Marks the end of the work so far by an event.

        Args:
            event: not looked at.

        Raises:
            RuntimeError: always, as in PyTorch: a CPU has no events.
        """
        raise _without_events(self.device)

    def is_capturing(self) -> bool:
        """Whether calls are recorded in a graph: False, on the CPU nothing captures them."""
        return False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))

    def __repr__(self) -> str:
        where = f"device_type={self.device.type}, device_index={self.device_index}"
        return f"torch.Stream {where}, stream_id={self.stream_id}"


class Event(metaclass=_ByDevice):
    """Event(device="cpu", *, enable_timing=False, ..). On "cuda" it is a `torch.cuda.Event`.

    Raises:
        RuntimeError: "cuda" where it is not served; `record` on a CPU.
    """

    __slots__ = ("_place", "_timed")

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self._place, self._timed = _C.device(device.type), enable_timing

    @property
    def device(self) -> Any:
        """Where it marks work."""
        return self._place

    event_id = property(lambda self: 0, doc="0: it was not recorded.")

    def query(self) -> bool:
        """Whether the work that the event marks is done.

        Returns:
            True: on the CPU no work is pending.
        """
        return True

    def synchronize(self) -> None:
        """Waits until the work that the event marks is done.

        It returns at once: on the CPU no work is pending.
        """

    def wait(self, stream: Any = None) -> None:
        """Lets later work of a stream wait for the event.

        It does nothing: on the CPU no work is pending.

        Args:
            stream: not looked at.
        """

    def record(self, stream: Any = None) -> None:
        """Marks the end of a stream's work so far.

        Args:
            stream: not looked at.

        Raises:
            RuntimeError: always, as in PyTorch: a CPU has no events.
        """
        raise _without_events(self.device)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two events, which a CPU cannot tell.

        Args:
            end_event: the later one.

        Raises:
            ValueError: one of the two was made without `enable_timing`.
            RuntimeError: otherwise, as in PyTorch: a CPU has no events.
        """
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        raise _without_events(self.device)

    def __repr__(self) -> str:
        flag = f"event_flag={int(self._timed)}, event_id={self.event_id}"
        return f"torch.Event device_type={self.device.type}, device_index=-1, {flag}"
