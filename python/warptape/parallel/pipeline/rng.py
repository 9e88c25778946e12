"""Dropout in a pipeline draws what one process draws for the whole batch.

Dropout is keyed by seed, number of the call and index of the element. In one process a step's calls are
numbered through all layers, each over the whole batch. So a stage's first call has the number of its place in
the model, the same for every micro-batch, and micro-batch j draws the j-th part of the numbers. Other random
ops (rand, randn, ...) are not taken care of: they draw from the rank's own generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from warptape import core as wt

from ... import _C

_set_parts: Any = _C._private._set_drop_parts


def generator_of(device: wt.device) -> Any:
    """The default generator that ops of a device draw from.

    Args:
        device: "cpu" or "cuda".
    """
    if device.type == "cuda":
        return _C._cuda_module().default_generator(device.index)
    return _C._default_generator()


def get_calls(generator: Any) -> int:
    """How many dropout calls the generator has numbered.

    Args:
        generator: a default one.
    """
    return int(generator.get_state().numpy().view("int64")[2])  # after magic and seed


def set_calls(generator: Any, calls: int) -> None:
    """Lets the next dropout call have this number.

    Args:
        generator: a default one.
        calls: the number.
    """
    state = generator.get_state()
    state.numpy().view("int64")[2] = calls
    generator.set_state(state)


@contextmanager
def slice_of_batch(index: int, count: int) -> Iterator[None]:
    """Inside, the inputs of dropout and attention are the part of this index, of equal ones along dim 0; of
    the part that split_randomness(mesh, 0) says is this rank's."""
    before = _set_parts(())
    _set_parts((before[0] * count + index, *before[1:]))
    try:
        yield
    finally:
        _set_parts(tuple(before))
