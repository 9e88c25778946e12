"""torch.cpu: the names of a device module, for programs that take the module by the device's type."""

from __future__ import annotations

from typing import Any

from ._missing import lookup as _lookup


class Stream:
    """There is one, in which all work is done at once."""

    def __init__(self, priority: int = -1) -> None:
        self.priority = priority

    def wait_stream(self, stream: Any) -> None:
        """Does nothing."""


class Event:
    """Marks nothing: what was called has been done."""

    def query(self) -> bool:
        """True."""
        return True

    def record(self, stream: Any = None) -> None:
        """Does nothing."""

    def synchronize(self) -> None:
        """Does nothing."""

    def wait(self, stream: Any = None) -> None:
        """Does nothing."""


class StreamContext:
    """A context in which nothing changes."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


stream = StreamContext
_stream = Stream()


def current_device() -> str:
    """ "cpu"."""
    return "cpu"


def current_stream(device: Any = None) -> Stream:
    """The only stream."""
    return _stream


def device_count() -> int:
    """1."""
    return 1


def is_available() -> bool:
    """True."""
    return True


def is_initialized() -> bool:
    """True."""
    return True


def set_device(device: Any) -> None:
    """Does nothing."""


def synchronize(device: Any = None) -> None:
    """Does nothing: what was called has been done."""


__getattr__ = _lookup(__name__)
