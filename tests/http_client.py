"""A small asyncio client for tests and benchmarks of warptape.serve, whose own cost is known and low."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any


class Connection:
    """One keep-alive connection."""

    def __init__(self, url: str, token: str | None) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._at, self._token = (host, int(port)), token
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def head(self, method: str, path: str, size: int, more: str = "") -> bytes:
        """A request's headers."""
        host = "{}:{}".format(*self._at)  # its true name, without which a server that takes all is none
        token = "" if self._token is None else f"Authorization: Bearer {self._token}\r\n"
        lines = f"Host: {host}\r\n{token}{more}Content-Length: {size}"
        return f"{method} {path} HTTP/1.1\r\n{lines}\r\n\r\n".encode()

    async def send(self, data: bytes) -> None:
        """Any bytes, on a new connection where there is none."""
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(*self._at)
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> tuple[int, dict[bytes, bytes]]:
        """Status and headers of the next answer; 0 where the server closed the connection."""
        try:
            first = await self._reader.readline()
            if not first:
                raise ConnectionError
            headers = {}
            while (line := await self._reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                headers[name.lower()] = value.strip()
        except ConnectionError:
            self.close()
            return 0, {}
        return int(first.split()[1]), headers

    async def body(self, headers: dict[bytes, bytes]) -> AsyncIterator[bytes]:
        """The parts of an answer's body."""
        if headers.get(b"transfer-encoding") == b"chunked":
            while size := int(await self._reader.readline(), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readline()
        else:
            yield await self._reader.readexactly(int(headers.get(b"content-length", 0)))
        if headers.get(b"connection") == b"close":
            self.close()

    async def post(self, path: str, body: Any, more: str = "") -> tuple[int, bytes]:
        """Status and body; (0, b"") where the connection broke."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.send(self.head("POST", path, len(data), more) + data)
        status, headers = await self.answer()
        return status, b"".join([part async for part in self.body(headers)]) if status else b""

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        """The events of a stream as JSON; AssertionError where the answer is none."""
        data = json.dumps({**body, "stream": True}).encode()
        await self.send(self.head("POST", path, len(data)) + data)
        status, headers = await self.answer()
        parts = self.body(headers)
        if status != 200:
            raise AssertionError((status, b"".join([part async for part in parts])))
        rest, ended = b"", False
        async for part in parts:
            *lines, rest = (rest + part).split(b"\n\n")
            for line in lines:
                if line == b"data: [DONE]":
                    ended = True
                else:
                    yield json.loads(line.removeprefix(b"data: "))
        assert ended and not rest, "the stream broke off"

    def close(self) -> None:
        """Ends the connection."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
