"""Pipes that are read once for several readers: each gets all samples, or its own."""

from __future__ import annotations

import copy as _copy
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ..datapipe import IterDataPipe, functional_datapipe
from ..utils.common import StreamWrapper, _check_unpickable_fn

_COPIES: dict[str | None, Callable[[Any], Any] | None] = {
    None: None,
    "shallow": _copy.copy,
    "deep": _copy.deepcopy,
}


def _check(num_instances: int, buffer_size: int, name: str) -> None:
    if num_instances < 1:
        raise ValueError(f"Expected `num_instances` larger than 0, but {num_instances} is found")
    if buffer_size < 0:
        warnings.warn(
            f"Unlimited buffer size is set for `{name}`, please be aware of OOM at random places",
            stacklevel=4,
        )


class _Shared(IterDataPipe[Any]):
    """The source of several children, and what waits for each of them."""

    def __init__(self, datapipe: Any, num_instances: int, buffer_size: int) -> None:
        self.main_datapipe = datapipe
        self.num_instances, self.buffer_size = num_instances, buffer_size
        self.reset()

    def reset(self) -> None:
        """Begins with the source's first sample."""
        self._source: Iterator[Any] | None = None
        self._done = False

    def _next_of_source(self) -> Any:
        """The next sample. Raises StopIteration."""
        if self._done:
            raise StopIteration
        if self._source is None:
            self._source = iter(self.main_datapipe)
        try:
            return next(self._source)
        except StopIteration:
            self._done, self._source = True, None
            raise

    def read(self, child: int) -> Iterator[Any]:
        """The samples of a child."""
        raise NotImplementedError

    def is_every_instance_exhausted(self) -> bool:
        """Whether no child has anything left to read."""
        raise NotImplementedError

    def _overflow(self, waiting: int, name: str) -> None:
        if 0 <= self.buffer_size < waiting:
            raise BufferError(f"{name} buffer overflow, buffer size {self.buffer_size} is insufficient.")

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_source"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.reset()


class _ChildDataPipe(IterDataPipe[Any]):
    """One reader of a shared source.

    A new iterator of one child that was read since the others began starts all of them anew.
    """

    def __init__(self, main_datapipe: _Shared, instance_id: int) -> None:
        self.main_datapipe, self.instance_id = main_datapipe, instance_id

    def __iter__(self) -> Iterator[Any]:
        return self.main_datapipe.read(self.instance_id)

    def __len__(self) -> int:
        return len(self.main_datapipe)  # type: ignore[arg-type]

    def _begin_pass(self) -> int:
        main = self.main_datapipe
        if main._pass is None:
            main._pass = 0
        elif main._pass == self._pass:
            main._pass += 1
            if not main.is_every_instance_exhausted():
                warnings.warn(
                    "Some child DataPipes are not exhausted when __iter__ is called. We are resetting the "
                    "buffer and each child DataPipe will read from the start again.",
                    stacklevel=3,
                )
            main.reset()
        self._pass = main._pass
        return main._pass

    def _is_current(self, number: int) -> bool:
        return number == self._pass == self.main_datapipe._pass


class _Fork(_Shared):
    def __init__(self, datapipe: Any, num_instances: int, buffer_size: int, copy: str | None) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self._copy = _COPIES[copy]

    def reset(self) -> None:
        super().reset()
        self._buffer: deque[Any] = deque()  # from the sample that the slowest child reads next
        self._first = 0  # its number
        self._at = [0] * self.num_instances

    def is_every_instance_exhausted(self) -> bool:
        return self._done and not self._buffer

    def read(self, child: int) -> Iterator[Any]:
        while True:
            at = self._at[child] - self._first
            if at == len(self._buffer):
                try:
                    self._buffer.append(self._next_of_source())
                except StopIteration:
                    return
            out = self._buffer[at]
            self._at[child] += 1
            while self._first < min(self._at):
                self._buffer.popleft()
                self._first += 1
            self._overflow(len(self._buffer), "ForkerIterDataPipe")
            yield out if self._copy is None else self._copy(out)

    def __len__(self) -> int:
        return len(self.main_datapipe)


class _Demultiplex(_Shared):
    def __init__(
        self,
        datapipe: Any,
        num_instances: int,
        classifier_fn: Callable[[Any], int | None],
        drop_none: bool,
        buffer_size: int,
    ) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.classifier_fn, self.drop_none = classifier_fn, drop_none

    def reset(self) -> None:
        super().reset()
        self._waiting: list[deque[Any]] = [deque() for _ in range(self.num_instances)]

    def is_every_instance_exhausted(self) -> bool:
        return self._done and not any(self._waiting)

    def _class_of(self, value: Any) -> int | None:
        """The child of a sample; None to drop it. Raises ValueError."""
        found = self.classifier_fn(value)
        if found is None and self.drop_none:
            return None
        if found is None or not 0 <= found < self.num_instances:
            raise ValueError(
                f"Output of the classification fn should be between 0 and {self.num_instances - 1}. "
                f"{found} is returned."
            )
        return found

    def read(self, child: int) -> Iterator[Any]:
        while True:
            if self._waiting[child]:
                yield self._waiting[child].popleft()
                continue
            try:
                value = self._next_of_source()
            except StopIteration:
                return
            found = self._class_of(value)
            if found == child:
                yield value
            elif found is None:
                StreamWrapper.close_streams(value)
            else:
                self._waiting[found].append(value)
                self._overflow(sum(map(len, self._waiting)), "DemultiplexerIterDataPipe")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")


@functional_datapipe("fork")
class ForkerIterDataPipe(IterDataPipe[Any]):
    """A list of `num_instances` pipes that each give all samples; the source is read once.

    Args:
        buffer_size: how many samples the fastest may be ahead of the slowest; -1 without limit.
        copy: None gives all of them the same objects; "shallow" and "deep" copy.

    Raises:
        ValueError: no instance, or another `copy`.
        BufferError: while iterating: the fastest is too far ahead.
    """

    def __new__(  # type: ignore[misc]  # noqa: D102
        cls, datapipe: Any, num_instances: int, buffer_size: int = 1000, copy: str | None = None
    ) -> Any:
        _check(num_instances, buffer_size, "fork")
        if copy not in _COPIES:
            raise ValueError(
                f"Unknown copy method `{copy}` requested, choose one of None, `shallow` or `deep`."
            )
        if num_instances == 1:
            return datapipe
        main = _Fork(datapipe, num_instances, buffer_size, copy)
        return [_ChildDataPipe(main, i) for i in range(num_instances)]


@functional_datapipe("demux")
class DemultiplexerIterDataPipe(IterDataPipe[Any]):
    """A list of `num_instances` pipes; a sample goes to the one whose number is `classifier_fn(sample)`.

    Args:
        drop_none: leave out samples whose number is None.
        buffer_size: how many samples may wait to be read; -1 without limit.

    Raises:
        ValueError: no instance; while iterating: a number that is none of theirs.
        BufferError: while iterating: more wait.
    """

    def __new__(  # type: ignore[misc]  # noqa: D102
        cls,
        datapipe: Any,
        num_instances: int,
        classifier_fn: Callable[[Any], int | None],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> Any:
        _check(num_instances, buffer_size, "demux")
        _check_unpickable_fn(classifier_fn)
        main = _Demultiplex(datapipe, num_instances, classifier_fn, drop_none, buffer_size)
        return [_ChildDataPipe(main, i) for i in range(num_instances)]
