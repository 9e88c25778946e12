"""OpenAI's API: /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from . import openai_requests
from .disconnect import ClientLeftError, unless_left
from .errors import ApiError, api_error, error_response
from .limits import dumped, dumps
from .openai_answers import Answer, parts_of
from .openai_requests import Asked, parse_body, refuse, take
from .settings import Settings
from .texts import Texts
from .tool_calls import MISTRAL
from .workers import DeadlineError, RequestError

T = TypeVar("T")
MOST_INPUTS = 2048  # of an embeddings request
AT_ONCE = 16  # requests of several prompts that are sent, or texts that a worker embeds
CONTEXT = "context_length_exceeded"


class JSON(Response):
    """A body of JSON that is written already."""

    media_type = "application/json"


class EventStream(Response):
    """Server-sent events; a client that leaves ends what makes them."""

    def __init__(self, events: AsyncGenerator[Any, None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Writes them, as they come."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with contextlib.suppress(ClientLeftError):
            await unless_left(receive, self._write(scope, send))

    async def _write(self, scope: Any, send: Any) -> None:
        async def data(text: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        try:
            async with contextlib.aclosing(self._events) as events:
                async for chunks in events:
                    text = "".join(f"data: {dumped(chunk, ascii=True)}\n\n" for chunk in chunks)
                    if text:
                        await data(text)
        except Exception as error:  # the status is sent already: OpenAI's clients raise what `error` says
            failure = api_error(error)
            scope["warptape"]["error"] = failure.message
            await data(f"data: {json.dumps(failure.body())}\n\n", False)
            return
        await data("data: [DONE]\n\n", False)


class OpenAI:
    """The routes' endpoints.

    Args:
        models: lends versions (see Models).
        metrics: is told of requests and tokens (see Metrics).
        texts: tokenizers and templates.
        settings: the server's.
    """

    def __init__(self, models: Any, metrics: Any, texts: Texts, settings: Settings) -> None:
        self._models, self._metrics, self._texts, self._settings = models, metrics, texts, settings
        self._most_prompt, self._most_tokens = settings.max_prompt_tokens, settings.max_tokens
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        """For the app."""
        return [
            Route("/v1/models", self._guarded(self.list_models)),
            Route("/v1/models/{model:path}", self._guarded(self.show_model)),
            Route("/v1/completions", self._guarded(self.completions), methods=["POST"]),
            Route("/v1/chat/completions", self._guarded(self.chat), methods=["POST"]),
            Route("/v1/embeddings", self._guarded(self.embeddings), methods=["POST"]),
        ]

    @staticmethod
    def _guarded(handler: Callable[[Request], Awaitable[Response]]) -> Any:
        """Errors as OpenAI's answers."""

        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request)
            except (ConnectionResetError, asyncio.CancelledError):
                raise
            except Exception as error:
                failure = api_error(error)
                if failure.status == 500:
                    raise
                return error_response(failure)

        return endpoint

    # ---- models ----

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "warptape"}

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models"""
        return JSONResponse({"object": "list", "data": [self._card(n) for n in self._models.names()]})

    async def show_model(self, request: Request) -> Response:
        """GET /v1/models/NAME"""
        name = request.path_params["model"]
        if name not in self._models.names():
            raise ApiError(404, f"model {name!r:.130} is not there", "model", "model_not_found")
        return JSONResponse(self._card(name))

    def _lease(self, request: Request, name: str) -> Any:
        """The version that answers: "NAME" by the shares of traffic, "NAME:3" that one."""
        request.scope["warptape"]["model"] = name[:130]
        base, _, version = name.rpartition(":")
        if base and name not in self._models.names() and version.isdigit():
            return self._models.lease(base, version)
        return self._models.lease(name)

    # ---- generation ----

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        asked = await self._asked(request, openai_requests.completion)
        return await self._generated(request, asked, False)

    async def _asked(self, request: Request, read: Callable[[dict[str, Any]], T]) -> T:
        """What a body asks for, by a function of its object."""
        most = self._settings.max_json_bytes
        return await self._texts.parsed(await request.body(), lambda raw: read(parse_body(raw, most)))

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        trust = self._settings.trust_request_chat_template
        asked = await self._asked(request, lambda body: openai_requests.chat(body, trust))
        return await self._generated(request, asked, True)

    async def _generated(self, request: Request, asked: Asked, chat: bool) -> Response:
        """The answer of a generation. A stream begins when its first tokens are there, so that what is
        refused has a status."""
        events = self._events(request, asked, chat)
        if not asked.stream:
            return JSON(await dumps(await unless_left(request.receive, self._last(events))))
        first = await unless_left(request.receive, anext(events))

        async def all_events() -> AsyncGenerator[Any, None]:
            async with contextlib.aclosing(events):
                yield first
                async for chunks in events:
                    yield chunks

        return EventStream(all_events())

    @staticmethod
    async def _last(events: AsyncGenerator[Any, None]) -> Any:
        last = None
        async with contextlib.aclosing(events):
            async for value in events:
                last = value
        return last

    async def _events(self, request: Request, asked: Asked, chat: bool) -> AsyncGenerator[Any, None]:
        """Lists of chunks of a stream, or at last the response."""
        start, notes = time.monotonic(), request.scope["warptape"]
        async with self._lease(request, asked.model) as version:
            observe = _Observer(self._metrics, version, start)
            notes["version"], vocabulary = version.number, version.metadata.get("vocab_size")
            try:
                prompts = await self._prompts(asked, chat, version)
                answer = Answer(asked, chat, prompts, await self._texts.of(version.spec, vocabulary))
                requests = [
                    {
                        "prompt_token_ids": tokens,
                        "params": self._params(asked, version, i, tokens),
                        **asked.more,
                    }
                    for i, (tokens, _) in enumerate(prompts)
                ]
                first = True
                async with contextlib.aclosing(merged(version.worker, requests, notes["deadline"])) as events:
                    async for number, event in events:
                        observe.event(event)
                        for part in parts_of(event):
                            if not asked.stream:
                                answer.take(number, part)
                            else:
                                chunks = answer.chunks(number, part)
                                yield [*answer.first_chunks(), *chunks] if first else chunks
                                first = False
                            if part is not event:  # others have their turn
                                await asyncio.sleep(0)
                if not asked.stream:
                    yield answer.whole()
                elif (last := answer.last_chunk()) is not None:
                    yield [last]
                usage = answer.usage()
                notes["prompt_tokens"] = usage["prompt_tokens"]
                notes["completion_tokens"] = usage["completion_tokens"]
                observe.succeeded()
            except BaseException as error:
                observe.failed(error)
                raise

    async def _prompts(self, asked: Asked, chat: bool, version: Any) -> list[tuple[list[int], str | None]]:
        """Tokens and text of each prompt. ApiError where they do not fit the model."""
        metadata = version.metadata
        if metadata.get("kind") != "llm":
            raise refuse(f"{asked.model} generates no text", "model")
        tokenizer = await self._texts.of(version.spec, metadata["vocab_size"])
        most = min(self._most_prompt or metadata["max_model_len"], metadata["max_model_len"] - 1)
        out: list[tuple[list[int], str | None]] = []
        if chat:
            if tokenizer is None:
                raise refuse(f"{asked.model} has no tokenizer, which chat needs", "model")
            whole = await self._texts.render(tokenizer, asked.messages, asked.chat_template, asked.template)
            (tokens,) = await self._texts.encode(tokenizer, [whole], False, most, asked.truncate is not None)
            out.append((tokens, whole))
            # Mistral's mark of calls is a special token, which must stand in the text.
            if asked.tools and not asked.forced and MISTRAL in tokenizer.bytes.special.values():
                asked.params.setdefault("skip_special_tokens", False)
        else:
            texts = [prompt for prompt in asked.prompts if isinstance(prompt, str)]
            encoded = iter(list[list[int]]())
            if texts:
                if tokenizer is None:
                    raise refuse(f"{asked.model} has no tokenizer: give token ids", "prompt")
                limits = (asked.special, most, asked.truncate is not None)
                encoded = iter(await self._texts.encode(tokenizer, texts, *limits))
            for prompt in asked.prompts:
                if isinstance(prompt, str):
                    out.append((next(encoded), prompt))
                else:
                    out.append((prompt, None))
        if asked.params.get("structured_outputs") is not None and tokenizer is None:
            raise refuse(f"{asked.model} has no tokenizer, which structured outputs need", "model")
        if asked.truncate is not None:
            room = max(min(most, metadata["max_model_len"] - (asked.params["max_tokens"] or 1)), 1)
            out = [_last(each, asked.truncate if asked.truncate > 0 else room, tokenizer) for each in out]
        for tokens, _ in out:
            await asyncio.sleep(0)
            if not tokens:
                raise refuse("the prompt has no token", "messages" if chat else "prompt")
            if len(tokens) > most:
                raise refuse(
                    f"the prompt has {len(tokens)} tokens, {asked.model} takes {most}",
                    "messages" if chat else "prompt",
                    CONTEXT,
                )
            bad = next((t for t in tokens if not 0 <= t < metadata["vocab_size"]), None)
            if bad is not None:
                raise refuse(f"token {bad} is out of the vocabulary of {metadata['vocab_size']}", "prompt")
        if asked.echo and tokenizer is not None:
            out = [(each, tokenizer.decode(each) if text is None else text) for each, text in out]
        return out

    def _params(self, asked: Asked, version: Any, number: int, tokens: list[int]) -> dict[str, Any]:
        """Of one prompt. Each has noise of its own."""
        params, room = dict(asked.params), version.metadata["max_model_len"] - len(tokens)
        most = params["max_tokens"]
        if most is not None and most > room:
            raise refuse(
                f"the prompt has {len(tokens)} tokens and max_tokens is {most}, but the context of "
                f"{asked.model} is {version.metadata['max_model_len']} tokens",
                "max_tokens",
                CONTEXT,
            )
        if self._most_tokens is not None and (most or 0) > self._most_tokens:
            raise refuse(f"max_tokens may be at most {self._most_tokens} here, got {most}", "max_tokens")
        params["max_tokens"] = most if most is not None else min(room, self._most_tokens or room)
        params["seed"] = (params["seed"] + number * params.get("n", 1)) % (1 << 63)
        return params

    # ---- embeddings ----

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings"""
        body = await self._asked(request, lambda body: body)
        known = {"model", "input", "encoding_format", "dimensions", "user"}
        for name in body:
            if name not in known:
                raise refuse(f"unrecognized request argument: {name:.100}", name[:100])
        form = take(body, "encoding_format", str, "float")
        if form not in ("float", "base64"):
            raise refuse(f"encoding_format must be float or base64, got {form!r:.50}", "encoding_format")
        dimensions, model = take(body, "dimensions", int), take(body, "model", str)
        if not model:
            raise refuse("you must name a model", "model")
        given = body.get("input")
        if isinstance(given, str) or (isinstance(given, list) and given and type(given[0]) is int):
            given = [given]
        if not isinstance(given, list) or not 0 < len(given) <= MOST_INPUTS:
            raise refuse(f"input must be a text, tokens, or up to {MOST_INPUTS} of these", "input")
        async with self._lease(request, model) as version:
            observe = _Observer(self._metrics, version, time.monotonic())
            try:
                tokens = await self._inputs(given, version, model)
                call = _embedded(version, tokens, request.scope["warptape"]["deadline"])
                vectors = await unless_left(request.receive, call)
            except BaseException as error:
                observe.failed(error)
                raise
            observe.succeeded()
        data = [
            {"object": "embedding", "index": i, "embedding": _shaped(v, dimensions, form)}
            for i, v in enumerate(vectors)
        ]
        count = sum(map(len, tokens))
        request.scope["warptape"]["prompt_tokens"] = count
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSON(await dumps({"object": "list", "data": data, "model": model, "usage": usage}))

    async def _inputs(self, given: list[Any], version: Any, model: str) -> list[list[int]]:
        metadata, out = version.metadata, list[list[int]]()
        if metadata.get("kind") not in ("llm", "encoder"):
            raise refuse(f"{model} gives no embeddings", "model")
        tokenizer = await self._texts.of(version.spec, metadata["vocab_size"])
        most = metadata["max_embedded_len"]
        texts, encoded = [each for each in given if isinstance(each, str)], iter(list[list[int]]())
        if texts:
            if tokenizer is None:
                raise refuse(f"{model} has no tokenizer: give token ids", "input")
            encoded = iter(await self._texts.encode(tokenizer, texts, True, most))
        for i, each in enumerate(given):
            if i % AT_ONCE == 0:
                await asyncio.sleep(0)
            if isinstance(each, str):
                each = next(encoded)
            if not isinstance(each, list) or not each or not all(type(t) is int for t in each):
                raise refuse(f"input must be texts or lists of token ids, got {each!r:.100}", "input")
            if len(each) > most:
                raise refuse(f"an input has {len(each)} tokens, {model} takes {most}", "input", CONTEXT)
            if not all(0 <= t < metadata["vocab_size"] for t in each):
                raise refuse(f"input has tokens out of the vocabulary of {metadata['vocab_size']}", "input")
            out.append(each)
        return out


