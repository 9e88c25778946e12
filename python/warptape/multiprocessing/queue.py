"""multiprocessing's queues, pipes and contexts, for objects with tensors: these arrive sharing their memory.

File descriptors travel with the message, so that the sender may end before it is read, and no server thread
or named socket is needed.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
import threading
from multiprocessing import connection, context, queues, reduction
from typing import Any

from . import channel as _channel
from . import reductions

# .parcel: what this thread pickled last; .came: the descriptors of the message it read last.
_files = threading.local()


class _Parcel:
    """An object pickled with its descriptors aside. Pickling it hands these to the next `send_bytes`."""

    def __init__(self, obj: object) -> None:
        self.data, self.files, self._kept = reductions.pack(obj)

    def __reduce__(self) -> tuple[Any, ...]:
        _files.parcel = self
        return _unpack, (self.data,)


def _unpack(data: bytes) -> Any:
    files, _files.came = _files.came, []
    return reductions.unpack(data, files)


class Connection(connection.Connection):
    """One end of a Pipe.

    Args:
        handle: a descriptor of a socket.
        readable, writable: what this end may do.
    """

    def __init__(self, handle: int, readable: bool = True, writable: bool = True) -> None:
        super().__init__(handle, readable, writable)
        self._socket = socket.socket(fileno=handle)
        self._socket.settimeout(None)

    def _close(self) -> None:  # type: ignore[override]
        self._socket.close()

    def send(self, obj: object) -> None:
        """Sends an object; tensors in it share their memory with the receiver's.

        Args:
            obj: that can be pickled.
        """
        super().send(_Parcel(obj))

    def _send_bytes(self, buf: Any) -> None:
        parcel, _files.parcel = getattr(_files, "parcel", None), None
        _channel.send(self._socket, buf, parcel.files if parcel else ())

    def _recv_bytes(self, maxsize: int | None = None) -> io.BytesIO | None:
        for file in getattr(_files, "came", []):
            os.close(file)  # of a message that was not unpickled
        _files.came = []
        message = _channel.receive(self._socket)
        if message is None:
            raise EOFError
        data, _files.came = message
        return None if maxsize is not None and len(data) > maxsize else io.BytesIO(data)


def _reduce_connection(end: Connection) -> tuple[Any, ...]:
    return _rebuild_connection, (reduction.DupFd(end.fileno()), end.readable, end.writable)


def _rebuild_connection(file: Any, readable: bool, writable: bool) -> Connection:
    return Connection(file.detach(), readable, writable)


reduction.ForkingPickler.register(Connection, _reduce_connection)


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """Two connected ends; without `duplex` the first only receives and the second only sends.

    Args:
        duplex: whether both ends do both.
    """
    first, second = _channel.pair()
    return Connection(first.detach(), True, duplex), Connection(second.detach(), duplex, True)


class _Tensors:
    """What the queues add to multiprocessing's: pipes that carry descriptors, and pickling in `put`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reader.close()  # type: ignore[has-type]
        self._writer.close()  # type: ignore[has-type]
        self._reader, self._writer = Pipe(duplex=False)
        if hasattr(self, "_reset"):
            self._reset()
        else:
            self._poll = self._reader.poll

    def put(self, obj: object, *args: Any, **kwargs: Any) -> None:
        super().put(_Parcel(obj), *args, **kwargs)  # type: ignore[misc]


class Queue(_Tensors, queues.Queue):
    """multiprocessing.Queue for objects with tensors. What cannot be pickled is an error of `put`.

    Args:
        maxsize: objects that may wait; 0 for any number.
    """


class JoinableQueue(_Tensors, queues.JoinableQueue):
    """multiprocessing.JoinableQueue for objects with tensors.

    Args:
        maxsize: objects that may wait; 0 for any number.
    """


class SimpleQueue(_Tensors, queues.SimpleQueue):
    """multiprocessing.SimpleQueue for objects with tensors."""


class _Context:
    """The part of a context that makes queues and pipes."""

    get_context: Any

    def Queue(self, maxsize: int = 0) -> Queue:
        """A queue between processes.

        Args:
            maxsize: objects that may wait; 0 for any number.
        """
        return Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> JoinableQueue:
        """A queue with `task_done` and `join`.

        Args:
            maxsize: objects that may wait; 0 for any number.
        """
        return JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self) -> SimpleQueue:
        """A queue without a buffer."""
        return SimpleQueue(ctx=self.get_context())

    def Pipe(self, duplex: bool = True) -> tuple[Connection, Connection]:
        """Two connected ends; without `duplex` the first only receives and the second only sends.

        Args:
            duplex: whether both ends do both.
        """
        return Pipe(duplex)


class ForkContext(_Context, context.ForkContext):
    """Processes by fork.

    CUDA cannot be used in a process that was forked after it was in use.
    """


class SpawnContext(_Context, context.SpawnContext):
    """Processes started anew.

    They import the main program again: it needs `if __name__ == "__main__"`.
    """


class ForkServerContext(_Context, context.ForkServerContext):
    """Processes forked from a server that stays small.

    They begin without what the parent had in memory.
    """


_contexts: dict[str, Any] = {
    c.get_start_method(): c for c in (ForkContext(), SpawnContext(), ForkServerContext())
}


class _DefaultContext(_Context, context.BaseContext):
    """That of the start method that multiprocessing was told to use."""

    def get_context(self, method: str | None = None) -> Any:
        """The context of a start method, whose queues and pipes carry tensors.

        Raises:
            ValueError: no such start method.
        """
        context = multiprocessing.get_context(method)
        return _contexts.get(context.get_start_method(), context)


default_context = _DefaultContext()
