"""Seeds and states of the rank's default generator."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from . import _C

default_generator = _C.default_generator


def manual_seed(seed: int) -> _C.Generator:
    """Restarts the default generator from a 64-bit seed (negative ones count down from 2**64)."""
    return default_generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the default generator from the system's entropy and returns the seed."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed that the default generator was last given."""
    return default_generator.initial_seed()


def get_rng_state() -> Any:
    """The default generator's state, a uint8 tensor."""
    return default_generator.get_state()


def set_rng_state(new_state: Any) -> None:
    """Restores what get_rng_state() returned. ValueError on other bytes."""
    default_generator.set_state(new_state)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **_: Any) -> Any:
    """Puts the default generator's state back at the end."""
    state = get_rng_state() if enabled else None
    try:
        yield
    finally:
        if state is not None:
            set_rng_state(state)
