"""Clients that leave before they were answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any


class ClientLeftError(ConnectionResetError):
    """Nobody waits for the answer."""


async def unless_left(receive: Callable[[], Awaitable[Any]], work: Awaitable[Any]) -> Any:
    """What `work` gives; cancels it when the client leaves, and raises ClientLeftError then.

    Args:
        receive: ASGI's, of a request whose body was read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeftError("the client left")
        return task.result()
    finally:
        for each in (gone, task):
            each.cancel()
        if not task.done():
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
