"""Pipes that change the order of samples."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import warptape

from ...sampler import Sampler, SequentialSampler
from ..datapipe import IterDataPipe, functional_datapipe
from ..utils.common import length_of


class SamplerIterDataPipe(IterDataPipe[Any]):
    """Gives what a sampler over `datapipe` gives: indices.

    Args:
        sampler: a class, called with `data_source=datapipe` and the arguments.

    Raises:
        AssertionError: `datapipe` has no length.
    """

    def __init__(
        self,
        datapipe: Any,
        sampler: type[Sampler[Any]] = SequentialSampler,
        sampler_args: tuple[Any, ...] | None = None,
        sampler_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(datapipe, Sized):
            raise AssertionError("Sampler class requires input datapipe implemented `__len__`")
        self.datapipe = datapipe
        self.sampler_args = sampler_args or ()
        self.sampler_kwargs = {**(sampler_kwargs or {}), "data_source": datapipe}
        self.sampler = sampler(*self.sampler_args, **self.sampler_kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sampler)

    def __len__(self) -> int:
        return length_of(self.sampler, self)


def new_seed() -> int:
    """A seed from the default generator."""
    return int(warptape.empty((), dtype=warptape.int64).random_().item())


class Shuffled(IterDataPipe[Any]):
    """A pipe whose order a seed decides: one that is set holds for one pass."""

    _rng: random.Random
    _enabled = True
    _seed: int | None = None

    def set_shuffle(self, shuffle: bool = True) -> Any:
        """Whether it shuffles."""
        self._enabled = shuffle
        return self

    def set_seed(self, seed: int) -> Any:
        """The seed of the next pass."""
        self._seed = seed
        return self

    def _seed_order(self) -> None:
        self._rng.seed(new_seed() if self._seed is None else self._seed)
        self._seed = None


@functional_datapipe("shuffle")
class ShufflerIterDataPipe(Shuffled):
    """Shuffles through a buffer: each sample read takes the place of a random one of it, which is given.

    Args:
        buffer_size: a whole shuffle needs one of the stream's length; 1 keeps the order.
        unbatch_level: `unbatch()` first, so many levels.

    The order follows `set_seed()`, which holds for one pass, else a seed from the default generator. A
    DataLoader sets it.

    Raises:
        AssertionError: `buffer_size` is not positive.
    """

    def __init__(self, datapipe: Any, *, buffer_size: int = 10000, unbatch_level: int = 0) -> None:
        if buffer_size <= 0:
            raise AssertionError("buffer_size should be larger than 0")
        self.datapipe = datapipe.unbatch(unbatch_level=unbatch_level) if unbatch_level else datapipe
        self.buffer_size = buffer_size
        self._rng = random.Random()
        self._buffer: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        if not self._enabled:
            yield from self.datapipe
            return
        buffer = self._buffer
        for x in self.datapipe:
            if len(buffer) < self.buffer_size:
                buffer.append(x)
                continue
            at = self._rng.randint(0, len(buffer) - 1)
            out, buffer[at] = buffer[at], x
            yield out
        while buffer:
            yield buffer.pop(self._rng.randint(0, len(buffer) - 1))

    def reset(self) -> None:
        """Empties the buffer and seeds the order."""
        self._buffer = []
        if self._enabled:
            self._seed_order()

    def __len__(self) -> int:
        return length_of(self.datapipe, self)
