"""Messages with file descriptors over a socket pair of packets (SOCK_SEQPACKET), which has no name."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Iterable, Sequence

_INLINE = 32 * 1024  # bytes; longer messages go through a file, so that few large ones cannot fill the socket
_MAX_FILES = 250  # per packet; the kernel takes 253
_LAST, _MORE, _IN_FILE = b"\0", b"\1", b"\2"  # what a packet starts with


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.settimeout(None)  # whatever socket.setdefaulttimeout() says
    return ends


def _packet(
    end: socket.socket, parts: Iterable[bytes | memoryview], files: Sequence[int], flags: int
) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    end.sendmsg(parts, ancillary, flags)


def send(end: socket.socket, data: bytes | memoryview, files: Sequence[int] = (), flags: int = 0) -> None:
    """Sends one message. With MSG_DONTWAIT, which is for messages without files, it goes whole or not at all.

    Raises:
        BlockingIOError: no room, with MSG_DONTWAIT.
        BrokenPipeError, ConnectionResetError: the other end is closed.
    """
    flags |= socket.MSG_NOSIGNAL
    while len(files) > _MAX_FILES:
        _packet(end, [_MORE], files[:_MAX_FILES], flags)
        files = files[_MAX_FILES:]
    if len(data) <= _INLINE:
        return _packet(end, [_LAST, data], files, flags)
    if files:
        _packet(end, [_MORE], files, flags)
    file = os.memfd_create("warptape-message")
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        _packet(end, [_IN_FILE], [file], flags)
    finally:
        os.close(file)


def receive(end: socket.socket) -> tuple[bytes, list[int]] | None:
    """One message and the descriptors that came with it, which are the caller's now; None at the end.

    Raises:
        OSError: this process has too many open files to take the message.
    """
    files: list[int] = []
    while True:
        try:
            data, ancillary, flags, _ = end.recvmsg(
                _INLINE + 1, socket.CMSG_SPACE(4 * _MAX_FILES), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            data, ancillary, flags = b"", [], 0
        for _, _, content in ancillary:
            files += array.array("i", content[: len(content) // 4 * 4])
        if not data or flags & socket.MSG_CTRUNC:
            for file in files:
                os.close(file)
            if not data:
                return None
            raise OSError(
                errno.EMFILE,
                "Too many open files: a message from another process cannot be taken. Raise the limit with "
                "`ulimit -n`, or keep fewer shared tensors",
            )
        if data[:1] == _LAST:
            return data[1:], files
        if data[:1] == _IN_FILE:
            with open(files.pop(), "rb") as whole:
                whole.seek(0)
                return whole.read(), files
