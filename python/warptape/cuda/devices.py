"""Devices: how many there are, what they are, which one the calling thread uses."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from .. import _C

_cuda = _C._cuda_module()
#: What may name a device: its ordinal, "cuda", "cuda:1", a torch.device, or None for the current one.
DeviceLike = Any


def is_available() -> bool:
    """Whether there is a CUDA device that this build can use. Never raises.

    >>> device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    """
    return device_count() > 0


def device_count() -> int:
    """The number of CUDA devices; 0 without a CUDA build, a driver or a device.

    >>> torch.cuda.device_count() >= 0
    True
    """
    try:
        return _cuda.device_count()
    except RuntimeError:
        return 0


def is_initialized() -> bool:
    """Whether this process has used a CUDA device."""
    return _cuda.in_use()


def init() -> None:
    """Opens the CUDA runtime, which the first use of a device does otherwise.

    Raises:
        DeviceError: that failed; the text says what is missing.
    """
    _cuda.current_device()


def current_device() -> int:
    """The ordinal of the calling thread's current device, which the device "cuda" stands for.

    >>> if torch.cuda.is_available():
    ...     torch.cuda.set_device(torch.cuda.current_device())
    """
    return _cuda.current_device()


def set_device(device: DeviceLike) -> None:
    """Makes a device the calling thread's current one.

    Args:
        device: a device, "cuda:1" or an ordinal; a negative ordinal changes nothing.

    Raises:
        ValueError: another kind of device.
    """
    index = device_index(device)
    if index >= 0:
        _cuda.set_device(index)


def device_index(device: DeviceLike = None, allow_cpu: bool = False) -> int:
    """The ordinal that `device` stands for; -1 for the CPU where that is allowed.

    Raises:
        ValueError: another kind of device.
        DeviceError: "cuda" or None where there is none.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if device is None:
        return current_device()
    if isinstance(device, str):
        device = _C.device(device)
    if not isinstance(device, _C.device):
        raise TypeError(f"expected a device, a string or an int, got {type(device).__name__}")
    if allow_cpu and device.type == "cpu":
        return -1
    if device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return current_device() if device.index is None else device.index


class device:
    """Makes a device the current one within a `with` block.

    Args:
        device: a device, "cuda:1" or an ordinal; None or a negative ordinal changes nothing.
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = current_device()
            _cuda.set_device(self.idx)

    def __exit__(self, *error: Any) -> None:
        if self.prev_idx >= 0:
            _cuda.set_device(self.prev_idx)


class device_of(device):
    """Makes the device of a tensor the current one within a `with` block.

    Args:
        obj: a tensor or a storage; one of another kind of device changes nothing.
    """

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


class _CudaDeviceProperties(SimpleNamespace):
    """What a device is: name, compute capability (major, minor), memory and caches in bytes, units."""

    def __repr__(self) -> str:
        mib = 1 << 20
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // mib}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size // mib}MB)"
        )


def get_device_properties(device: DeviceLike = None) -> _CudaDeviceProperties:
    """Name, memory, compute capability and counts of units of a device.

    Args:
        device: a device, "cuda:1" or an ordinal; the current one if None.

    Raises:
        DeviceError: there is no such device.
    """
    return _CudaDeviceProperties(**_cuda.properties(device_index(device)))


def get_device_name(device: DeviceLike = None) -> str:
    """The device's name, as "NVIDIA H200".

    Args:
        device: a device, "cuda:1" or an ordinal; the current one if None.
    """
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """The device's compute capability.

    Args:
        device: a device, "cuda:1" or an ordinal; the current one if None.

    Returns:
        Its major and minor number: (9, 0) of an H200.
    """
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether a device can read another's memory directly.

    Args:
        device: the one that reads.
        peer_device: the one whose memory is read.
    """
    return _cuda.can_access_peer(device_index(device), device_index(peer_device))


def get_arch_list() -> list[str]:
    """The architectures that the CUDA plugin was compiled for.

    Returns:
        Names as "sm_90a"; an empty list where there is no device.
    """
    if not is_available():
        return []
    return re.findall(r"(?:sm|compute)_\w+", _C._build_info()["cuda"])


def get_gencode_flags() -> str:
    """The flags of nvcc that compile for the architectures of `get_arch_list()`.

    Returns:
        "-gencode compute=..,code=.." of each, with spaces between them.
    """
    return " ".join(f"-gencode compute={a.replace('sm', 'compute')},code={a}" for a in get_arch_list())


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the current device computes in bfloat16.

    Args:
        including_emulation: False asks for hardware, which devices of compute capability 8.0 and later have.
    """
    return is_available() and (including_emulation or get_device_capability()[0] >= 8)


def is_tf32_supported() -> bool:
    """Whether the current device multiplies matrices in TF32.

    Devices of compute capability 8.0 and later do.
    """
    return is_available() and get_device_capability()[0] >= 8


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work of a device.

    Raises:
        IndexError: a kernel met a bad index.
        DeviceError: a kernel failed.
    """
    _cuda.synchronize(device_index(device))
