"""Answers in the form that an API's clients expect: OpenAI's, and what others make of it.

A dialect reads a request as the body of a chat completion, and writes the answer, which comes as OpenAI has
it: whole, or as lists of chunks.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from .disconnect import ClientLeftError, unless_left
from .errors import ApiError, api_error
from .limits import dumped

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Dialect:
    """OpenAI's own."""

    media_type = "text/event-stream"

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a chat completion that asks for the same. ApiError for what cannot be asked for.

        Args:
            body: of the request.
        """
        return body

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer.

        Args:
            answer: OpenAI's.
        """
        return answer

    def chunks(self, chunks: list[dict[str, Any]]) -> str:
        """What a stream writes for some chunks.

        Args:
            chunks: OpenAI's.
        """
        return "".join(f"data: {dumped(chunk, ascii=True)}\n\n" for chunk in chunks)

    def failed(self, failure: ApiError) -> str:
        """What it writes in place of what is missing; its status is sent already.

        Args:
            failure: what went wrong.
        """
        return f"data: {json.dumps(failure.body())}\n\n"

    def end(self) -> str:
        """What it writes when all is there."""
        return "data: [DONE]\n\n"


def event(kind: str, data: dict[str, Any]) -> str:
    """A server-sent event with a name.

    Args:
        kind: its name, which its data has, too.
        data: the rest of it.
    """
    return f"event: {kind}\ndata: {dumped({'type': kind, **data}, ascii=True)}\n\n"


def parts_of(delta: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a message, or a part of it, has, in the order in which clients get it: ("arguments", more
    of those of the call before), ("reasoning", text), ("text", text), ("call", call or a first piece of one).

    Args:
        delta: OpenAI's.
    """
    calls = delta.get("tool_calls") or ()
    for piece in (each for each in calls if "id" not in each):
        yield "arguments", piece["function"]["arguments"]
    for kind, name in (("reasoning", "reasoning_content"), ("text", "content")):
        if delta.get(name):
            yield kind, delta[name]
    for call in (each for each in calls if "id" in each):
        yield "call", call


def object_of(arguments: str) -> dict[str, Any]:
    """What a call's arguments say; {} where the answer ended within them.

    Args:
        arguments: text of a model.
    """
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class JSON(Response):
    """A body of JSON that is written already."""

    media_type = "application/json"


class EventStream(Response):
    """A stream as its dialect writes it; a client that leaves ends what makes it.

    Args:
        events: lists of OpenAI's chunks.
        dialect: writes them.
    """

    def __init__(self, events: AsyncGenerator[Any, None], dialect: Dialect) -> None:
        super().__init__(media_type=dialect.media_type, headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._events, self._dialect = events, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Writes it, as it comes."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with contextlib.suppress(ClientLeftError):
            await unless_left(receive, self._write(scope, send))

    async def _write(self, scope: Scope, send: Send) -> None:
        async def data(text: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        try:
            async with contextlib.aclosing(self._events) as events:
                async for chunks in events:
                    text = self._dialect.chunks(chunks)
                    if text:
                        await data(text)
        except Exception as error:
            failure = api_error(error)
            scope["warptape"]["error"] = failure.message
            await data(self._dialect.failed(failure), False)
            return
        await data(self._dialect.end(), False)
