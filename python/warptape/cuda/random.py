"""Seeds and states of the devices' default generators.

They are host objects, so seeding needs no device; warptape.manual_seed() seeds them as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _C
from ._device import DeviceLike, _cuda, current_device, device_count, device_index, is_available


def default_generator(index: int) -> _C.Generator:
    """The default generator of a device, for the calling rank."""
    return _cuda.default_generator(index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator; does nothing where there is no device.

    >>> torch.cuda.manual_seed(0)
    """
    if is_available():
        default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices; does nothing where there is no device."""
    _C._seed_cuda(int(seed) & (2**64 - 1))


def seed() -> None:
    """Seeds the current device's generator from the system's entropy."""
    if is_available():
        default_generator(current_device()).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one number from the system's entropy."""
    manual_seed_all(_C.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generator(current_device()).initial_seed()


def get_rng_state(device: DeviceLike = "cuda") -> Any:
    """The state of a device's generator, a uint8 tensor in host memory."""
    return default_generator(device_index(device)).get_state()


def get_rng_state_all() -> list[Any]:
    """The states of all devices' generators."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state(new_state: Any, device: DeviceLike = "cuda") -> None:
    """Restores what get_rng_state() returned. ValueError on other bytes."""
    default_generator(device_index(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Any]) -> None:
    """Restores what get_rng_state_all() returned."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)
