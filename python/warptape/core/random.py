"""Seeds and states of the rank's default generator."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import _C

if TYPE_CHECKING:
    from .tensor_class import Tensor

default_generator = _C.default_generator  # the process's; a rank that is a thread has one of its own


def manual_seed(seed: int) -> _C.Generator:
    """Restarts the default generators of all devices from a 64-bit seed (negative: counted from 2**64).

    >>> _ = torch.manual_seed(0)
    >>> x = torch.rand(2)
    >>> _ = torch.manual_seed(0)
    >>> torch.equal(x, torch.rand(2))
    True
    """
    generator = _C._default_generator().manual_seed(int(seed))
    _C._seed_cuda(generator.initial_seed())
    return generator


def seed() -> int:
    """Seeds the default generators from the system's entropy and returns the seed.

    All processes and runs then draw other numbers.
    """
    number = _C._default_generator().seed()
    _C._seed_cuda(number)
    return number


def initial_seed() -> int:
    """The seed that the default generator was last given.

    It tells how to repeat a run that was not seeded.
    """
    return _C._default_generator().initial_seed()


def get_rng_state() -> Any:
    """The default generator's state, a uint8 tensor.

    >>> state = torch.get_rng_state()
    >>> first = torch.rand(2)
    >>> torch.set_rng_state(state)
    >>> bool((torch.rand(2) == first).all())
    True
    """
    return _C._default_generator().get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Restores what get_rng_state() returned. ValueError on other bytes.

    Args:
        new_state: uint8.
    """
    _C._default_generator().set_state(new_state)


def all_states() -> list[tuple[_C.Generator, Any]]:
    """The default generators in use, the CPU's and those of CUDA devices, each with its state."""
    generators = [_C._default_generator()]
    if _C._cuda_in_use():
        cuda = _C._cuda_module()
        generators.extend(cuda.default_generator(i) for i in range(cuda.device_count()))
    return [(g, g.get_state()) for g in generators]


def restore_states(states: list[tuple[_C.Generator, Any]]) -> None:
    """Puts back what all_states() gave.

    Args:
        states: generators and their states.
    """
    for generator, state in states:
        generator.set_state(state)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **_: Any) -> Any:
    """Puts the states of the default generators, of all devices in use, back at the end.

    Args:
        devices: without effect: all in use count.
        enabled: whether it does so.
        **_: without effect.

    >>> with torch.random.fork_rng():
    ...     first = torch.rand(2)
    >>> bool((torch.rand(2) == first).all())
    True
    """
    states = all_states() if enabled else []
    try:
        yield
    finally:
        restore_states(states)
