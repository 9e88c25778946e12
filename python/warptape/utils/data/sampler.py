"""The order in which samples are taken. Random orders equal PyTorch's for the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import warptape
from warptape import Generator

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

T_co = TypeVar("T_co", covariant=True)

# With replacement, indices are drawn in blocks of this many. It is PyTorch's number: a pass that is given up
# midway leaves the random stream at the same place.
_DRAW_BLOCK = 32


class Sampler(Generic[T_co]):
    """Base of samplers: define ``__iter__()`` over indices or lists of them, and usually ``__len__()``."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError("Subclasses of Sampler should implement __iter__.")


def _check_bool(name: str, value: Any, error: type[Exception] = ValueError) -> None:
    if not isinstance(value, bool):
        raise error(f"{name} should be a boolean value, but got {name}={value}")


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value}")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ... up to the length of ``data_source``."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """Random indices into ``data_source``.

    Args:
        replacement: draw each index independently instead of going through a permutation.
        num_samples: how many to draw; default all. Without replacement, more than all start another
            permutation.
        generator: None seeds one of its own from the default generator at each start.

    Raises:
        TypeError: ``replacement`` is no bool.
        ValueError: ``num_samples`` is no positive integer, or the data source is empty.

    >>> sorted(torch.utils.data.RandomSampler(range(3)))
    [0, 1, 2]
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source, self.replacement = data_source, replacement
        self._num_samples = num_samples
        self.generator = generator
        _check_bool("replacement", replacement, TypeError)
        _check_count("num_samples", self.num_samples)

    @property
    def num_samples(self) -> int:
        """How many indices one pass gives; follows the dataset's length unless it was set."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        n, count = len(self.data_source), self.num_samples
        if n == 0:  # it was emptied after the sampler was made
            raise ValueError(
                f"RandomSampler: expected a data source to draw {count} samples from, got an empty one"
            )
        generator = self.generator
        if generator is None:
            generator = warptape.Generator()
            generator.manual_seed(int(warptape.empty((), dtype=warptape.int64).random_().item()))
        if self.replacement:
            for start in range(0, count, _DRAW_BLOCK):
                size = (min(_DRAW_BLOCK, count - start),)
                yield from warptape.randint(n, size, dtype=warptape.int64, generator=generator).tolist()
        else:
            # The last permutation is drawn even if none of it is used: PyTorch's stream goes on from there.
            for left in range(count, -1, -n):
                yield from warptape.randperm(n, generator=generator).tolist()[:left]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """``indices`` in random order, without replacement."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        for i in warptape.randperm(len(self.indices), generator=self.generator).tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices into ``weights`` with those probabilities (they need not add up to 1).

    Raises:
        ValueError: ``num_samples`` is no positive integer, ``replacement`` no bool, or ``weights`` has not
            one dimension.

    >>> list(torch.utils.data.WeightedRandomSampler([0.0, 1.0], 3))
    [1, 1, 1]
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        _check_count("num_samples", num_samples)
        _check_bool("replacement", replacement)
        values = warptape.as_tensor(weights, dtype=warptape.float64)
        if values.dim() != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {tuple(values.shape)}"
            )
        self.weights = values
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        drawn = warptape.multinomial(
            self.weights, self.num_samples, self.replacement, generator=self.generator
        )
        yield from drawn.tolist()

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of ``batch_size`` indices of ``sampler``; the last may be shorter unless ``drop_last``.

    Raises:
        ValueError: ``batch_size`` is no positive integer, or ``drop_last`` no bool.
    """

    def __init__(self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool) -> None:
        _check_count("batch_size", batch_size)
        _check_bool("drop_last", drop_last)
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)  # type: ignore[arg-type]
        return full if self.drop_last or not rest else full + 1
