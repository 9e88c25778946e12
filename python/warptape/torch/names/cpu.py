"""torch.cpu: the names of a device module, for programs that take the module by the device's type."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warptape._processor import cpu_flags as _cpu_flags

if TYPE_CHECKING:
    from warptape.core.types import Device


class Stream:
    """There is one, in which all work is done at once.

    Args:
        priority: without effect.
    """

    def __init__(self, priority: int = -1) -> None:
        self.priority = priority

    def wait_stream(self, stream: Any) -> None:
        """Does nothing.

        Args:
            stream: not looked at.
        """


class Event:
    """Marks nothing: what was called has been done.

    Programs that are written for GPUs run with it.
    """

    def query(self) -> bool:
        """Whether the work before the event is done.

        Returns:
            True: on the CPU a call returns when its work is done.
        """
        return True

    def record(self, stream: Any = None) -> None:
        """Does nothing.

        Args:
            stream: not looked at.
        """

    def synchronize(self) -> None:
        """Does nothing."""

    def wait(self, stream: Any = None) -> None:
        """Does nothing.

        Args:
            stream: not looked at.
        """


class StreamContext:
    """A context in which nothing changes.

    Args:
        stream: not looked at.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


stream = StreamContext
_stream = Stream()


def current_device() -> str:
    """The name of the current device.

    Returns:
        "cpu", whatever was set.
    """
    return "cpu"


def current_stream(device: Device = None) -> Stream:
    """The only stream.

    Args:
        device: not looked at.
    """
    return _stream


def device_count() -> int:
    """How many CPU devices there are.

    Returns:
        1, whatever the number of processors.
    """
    return 1


def is_available() -> bool:
    """Whether the CPU can be used: True."""
    return True


def is_initialized() -> bool:
    """Whether the CPU is ready: True."""
    return True


def set_device(device: Device) -> None:
    """Does nothing.

    Args:
        device: not looked at.
    """


def synchronize(device: Device = None) -> None:
    """Does nothing: what was called has been done.

    Args:
        device: not looked at.
    """


class _Properties:
    """What is known of the processor: its name, and the bytes of memory that this process can have."""

    def __init__(self) -> None:
        self.name = _processor_name()
        self.total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            named = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else platform.machine()


def get_device_properties(device: Device = None) -> _Properties:
    """The processor's name and the machine's memory in bytes, `total_memory`.

    Args:
        device: not looked at.
    """
    return _Properties()


def get_device_name(device: Device = None) -> str:
    """The processor's name, as the system has it.

    Args:
        device: not looked at.
    """
    return _processor_name()


def memory_stats(device: Device = None) -> dict[str, int]:
    """Bytes of this process by the names that CUDA's allocator has for its own: "active_bytes.all.current",
    "active_bytes.all.peak", and the same of "reserved_bytes". Empty where the system does not tell.

    Args:
        device: not looked at.
    """
    stats: dict[str, int] = {}
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                for kind in ("active_bytes", "reserved_bytes"):
                    when = "current" if name == "VmRSS" else "peak"
                    stats[f"{kind}.all.{when}"] = int(value.split()[0]) * 1024
    return stats


def reset_peak_memory_stats(device: Device = None) -> None:
    """The peak is what the process holds now.

    Args:
        device: not looked at.
    """
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def empty_cache() -> None:
    """Does nothing: memory of the CPU goes back by itself."""


def _supported(*flags: str) -> Callable[[], bool]:
    def supported() -> bool:
        """Whether the processor has it, as /proc/cpuinfo says."""
        return _cpu_flags().issuperset(flags)

    return supported


_is_avx2_supported = _supported("avx2", "fma")
_is_avx512_supported = _supported("avx512f", "avx512bw", "avx512dq", "avx512vl")
_is_avx512_bf16_supported = _supported("avx512_bf16")
_is_vnni_supported = _supported("avx512_vnni")
_is_amx_tile_supported = _supported("amx_tile")
