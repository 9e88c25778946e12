"""Values that come later: torch.futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["Future", "collect_all", "wait_all"]

T = TypeVar("T")


class Future(Generic[T]):
    """A value that somebody sets once, and callbacks for when it is there.

    The future of a collective is driven by whoever calls wait() or done() on it, or on one made from it by
    then(): its callbacks run on that thread, as the rank that made the call.
    """

    def __init__(self, *, devices: Any = None) -> None:
        self._changed = threading.Condition()
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[T]], Any]] = []
        self._drive: Callable[[bool], None] | None = None  # brings it about; False: only where it is over

    def _finish(self, value: Any, error: BaseException | None) -> None:
        with self._changed:
            if self._done:
                raise RuntimeError("Future can only be set once: it has a value or an exception already")
            self._value, self._error, self._done, self._drive = value, error, True, None
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            callback(self)

    def set_result(self, result: T) -> None:
        """Gives the value. Raises RuntimeError the second time.

        Args:
            result: the value.
        """
        self._finish(result, None)

    def set_exception(self, result: BaseException) -> None:
        """Makes wait() and value() raise `result`.

        Args:
            result: an exception.

        Raises: AssertionError for what is none.
        """
        if not isinstance(result, BaseException):
            raise AssertionError(f"{result} is of type {type(result)}, not an Exception.")
        self._finish(None, result)

    def done(self) -> bool:
        """Whether the value, or an exception, is there. Does not wait.

        >>> future = torch.futures.Future()
        >>> future.done()
        False
        >>> future.set_result(1)
        >>> future.done()
        True
        """
        if not self._done and self._drive is not None:
            self._drive(False)
        return self._done

    def wait(self) -> T:
        """Waits until the value is there, and returns it.

        Raises: what set_exception() was given.

        >>> future = torch.futures.Future()
        >>> future.set_result(3)
        >>> future.wait()
        3
        """
        if not self._done and self._drive is not None:
            self._drive(True)
        with self._changed:
            while not self._done:
                self._changed.wait(0.05)  # so that Ctrl-C gets through
        return self.value()

    def value(self) -> T:
        """The value of a future that is done; it does not wait, as wait() does.

        Raises: RuntimeError before it is done, and what set_exception() was given.
        """
        if not self._done:
            raise RuntimeError("Future.value: it is not done; call wait()")
        if self._error is not None:
            raise self._error
        return self._value

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Calls callback(self) when the value is there, or now.

        Args:
            callback: its result is ignored.
        """
        with self._changed:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def then(self, callback: Callable[[Future[T]], Any]) -> Future[Any]:
        """The future of callback(self), which is called when the value is there.

        Args:
            callback: its result is the new future's value.

        >>> future = torch.futures.Future()
        >>> doubled = future.then(lambda f: 2 * f.wait())
        >>> future.set_result(3)
        >>> doubled.wait()
        6
        """
        after: Future[Any] = Future()

        def run(before: Future[T]) -> None:
            try:
                after.set_result(callback(before))
            except Exception as error:
                after.set_exception(error)

        def drive(wait: bool) -> None:
            if not self._done and self._drive is not None:
                self._drive(wait)

        if self._drive is not None:
            after._drive = drive
        self.add_done_callback(run)
        return after


def _of_work(work: Any) -> Future[list[Any]]:
    """The future of a collective's outputs."""
    future: Future[list[Any]] = Future()

    def drive(wait: bool) -> None:
        if not wait and not work.is_completed():
            return
        try:
            work.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(work.result())

    future._drive = drive
    return future


def collect_all(futures: Sequence[Future]) -> Future[list[Future]]:
    """A future of the list of futures, when all are done.

    Args:
        futures: any number.
    """
    every: Future[list[Future]] = Future()
    futures = list(futures)
    lock, left = threading.Lock(), [len(futures)]

    def count(_: Future) -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            every.set_result(futures)

    def drive(wait: bool) -> None:
        for future in futures:
            if not future._done and future._drive is not None:
                future._drive(wait)

    if not futures:
        every.set_result([])
    elif any(future._drive is not None for future in futures):
        every._drive = drive
    for future in futures:
        future.add_done_callback(count)
    return every


def wait_all(futures: Sequence[Future]) -> list[Any]:
    """The values of all. Raises the first exception among them.

    Args:
        futures: any number.
    """
    return [future.wait() for future in collect_all(futures).wait()]
