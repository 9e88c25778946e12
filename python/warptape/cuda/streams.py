"""Streams, which run work in order, and events, which mark places in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _C
from ..core import streams as _streams
from .devices import DeviceLike, _cuda, current_device, device_index

if TYPE_CHECKING:
    from warptape.core.types import Device


class Stream(_streams.Stream):
    """A sequence of work on one device, run in order and beside other streams.

    Args:
        device: where; the current device by default.
        priority: lower numbers first, within priority_range().

    Within `with stream:` it is the current stream.
    """

    __slots__ = ("_outer", "cuda_stream", "priority")

    def __init__(self, device: DeviceLike = None, priority: int = 0) -> None:
        index = device_index(device)
        self._set(index, _cuda.new_stream(index, priority), priority)

    def _set(self, index: int, handle: int, priority: int = 0) -> Stream:
        self._place, self.cuda_stream, self.priority = _C.device("cuda", index), handle, priority
        self._outer: list[StreamContext] = []
        return self

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority of streams.

        Returns:
            (0, -5): smaller numbers go first.
        """
        return 0, -5

    @property
    def device_index(self) -> int:
        """The ordinal of the stream's device."""
        return self.device.index

    @property
    def device_type(self) -> int:
        """1: a CUDA device."""
        return 1

    @property
    def stream_id(self) -> int:
        """A number of the stream; 0 for the default one."""
        return self.cuda_stream

    def wait_event(self, event: Event) -> None:
        """Holds further work of this stream until the event's last record is reached.

        Args:
            event: one that was not recorded holds nothing.
        """
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Holds further work of this stream until what the other one has so far is done.

        Args:
            stream: of any device.
        """
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Marks this place in the stream by an event (a new one by default), which it returns.

        Args:
            event: which is recorded anew.
        """
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all of the stream's work is done.

        It does not wait.
        """
        return _cuda.stream_done(self.device.index, self.cuda_stream)

    def synchronize(self) -> None:
        """Waits until all of the stream's work is done.

        It raises what kernels on the stream found, as `warptape.cuda.synchronize()` does.
        """
        _cuda.synchronize_stream(self.device.index, self.cuda_stream)

    @property
    def _as_parameter_(self) -> Any:
        import ctypes

        return ctypes.c_void_p(self.cuda_stream)

    def __enter__(self) -> Stream:
        context = StreamContext(self)
        context.__enter__()
        self._outer.append(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._outer.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return self.device == other.device and self.cuda_stream == other.cuda_stream

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream that another library made; it must outlive this object.

    Args:
        stream_ptr: its cudaStream_t as an int.
        device: where it was made; the current device by default.
    """

    __slots__ = ()

    def __init__(self, stream_ptr: int, device: DeviceLike = None) -> None:
        self._set(device_index(device), int(stream_ptr))


class Event(_streams.Event):
    """A mark in a stream, to wait for, to ask about and to take the time at.

    Args:
        enable_timing: lets elapsed_time() be asked.
        blocking: synchronize() sleeps instead of spinning.
        interprocess: not supported.
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if interprocess:
            raise NotImplementedError("Event: interprocess events are not supported; use one per process")
        _cuda.current_device()  # without a device, say so here
        self._event = _cuda.Event(enable_timing, blocking)

    @classmethod
    def from_ipc_handle(cls, device: Device, handle: bytes) -> Event:
        """Would open an event of another process.

        Args:
            device: not looked at.
            handle: not looked at.

        Raises:
            NotImplementedError: always; events of other processes are not supported.
        """
        raise NotImplementedError("Event.from_ipc_handle: events of other processes are not supported")

    @property
    def device(self) -> _C.device | None:
        """Where the event was first recorded, or None."""
        index = self._event.device_index
        return None if index < 0 else _C.device("cuda", index)

    @property
    def cuda_event(self) -> int:
        """The cudaEvent_t as an int; 0 before the first record."""
        return self._event.handle

    def record(self, stream: Stream | None = None) -> None:
        """Marks the present end of a stream, the current one by default.

        Args:
            stream: of the event's device.
        """
        stream = current_stream() if stream is None else stream
        self._event.record(stream.device.index, stream.cuda_stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Holds further work of a stream (the current one by default) until the mark is reached.

        Args:
            stream: of any device.
        """
        stream = current_stream() if stream is None else stream
        self._event.wait(stream.device.index, stream.cuda_stream)

    def query(self) -> bool:
        """Whether the work that the event marks is done.

        It does not wait; an event that was never recorded is done.
        """
        return self._event.query()

    def synchronize(self) -> None:
        """Waits until the work that the event marks is done.

        The calling thread waits; other streams go on.
        """
        self._event.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this mark to the other's.

        Raises:
            ValueError: an event without enable_timing, or not recorded.
            RuntimeError: a mark that is not reached yet.
        """
        return self._event.elapsed_ms(end_event._event)

    def ipc_handle(self) -> bytes:
        """Not supported.

        Raises: NotImplementedError always.
        """
        raise NotImplementedError("Event.ipc_handle: interprocess events are not supported")

    def __repr__(self) -> str:
        return (
            f"<torch.cuda.Event {self.cuda_event:#x}>"
            if self.cuda_event
            else "<torch.cuda.Event uninitialized>"
        )


def _stream_object(index: int, handle: int) -> Stream:
    return Stream.__new__(Stream)._set(index, handle)


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that the calling thread's work on a device goes to.

    Args:
        device: the current one if None.
    """
    index = device_index(device)
    return _stream_object(index, _cuda.current_stream(index))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that is current unless another was set.

    Args:
        device: the current one if None.
    """
    index = device_index(device)
    _cuda.current_stream(index)  # an error for an ordinal that there is not
    return _stream_object(index, 0)


def set_stream(stream: Stream | None) -> None:
    """Makes a stream the current one of its device, and that device the current one; None does nothing.

    Args:
        stream: of any device.
    """
    if stream is not None:
        _cuda.set_stream(stream.device.index, stream.cuda_stream)


class StreamContext:
    """Makes a stream the current one within a `with` block, and its device the current device.

    Args:
        stream: None changes nothing.
    """

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before: tuple[int, int] = (-1, 0)

    def __enter__(self) -> None:
        if self.stream is None:
            return
        index = self.stream.device.index
        self._before = current_device(), _cuda.current_stream(index)
        set_stream(self.stream)

    def __exit__(self, *error: Any) -> None:
        if self.stream is None:
            return
        device, stream = self._before
        _cuda.set_stream(self.stream.device.index, stream)
        _cuda.set_device(device)


def stream(stream: Stream | None) -> StreamContext:
    """The context in which `stream` is the current one; None changes nothing.

    Args:
        stream: of any device.
    """
    return StreamContext(stream)
