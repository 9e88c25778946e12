"""torch.xpu, torch.mps and torch.mtia without such devices: what PyTorch's builds without them say."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from .. import cuda
from .names import accelerator as _accelerator

if TYPE_CHECKING:
    from warptape.core.types import Device

_XPU = AssertionError, "Torch not compiled with XPU enabled"
_CUDA = AssertionError, "Torch not compiled with CUDA enabled"


def _gives(value: object) -> Callable[..., Any]:
    """A function that ignores its arguments."""

    def give(*args: Any, **kwargs: Any) -> Any:
        """What PyTorch tells without such a device: nothing, zero, or nothing in a list."""
        return value() if callable(value) else value

    return give


def _fails(error: type[Exception], text: str) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        """Fails: there is no such device."""
        raise error(text)

    return fail


def _without(device: str, **calls: str) -> dict[str, Callable[..., Any]]:
    """Of each name the function that fails as PyTorch's call of the backend does."""
    return {
        n: _fails(RuntimeError, f"Cannot execute {c}() without {device} backend.") for n, c in calls.items()
    }


class _Nothing:
    """A context that changes nothing; of a device or stream that is not there, it cannot be entered."""

    def __init__(self, which: Any, error: tuple[type[Exception], str]) -> None:
        self._which, self._error = which, error

    def __enter__(self) -> None:
        if self._which is not None and self._which != -1:
            raise self._error[0](self._error[1])

    def __exit__(self, *args: Any) -> None:
        return None


class device(_Nothing):
    """torch.xpu.device: None is no device and changes nothing."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, _XPU)


class StreamContext(_Nothing):
    """torch.xpu.StreamContext: None is no stream and changes nothing."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream, _XPU)


_NONE = "empty_cache manual_seed manual_seed_all seed seed_all set_rng_state set_rng_state_all set_stream"
_ZERO = "max_memory_allocated max_memory_reserved memory_allocated memory_reserved"
_FAILS = """current_device current_stream get_device_capability get_device_name get_device_properties init
    get_rng_state initial_seed is_current_stream_capturing mem_get_info reset_accumulated_memory_stats
    reset_peak_memory_stats set_device set_per_process_memory_fraction synchronize"""
xpu = SimpleNamespace(
    **{name: _gives(None) for name in _NONE.split()},
    **{name: _gives(0) for name in _ZERO.split()},
    **{name: _fails(*_XPU) for name in _FAILS.split()},
    get_arch_list=_gives(list),
    get_gencode_flags=_gives(""),
    get_rng_state_all=_gives(list),
    is_bf16_supported=_gives(False),
    is_initialized=_gives(False),
    is_tf32_supported=_gives(False),
    memory_snapshot=_gives(list),
    memory_stats=_gives(dict),
    memory_stats_as_nested_dict=_gives(dict),
    device=device,
    StreamContext=StreamContext,
    stream=StreamContext,
)
mps = SimpleNamespace(
    **_without(
        "MPS",
        current_allocated_memory="getCurrentAllocatedMemory",
        driver_allocated_memory="getDriverAllocatedMemory",
        empty_cache="emptyCache",
        get_rng_state="getDefaultGenerator",
        recommended_max_memory="getRecommendedMaxMemory",
        seed="getDefaultGenerator",
        set_per_process_memory_fraction="setMemoryFraction",
        set_rng_state="getDefaultGenerator",
        synchronize="deviceSynchronize",
        Event="acquireEvent",
        is_macos_or_newer="isOnMacOSorNewer",
    ),
    manual_seed=_gives(None),
)
mtia = SimpleNamespace(
    **{name: _gives(None) for name in _NONE.split() if name != "empty_cache"},
    **_without(
        "MTIA",
        current_device="getCurrentDevice",
        current_stream="getCurrentDevice",
        default_stream="getCurrentDevice",
        empty_cache="emptyCache",
        get_device_capability="getCurrentDevice",
        get_device_properties="getCurrentDevice",
        set_device="setCurrentDevice",
        snapshot="memorySnapshot",
        stream="getCurrentDevice",
        synchronize="getCurrentDevice",
    ),
    device_count=_gives(0),
    get_rng_state_all=_gives(list),
    is_available=_gives(False),
    is_bf16_supported=_gives(True),
    is_initialized=_gives(False),
    max_memory_allocated=_gives(0),
    memory_allocated=_gives(0),
    memory_stats=_gives(dict),
    record_memory_history=_gives(None),
    reset_peak_memory_stats=_gives(None),
)


