"""torch.cpu: the names of a device module, for programs that take the module by the device's type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._missing import install_getattr as _install_getattr


class Stream:
    """There is one, in which all work is done at once."""

    def __init__(self, priority: int = -1) -> None:
        self.priority = priority

    def wait_stream(self, stream: Any) -> None:
        """Does nothing."""


class Event:
    """Marks nothing: what was called has been done."""

    def query(self) -> bool:
        """Whether what came before is done: True."""
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
    """The current device's name: cpu, whatever is set."""
    return "cpu"


def current_stream(device: Any = None) -> Stream:
    """The only stream."""
    return _stream


def device_count() -> int:
    """How many CPU devices there are: 1, whatever the number of processors."""
    return 1


def is_available() -> bool:
    """Whether the CPU can be used: True."""
    return True


def is_initialized() -> bool:
    """Whether the CPU is ready: True."""
    return True


def set_device(device: Any) -> None:
    """Does nothing."""


def synchronize(device: Any = None) -> None:
    """Does nothing: what was called has been done."""


def _supported(*flags: str) -> Callable[[], bool]:
    def supported() -> bool:
        """Whether the processor has it, as /proc/cpuinfo says."""
        from .doctor import cpu_flags

        return cpu_flags().issuperset(flags)

    return supported


_is_avx2_supported = _supported("avx2", "fma")
_is_avx512_supported = _supported("avx512f", "avx512bw", "avx512dq", "avx512vl")
_is_avx512_bf16_supported = _supported("avx512_bf16")
_is_vnni_supported = _supported("avx512_vnni")
_is_amx_tile_supported = _supported("amx_tile")

_install_getattr(__name__)
