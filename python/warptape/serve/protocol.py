"""HTTP/1.1 by uvicorn, and what it has no limits for: headers, slow clients, those that do not read.

Times are looked at by a sweep over the connections, so that a request costs no timer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError
from .settings import Settings

MOST_HEADER_BYTES = 64 << 10
REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large",
           429: "Too Many Requests"}  # fmt: skip


class Protocol(HttpToolsProtocol):  # type: ignore[misc]
    """One connection.

    Args:
        settings: the limits.
    """

    settings: Settings  # of the subclass that `protocol_of` makes

    def connection_made(self, transport: Any) -> None:
        """A client came."""
        super().connection_made(transport)
        self._header_bytes = 0
        self._in_headers = True
        self._since: float | None = time.monotonic()  # of what is waited for from the client
        self._paused: float | None = None  # since when it takes nothing
        if len(self.connections) > self.settings.max_connections:
            self.refuse(429, "there are too many connections")

    def refuse(self, status: int, message: str) -> None:
        """Ends the connection with an answer, where none has begun.

        Args:
            status: of HTTP.
            message: for the client.
        """
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = json.dumps(ApiError(status, message).body()).encode()
            head = (
                f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP.

        Args:
            msg: for the client.
        """
        self.refuse(400, msg)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client.

        Args:
            data: as they came.
        """
        if self.transport.is_closing():
            return
        if self._since is None and (self.cycle is None or self.cycle.response_complete):
            self._since = time.monotonic()  # the next request's first byte
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MOST_HEADER_BYTES:
            self.refuse(431, f"the headers have more than {MOST_HEADER_BYTES} bytes")

    def on_message_begin(self) -> None:
        """Of the parser: a request's first line."""
        super().on_message_begin()
        self._in_headers = True

    def on_headers_complete(self) -> None:
        """Of the parser: the body follows."""
        self._in_headers, self._header_bytes = False, 0
        super().on_headers_complete()
        self._since = time.monotonic()

    def on_message_complete(self) -> None:
        """Of the parser: the request is here."""
        super().on_message_complete()
        self._since, self._in_headers = None, True

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        super().pause_writing()
        self._paused = time.monotonic()

    def resume_writing(self) -> None:
        """It takes again."""
        super().resume_writing()
        self._paused = None

    def sweep(self, now: float) -> None:
        """Ends the connection where the client lets it wait too long.

        Args:
            now: of a clock that never goes back.
        """
        limit = self.settings.header_seconds if self._in_headers else self.settings.body_seconds
        if self._paused is not None and now - self._paused > self.settings.send_seconds:
            self.transport.abort()
        elif self._since is not None and now - self._since > limit:
            what = "headers" if self._in_headers else "body"
            self.refuse(408, f"the {what} did not come within {limit:g} s")


def protocol_of(settings: Settings) -> type[Protocol]:
    """The class for uvicorn.

    Args:
        settings: the limits.
    """
    return type("LimitedProtocol", (Protocol,), {"settings": settings})


def sweep(connections: Iterable[Any]) -> None:
    """Looks at all connections.

    Args:
        connections: all that are open.
    """
    now = time.monotonic()
    for each in list(connections):
        each.sweep(now)
