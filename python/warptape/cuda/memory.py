"""What the caching allocator of a device holds; sizes are in bytes.

"Allocated" is what tensors hold, "reserved" is that and what the allocator keeps for the next tensors.
"""

from __future__ import annotations

from collections import OrderedDict

from .. import _C
from ._memory_history import (  # noqa: F401 - torch.cuda.memory's names
    _dump_snapshot,
    _record_memory_history,
    _snapshot,
    memory_snapshot,
)
from .devices import DeviceLike, _cuda, device_index, is_initialized

OutOfMemoryError = _C.OutOfMemoryError
_fractions: dict[int, float] = {}


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, int]:
    """All counters of the allocator by PyTorch's names; empty before a device was used.

    Args:
        device: the current one if None.
    """
    if not is_initialized():
        return OrderedDict()
    return OrderedDict(sorted(_cuda.memory_stats(device_index(device))))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that tensors hold now.

    Args:
        device: the current one if None.
    """
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that tensors held since the start or the last reset_peak_memory_stats().

    Args:
        device: the current one if None.
    """
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that the allocator has taken from the device.

    Args:
        device: the current one if None.
    """
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that the allocator had since the start or the last reset_peak_memory_stats().

    Args:
        device: the current one if None.
    """
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


memory_cached, max_memory_cached = memory_reserved, max_memory_reserved  # the old names


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the peaks anew from what is held now.

    Args:
        device: the current one if None.
    """
    _cuda.reset_peak_memory(device_index(device))


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats  # the old names


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of the device, over all processes.

    Args:
        device: the current one if None.
    """
    return _cuda.memory_info(device_index(device))


def empty_cache() -> None:
    """Gives what no tensor holds back to the devices; does nothing before a device was used.

    >>> torch.cuda.empty_cache()
    """
    _cuda.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits the allocator to a part of the device's memory; beyond it, OutOfMemoryError is raised.

    Raises:
        ValueError: a fraction outside of 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = device_index(device)
    _cuda.set_memory_fraction(index, fraction)
    _fractions[index] = fraction


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The part of the device's memory that the allocator may take; 1 unless set.

    Args:
        device: the current one if None.
    """
    return _fractions.get(device_index(device), 1.0)


def _size(n: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(n) < 100 * 1024:
            return f"{n} {unit}"
        n //= 1024
    return f"{n} GiB"


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A table of the allocator's counters: now, at the peak, taken and given back in all.

    Args:
        abbreviated: leave out the split into small and large blocks.
    """
    stats = memory_stats(device)
    index = device_index(device) if stats else 0
    names = dict.fromkeys(key.rsplit(".", 1)[0] for key in stats if key.count(".") == 2)
    if abbreviated:
        names = {name: None for name in names if name.endswith(".all")}
    columns = ("current", "peak", "allocated", "freed")
    lines = [f"Memory of CUDA device {index}", f"{'':32}" + "".join(f"{c:>14}" for c in columns)]
    for name in names:
        values = [stats.get(f"{name}.{c}") for c in columns]
        show = _size if "bytes" in name else str
        lines.append(f"{name:32}" + "".join(f"{'' if v is None else show(v):>14}" for v in values))
    lines.extend(f"{key:32}{value:14}" for key, value in stats.items() if key.count(".") != 2)
    return "\n".join(lines) + "\n"
