"""The order in which samples are taken. Random orders equal PyTorch's for the same seed."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

from warptape import core as wt
from warptape.core import Generator

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
    """Base of samplers: define ``__iter__()`` over indices or lists of them, and usually ``__len__()``.

    >>> class Backwards(torch.utils.data.Sampler):
    ...     def __init__(self, data):
    ...         self.data = data
    ...     def __iter__(self):
    ...         return iter(reversed(range(len(self.data))))
    >>> list(torch.utils.data.DataLoader(range(3), batch_size=None, sampler=Backwards(range(3))))
    [2, 1, 0]
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError("Subclasses of Sampler should implement __iter__.")


def _check_bool(name: str, value: object, error: type[Exception] = ValueError) -> None:
    if not isinstance(value, bool):
        raise error(f"{name} should be a boolean value, but got {name}={value}")


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value}")


def draw_seed(generator: Generator | None = None) -> int:
    """A number of 64 bits from a generator, or from the default one.

    Args:
        generator: the default one if None; its state moves on.
    """
    return int(wt.empty((), dtype=wt.int64).random_(generator=generator).item())


class _Placed(Sampler[T_co]):
    """A sampler with a state: how far its newest pass is, and what its random order was drawn from.

    A pass gives runs of indices. Where it stands is read from the run's iterator when it is asked for, so
    that counting costs a pass nothing.
    """

    generator: Generator | None = None
    _place: dict[str, Any] | None = None  # where the next pass goes on
    _first = 0  # the index of the pass, counted from 0, at which the newest iterator began
    _last = 0  # the same at the end of its current run
    _run: Iterator[Any] = iter(())
    _drawn_from: Any = None  # the generator's state at the start of the pass

    def _size(self) -> int:
        """The number of samples from which the indices are chosen."""
        raise NotImplementedError

    def _runs(self, generator: Generator | None) -> Iterator[Sequence[T_co]]:
        """The indices of a pass, run by run."""
        raise NotImplementedError

    def _opened(self) -> Generator | None:
        """The generator from which a new pass is drawn; None is the default one."""
        return self.generator

    def _take_place(self) -> dict[str, Any] | None:
        place, self._place, self._drawn_from = self._place, None, None
        self._first = self._last = place["yielded"] if place else 0
        self._run = iter(())
        return place

    def __iter__(self) -> Iterator[T_co]:
        return self._indices(self._take_place())

    def _indices(self, place: dict[str, Any] | None) -> Iterator[T_co]:
        if place is None or place["generator"] is None:
            generator = self._opened()
        else:
            generator = wt.Generator() if self.generator is None else self.generator
            generator.set_state(place["generator"])
        self._drawn_from = (generator or wt.default_generator).get_state()
        end = 0
        for run in self._runs(generator):
            start, end = end, end + len(run)
            if end <= self._first and run:
                continue
            self._run, self._last = iter(run[max(0, self._first - start) :]), end
            yield from self._run

    def _state_at(self, given: int) -> dict[str, Any]:
        """The state after `given` indices of the newest iterator."""
        state = self._drawn_from
        if state is None and self.generator is not None:
            state = self.generator.get_state()
        yielded = min(self._first + given, len(self))  # type: ignore[arg-type]
        return {"yielded": yielded, "length": self._size(), "generator": state}

    def state_dict(self) -> dict[str, Any]:
        """Where the newest pass stands: the indices that it has given, and what its order is drawn from.

        `load_state_dict` of a sampler over the same data goes on from there.
        """
        return self._state_at(self._last - operator.length_hint(self._run) - self._first)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lets the next pass go on where the state was taken, in the same order.

        Raises:
            ValueError: the state is of another number of samples.
        """
        if state_dict["length"] != self._size():
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: the state is of {state_dict['length']} samples, but "
                f"this sampler has {self._size()}"
            )
        self._place = dict(state_dict)
        if self.generator is not None and state_dict["generator"] is not None:
            self.generator.set_state(state_dict["generator"])
            if not state_dict["yielded"]:
                self._place = None  # a whole pass; what draws from the generator before it, draws


class SequentialSampler(_Placed[int]):
    """0, 1, 2, ... up to the length of ``data_source``.

    Args:
        data_source: anything with a length.

    >>> list(torch.utils.data.SequentialSampler("abc"))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        self._take_place()
        self._last = len(self.data_source)
        self._run = iter(range(self._first, self._last))
        return self._run

    def _size(self) -> int:
        return len(self.data_source)

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(_Placed[int]):
    """Random indices into ``data_source``.

    Args:
        replacement: draw each index independently instead of going through a permutation.
        num_samples: how many to draw; default all. Without replacement, more than all start another
            permutation.
        generator: None seeds one of its own from the default generator at each start.

    Raises:
        TypeError: ``replacement`` is no bool.
        ValueError: ``num_samples`` is no positive integer, or the data source is empty.

    Args:
        data_source: anything with a length.

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

    def _opened(self) -> Generator:
        if len(self.data_source) == 0:  # it was emptied after the sampler was made
            raise ValueError(
                f"RandomSampler: expected a data source to draw {self.num_samples} samples from, got an "
                "empty one"
            )
        if self.generator is not None:
            return self.generator
        generator = wt.Generator()
        generator.manual_seed(draw_seed())
        return generator

    def _size(self) -> int:
        return len(self.data_source)

    def _runs(self, generator: Generator | None) -> Iterator[Sequence[int]]:
        n, count = len(self.data_source), self.num_samples
        if self.replacement:
            for start in range(0, count, _DRAW_BLOCK):
                size = (min(_DRAW_BLOCK, count - start),)
                yield wt.randint(n, size, dtype=wt.int64, generator=generator).tolist()
        else:
            # The last permutation is drawn even if none of it is used: PyTorch's stream goes on from there.
            for left in range(count, -1, -n):
                yield wt.randperm(n, generator=generator).tolist()[:left]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_Placed[int]):
    """``indices`` in random order, without replacement.

    Args:
        indices: what is permuted anew in each pass.
        generator: draws the order; the default one if None.

    >>> sorted(torch.utils.data.SubsetRandomSampler([2, 5, 7]))
    [2, 5, 7]
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def _size(self) -> int:
        return len(self.indices)

    def _runs(self, generator: Generator | None) -> Iterator[Sequence[int]]:
        yield [self.indices[i] for i in wt.randperm(len(self.indices), generator=generator).tolist()]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Placed[int]):
    """Indices into ``weights`` with those probabilities (they need not add up to 1).

    Raises:
        ValueError: ``num_samples`` is no positive integer, ``replacement`` no bool, or ``weights`` has not
            one dimension.

    Args:
        weights: one for each sample, at least 0.
        num_samples: how many indices a pass gives.
        replacement: whether an index may come twice in a pass.
        generator: draws the indices; the default one if None.

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
        values = wt.as_tensor(weights, dtype=wt.float64)
        if values.dim() != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {tuple(values.shape)}"
            )
        self.weights = values
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def _size(self) -> int:
        return len(self.weights)

    def _runs(self, generator: Generator | None) -> Iterator[Sequence[int]]:
        yield wt.multinomial(self.weights, self.num_samples, self.replacement, generator=generator).tolist()

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of ``batch_size`` indices of ``sampler``; the last may be shorter unless ``drop_last``.

    Raises:
        ValueError: ``batch_size`` is no positive integer, or ``drop_last`` no bool.

    Args:
        sampler: gives the indices.
        batch_size: the length of a list.
        drop_last: whether a last list that is not full is left out.

    >>> list(torch.utils.data.BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
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