def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    """Free and all bytes of an accelerator. RuntimeError where there is none."""
    if _accelerator.current_accelerator() is None:
        raise RuntimeError("Cannot access accelerator device when none is available.")
    return cuda.mem_get_info(device_index)


class _Library:
    """The functions of CUDA's runtime that profilers call, by the names of the C interface."""

    def cudaProfilerStart(self) -> int:
        """0: no profiler of CUDA's is driven from here."""
        return 0

    cudaProfilerStop = cudaProfilerStart

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        """Free and all bytes of a device."""
        return cuda.mem_get_info(device)


def cudart() -> _Library:
    """CUDA's runtime. AssertionError where there is no GPU."""
    if not cuda.is_available():
        raise _CUDA[0](_CUDA[1])
    return _Library()


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Whether waits for the GPU warn (1, "warn") or fail (2, "error"): only "default" can be set.

    Raises:
        AssertionError: there is no GPU.
        NotImplementedError: another mode.
        RuntimeError: no mode.
    """
    modes = {"default": 0, "warn": 1, "error": 2}
    if isinstance(debug_mode, str):
        if debug_mode not in modes:
            raise RuntimeError(
                f"invalid value of debug_mode, expected one of `default`, `warn`, `error`, got {debug_mode}"
            )
        debug_mode = modes[debug_mode]
    if not cuda.is_available():
        raise _CUDA[0](_CUDA[1])
    if debug_mode:
        raise NotImplementedError("set_sync_debug_mode: waits for the GPU are not watched")


def get_sync_debug_mode() -> int:
    """0. AssertionError where there is no GPU."""
    if not cuda.is_available():
        raise _CUDA[0](_CUDA[1])
    return 0


def nccl_version() -> tuple[int, ...]:
    """The version of NCCL. RuntimeError where the build has none."""
    raise RuntimeError("torch.cuda.nccl.version: the build has no NCCL, or does not tell its version")


def nccl_is_available(tensors: Sequence[Any]) -> bool:
    """Whether all are dense contiguous tensors on different GPUs."""
    places = [t.device for t in tensors if t.is_cuda and t.is_contiguous()]
    return bool(places) and len(places) == len(tensors) == len(set(places))


# PyTorch's names of instructions where they are not /proc/cpuinfo's.
_FLAGS = {"bmi": "bmi1", "fma3": "fma", "lzcnt": "abm", "sha": "sha_ni", "sse3": "pni"}
_SAME = """aes amx_bf16 amx_fp16 amx_int8 amx_tile avx avx2 avx_vnni avx512_bf16 avx512_bitalg avx512_fp16
    avx512_vbmi2 avx512_vnni avx512_vpopcntdq bmi2 clflush clflushopt clwb f16c fma4 popcnt sse sse2 sse4_1
    sse4_2 sse4a ssse3"""
_FLAGS |= {name: name for name in _SAME.split()}
_FLAGS |= {f"avx512_{x}": f"avx512{x}" for x in ["f", "bw", "cd", "dq", "vl", "vbmi", "ifma"]}


def cpu_capabilities() -> Mapping[str, Any]:
    """This processor's kind, number of cores and instructions, as the system tells of them."""
    flags: set[str] = set()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        flags = next((set(line.split()) for line in file if line.startswith("flags")), set())
    told = {"architecture": platform.machine(), "num_logical_cores": os.cpu_count()}
    return MappingProxyType({**{name: flag in flags for name, flag in _FLAGS.items()}, **told})
