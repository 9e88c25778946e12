"""Seeds and states of the devices' default generators.

They are host objects, so seeding needs no device; warptape.manual_seed() seeds them as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import _C
from .devices import DeviceLike, _cuda, current_device, device_count, device_index, is_available

if TYPE_CHECKING:
    from warptape.core import Tensor


def default_generator(index: int) -> _C.Generator:
    """The default generator of a device, for the calling rank.

    Args:
        index: of the device.
    """
    return _cuda.default_generator(index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator; does nothing where there is no device.

    >>> torch.cuda.manual_seed(0)
    """
    if is_available():
        default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices; does nothing where there is no device.

    Args:
        seed: its lowest 64 bits count.
    """
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
    """The state of a device's generator, a uint8 tensor in host memory.

    Args:
        device: the current one for "cuda".
    """
    return default_generator(device_index(device)).get_state()


def get_rng_state_all() -> list[Any]:
    """The states of all devices' generators."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state(new_state: Tensor, device: DeviceLike = "cuda") -> None:
    """Restores what get_rng_state() returned. ValueError on other bytes.

    Args:
        new_state: uint8, in host memory.
        device: the current one for "cuda".
    """
    default_generator(device_index(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Any]) -> None:
    """Restores what get_rng_state_all() returned.

    Args:
        new_states: one for each device.
    """
    for i, state in enumerate(new_states):
        set_rng_state(state, i)
