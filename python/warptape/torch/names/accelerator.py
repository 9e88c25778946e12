"""torch.accelerator's names: the GPUs of warptape.cuda, and answers where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warptape import _C, cuda
from warptape.cuda import is_available

if TYPE_CHECKING:
    from warptape.core.types import Device

_SHARED = """current_stream device_count empty_cache get_device_capability is_available max_memory_allocated
max_memory_reserved memory_allocated memory_reserved memory_stats reset_peak_memory_stats set_stream"""
globals().update({name: getattr(cuda, name) for name in _SHARED.split()})


def current_accelerator(check_available: bool = False) -> _C.device | None:
    """`device("cuda")` where this build serves GPUs, else None; `check_available`: where one is found.

    Args:
        check_available: whether one must be found.
    """
    return _C.device("cuda") if is_available() or (_built() and not check_available) else None


def _built() -> bool:
    return bool(_C._build_info()["cuda"])


def _required() -> None:
    if current_accelerator() is None:
        raise RuntimeError("Cannot access accelerator device when none is available.")


def current_device_index() -> int:
    """The number of the calling thread's current device. RuntimeError without one."""
    _required()
    return cuda.current_device()


def set_device_index(device: Device) -> None:
    """Makes a device the calling thread's current one. RuntimeError without one.

    Args:
        device: a number or a device.
    """
    _required()
    cuda.set_device(device)


current_device_idx, set_device_idx = current_device_index, set_device_index


def synchronize(device: Device = None) -> None:
    """Waits for all that a device was given to do. RuntimeError without one.

    Args:
        device: the current one if None.
    """
    _required()
    cuda.synchronize(device)


class device_index(cuda.device):
    """Within this context a device is the current one; None changes nothing.

    Args:
        device: a number.
    """
