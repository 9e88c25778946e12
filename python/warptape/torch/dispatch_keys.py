"""PyTorch's dispatch keys, as far as libraries name them: those of autocast can be switched off."""

from __future__ import annotations

import enum
from types import TracebackType
from typing import Any

from .. import _C
from ..amp import is_autocast_enabled, set_autocast_enabled


class DispatchKey(enum.Enum):
    """What torch._C.DispatchKey lists; here ops are found by device, and by switches of the thread."""

    CPU, CUDA, XPU, Meta = "CPU", "CUDA", "XPU", "Meta"
    Autograd, AutogradCPU, AutogradCUDA = "Autograd", "AutogradCPU", "AutogradCUDA"
    AutocastCPU, AutocastCUDA, AutocastXPU = "AutocastCPU", "AutocastCUDA", "AutocastXPU"
    CompositeImplicitAutograd, CompositeExplicitAutograd = (
        "CompositeImplicitAutograd",
        "CompositeExplicitAutograd",
    )


class DispatchKeySet:
    """A set of dispatch keys: of one, or of others by `|`."""

    def __init__(self, *keys: DispatchKey) -> None:
        self._keys = frozenset(keys)

    def __or__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(*self._keys, *other._keys)

    def has(self, key: DispatchKey) -> bool:
        """Whether `key` is in the set."""
        return key in self._keys


class _ExcludeDispatchKeyGuard:
    """A context in which autocast is off for the devices whose keys are given.

    Raises:
        NotImplementedError: for keys of anything but autocast.
    """

    def __init__(self, keys: DispatchKeySet) -> None:
        names = {key.value for key in keys._keys}
        if others := sorted(n for n in names if not n.startswith("Autocast")):
            raise NotImplementedError(
                f"torch._C._ExcludeDispatchKeyGuard: expected keys of autocast, got {', '.join(others)}"
            )
        self._devices = [d for d in ("cpu", "cuda") if f"Autocast{d.upper()}" in names]
        self._on: list[str] = []

    def __enter__(self) -> None:
        self._on = [d for d in self._devices if is_autocast_enabled(d)]
        for device in self._on:
            set_autocast_enabled(device, False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        for device in self._on:
            set_autocast_enabled(device, True)


def _get_accelerator() -> Any:
    """The device of the accelerator that is found, else the CPU."""
    from .names.accelerator import current_accelerator

    return current_accelerator(True) or _C.device("cpu")