def _last(prompt: tuple[list[int], str | None], most: int, tokenizer: Any) -> tuple[list[int], str | None]:
    """The last tokens of a prompt, and their text."""
    tokens, text = prompt
    if len(tokens) <= most:
        return prompt
    return tokens[-most:], None if text is None else tokenizer.decode(tokens[-most:])


async def _embedded(version: Any, inputs: list[list[int]], deadline: float | None) -> list[Any]:
    """The vector of each input; a worker has a few at a time, and others' requests between them.

    Raises: the first error of any of them.
    """
    out: list[Any] = [None] * len(inputs)
    waiting = iter(enumerate(inputs))

    async def some() -> None:
        for i, tokens in waiting:
            out[i] = await version.worker.embed(tokens, deadline)

    count = min(AT_ONCE * len(version.workers), len(inputs))
    tasks = [asyncio.ensure_future(some()) for _ in range(count)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return out


def _shaped(vector: Any, dimensions: int | None, form: str) -> Any:
    """A vector as it was asked for: its first dimensions, of length 1 again."""
    x = np.asarray(vector, np.float32)
    if dimensions is not None:
        if not 1 <= dimensions <= len(x):
            raise refuse(f"dimensions must be in [1, {len(x)}], got {dimensions}", "dimensions")
        x = x[:dimensions] / max(float(np.linalg.norm(x[:dimensions])), 1e-12)
    return base64.b64encode(x.astype("<f4").tobytes()).decode() if form == "base64" else x.tolist()


async def merged(
    worker: Any, requests: list[dict[str, Any]], deadline: float | None
) -> AsyncGenerator[tuple[int, dict[str, Any]], None]:
    """The events of several requests as they come, with their numbers.

    Raises: the first error of any of them; DeadlineError when the time is over.
    """
    queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

    async def feed(number: int, request: dict[str, Any]) -> None:
        try:
            async with contextlib.aclosing(worker.generate(request)) as events:
                async for event in events:
                    queue.put_nowait((number, event))
        except Exception as error:
            queue.put_nowait((number, error))

    tasks: list[asyncio.Future[None]] = []
    left = len(requests)
    loop = asyncio.get_running_loop()
    late = DeadlineError("no whole answer within the request's time")
    timer = None
    if deadline is not None:
        timer = loop.call_later(max(deadline - time.monotonic(), 0), queue.put_nowait, (0, late))
    try:
        for i, request in enumerate(requests):
            tasks.append(asyncio.ensure_future(feed(i, request)))
            if i % AT_ONCE == AT_ONCE - 1:  # others have their turn
                await asyncio.sleep(0)
        while left:
            number, event = await queue.get()
            if isinstance(event, Exception):
                raise event
            yield number, event
            left -= bool(event["finished"])
    finally:
        if timer is not None:
            timer.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Observer:
    """Tells the metrics of a request."""

    def __init__(self, metrics: Any, version: Any, start: float) -> None:
        self._of = None if metrics is None else metrics.of(version.name, version.number)
        self._start, self._last = start, 0.0

    def event(self, event: dict[str, Any]) -> None:
        now = time.monotonic()
        if self._of is not None and any(o["tokens"] for o in event["outputs"]):
            if self._last:
                self._of.between_tokens(now - self._last)
            else:
                self._of.first_token(now - self._start)
            self._last = now

    def succeeded(self) -> None:
        if self._of is not None:
            self._of.succeeded(time.monotonic() - self._start, time.time())

    def failed(self, error: BaseException) -> None:
        if self._of is None:
            return
        left = isinstance(error, (asyncio.CancelledError, GeneratorExit, ConnectionResetError))
        kind = (
            "left"
            if left
            else "refused"
            if isinstance(error, (RequestError, ApiError))
            else type(error).__name__
        )
        self._of.failed(time.monotonic() - self._start, kind)
