"""One thread waits for everything a launcher hears of: processes, pipes, sockets, signals."""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any


class Loop:
    """Calls back when a file descriptor is readable; keeps the signals that came, in order.

    Args:
        handled: signals that are kept, in place of what they did before.
    """

    def __init__(self, handled: Iterable[int]) -> None:
        self.signals: list[int] = []  # to stop for
        self.on_user_signal: Callable[[int], None] = lambda number: None
        self._selector = selectors.DefaultSelector()
        self._wake, wake = socket.socketpair()
        for end in (self._wake, wake):
            end.setblocking(False)
        self._wake_end = wake
        self.watch(self._wake, lambda: self._wake.recv(4096))
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._before: dict[int, Any] = {}
        handled = set(handled)
        for number in handled:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:  # under nohup
                continue  # but not the SIGINT that a shell without job control has `&` ignore
            self._before[number] = signal.signal(number, lambda number, frame: self.signals.append(number))
        for number in {signal.SIGUSR1, signal.SIGUSR2} - handled:
            self._before[number] = signal.signal(number, lambda number, frame: self.on_user_signal(number))

    def watch(self, source: Any, callback: Callable[[], Any]) -> None:
        """Call `callback` whenever `source` (a descriptor or a socket) is readable.

        Args:
            source: open for reading.
            callback: takes no arguments.
        """
        self._selector.register(source, selectors.EVENT_READ, callback)

    def unwatch(self, source: Any) -> None:
        """Watch `source` no more; before it is closed.

        Args:
            source: what `watch` was given.
        """
        self._selector.unregister(source)

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Handle events until `done()` or `timeout` seconds are over; True if `done()`.

        Args:
            done: asked after each event.
            timeout: seconds; None waits without limit.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not done():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            for key, _ in self._selector.select(None if left is None else min(left, 3600)):
                if key.fd in self._selector.get_map():  # not unwatched by an earlier callback
                    key.data()
        return True

    def close(self) -> None:
        """Give the signals back."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._selector.close()
        self._wake.close()
        self._wake_end.close()
