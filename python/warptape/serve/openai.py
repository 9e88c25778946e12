"""OpenAI's API: /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from . import openai_requests
from .dialects import JSON, Dialect, EventStream
from .disconnect import unless_left
from .errors import ApiError, api_error, error_response
from .images import Images, with_places
from .limits import dumps
from .openai_answers import Answer, parts_of
from .openai_requests import Asked, parse_body, refuse, take
from .reasoning import MARKS, begun
from .settings import Settings
from .texts import Texts, Tokenizer
from .tool_calls import LISTS
from .workers import DeadlineError, RequestError

if TYPE_CHECKING:
    from .metrics import Metrics
    from .versions import Version

T = TypeVar("T")
Text = tuple[list[int], list[int] | None]  # tokens, and their types where they are of two texts
AT_ONCE = 16  # requests of several prompts that are sent, or texts that a decoder embeds
READ_AT_ONCE = 64  # texts that an encoder has of a request
CONTEXT = "context_length_exceeded"


class OpenAI:
    """The routes' endpoints.

    Args:
        models: lends versions (see Models).
        metrics: is told of requests and tokens (see Metrics).
        texts: tokenizers and templates.
        settings: the server's.
    """

    def __init__(self, models: Any, metrics: Metrics, texts: Texts, settings: Settings) -> None:
        self._models, self._metrics, self._texts, self._settings = models, metrics, texts, settings
        self._most_prompt, self._most_tokens = settings.max_prompt_tokens, settings.max_tokens
        self._images = Images(settings.max_images, settings.max_image_pixels)
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        """For the app."""
        return [
            Route("/v1/models", self.guarded(self.list_models)),
            Route("/v1/models/{model:path}", self.guarded(self.show_model)),
            Route("/v1/completions", self.guarded(self.completions), methods=["POST"]),
            Route("/v1/chat/completions", self.guarded(self.chat), methods=["POST"]),
            Route("/v1/embeddings", self.guarded(self.embeddings), methods=["POST"]),
        ]

    @staticmethod
    def guarded(handler: Callable[[Request], Awaitable[Response]]) -> Any:
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
                return error_response(failure, request.scope["path"])

        return endpoint

    # ---- models ----

    def _card(self, name: str, of: str | None = None) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": self._created, "owned_by": "warptape"}
        return card if of is None else {**card, "parent": of}

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models

        Args:
            request: of starlette.
        """
        rows = [self._card(name) for name in self._models.names()]
        rows += [self._card(name, of) for name, of in sorted(self._models.adapters().items())]
        return JSONResponse({"object": "list", "data": rows})

    async def show_model(self, request: Request) -> Response:
        """GET /v1/models/NAME

        Args:
            request: of starlette.
        """
        name = request.path_params["model"]
        of = self._models.adapters().get(name)
        if name not in self._models.names() and of is None:
            raise ApiError(404, f"model {name!r:.130} is not there", "model", "model_not_found")
        return JSONResponse(self._card(name, of))

    def _lease(self, request: Request, name: str, asked: Asked | None = None) -> Any:
        """The version that answers: "NAME" by the shares of traffic, "NAME:3" that one; of an adapter's name
        the model that has it."""
        request.scope["warptape"]["model"] = name[:130]
        model = self._models.adapters().get(name)
        if asked is not None and model is not None and name not in self._models.names():
            asked.more["adapter"] = name
            return self._models.lease(model)
        base, _, version = name.rpartition(":")
        if base and name not in self._models.names() and version.isdigit():
            return self._models.lease(base, version)
        return self._models.lease(name)

    # ---- generation ----

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions

        Args:
            request: of starlette.
        """
        asked = await self.asked(request, openai_requests.completion)
        return await self._generated(request, asked, False)

    async def asked(self, request: Request, read: Callable[[dict[str, Any]], T]) -> T:
        """What a body asks for, by a function of its object.

        Args:
            request: of starlette.
            read: the function.
        """
        most = self._settings.max_json_bytes
        return await self._texts.parsed(await request.body(), lambda raw: read(parse_body(raw, most)))

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions

        Args:
            request: of starlette.
        """
        trust = self._settings.trust_request_chat_template
        asked = await self.asked(request, lambda body: openai_requests.chat(body, trust))
        return await self._generated(request, asked, True)

    async def converse(self, request: Request, dialect: Dialect) -> Response:
        """A chat in the form of another API.

        Args:
            request: of starlette.
            dialect: reads the body, and writes the answer.
        """
        trust = self._settings.trust_request_chat_template
        asked = await self.asked(request, lambda body: openai_requests.chat(dialect.read(body), trust))
        asked.usage = asked.stream
        return await self._generated(request, asked, True, dialect)

    async def _generated(
        self, request: Request, asked: Asked, chat: bool, dialect: Dialect | None = None
    ) -> Response:
        """The answer of a generation. A stream begins when its first tokens are there, so that what is
        refused has a status."""
        events, dialect = self._events(request, asked, chat), dialect or Dialect()
        if not asked.stream:
            last = await unless_left(request.receive, self._last(events))
            return JSON(await dumps(dialect.whole(last)))
        first = await unless_left(request.receive, anext(events))

        async def all_events() -> AsyncGenerator[Any, None]:
            async with contextlib.aclosing(events):
                yield first
                async for chunks in events:
                    yield chunks

        return EventStream(all_events(), dialect)

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
        async with self._lease(request, asked.model, asked) as version:
            observe = _Observer(self._metrics, version, start)
            notes["version"] = version.number
            try:
                prompts = await self._prompts(asked, chat, version)
                answer = Answer(asked, chat, prompts)
                requests = [
                    {
                        "prompt_token_ids": tokens,
                        "params": self._params(asked, version, i, tokens),
                        **({"priority": notes["turn"]} if "turn" in notes else {}),
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

    async def _prompts(
        self, asked: Asked, chat: bool, version: Version
    ) -> list[tuple[list[int], str | None]]:
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
            said = metadata.get("images")
            if asked.images and (said is None or asked.truncate is not None):
                what = "reads no images" if said is None else "takes no truncated prompt with images"
                raise refuse(f"{asked.model} {what}", "messages")
            place = None if said is None else tokenizer.decode([said["token"]], False)
            template = (asked.messages, asked.chat_template, asked.template, place)
            rendered = await self._texts.render(tokenizer, *template)
            (tokens,) = await self._texts.encode(
                tokenizer, [rendered], False, most, asked.truncate is not None
            )
            if said is not None:
                tokens = with_places(tokens, said, len(asked.images))
                if asked.images:
                    asked.more["images"] = await self._images.pixels(asked.images, said)
            out.append((tokens, rendered))
            asked.reasoning &= version.spec.options.get("reasoning_parser") != "none"
            asked.thinking = begun(rendered)
            # Where marks of calls or reasoning are special tokens, these must stand in the text.
            marks = {*LISTS} if asked.tools and not asked.forced else set()
            marks |= {mark for pair in MARKS for mark in pair} if asked.reasoning else set()
            if marks & {*tokenizer.bytes.special.values()}:
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
            most_kept = asked.truncate if asked.truncate > 0 else room
            out = [(each[0][-most_kept:], None) if len(each[0]) > most_kept else each for each in out]
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
            decode = tokenizer.decode
            out = [(t, await asyncio.to_thread(decode, t) if text is None else text) for t, text in out]
        return out

    async def prompt_of(
        self, request: Request, asked: Asked, chat: bool = True
    ) -> tuple[list[int], Tokenizer | None, Version]:
        """The tokens of a prompt, which nothing is generated for, with the tokenizer and the version.

        Args:
            request: of starlette.
            asked: with one prompt, or messages.
            chat: whether it has messages.
        """
        async with self._lease(request, asked.model, asked) as version:
            (prompt,) = await self._prompts(asked, chat, version)
            return prompt[0], await self._texts.of(version.spec, version.metadata["vocab_size"]), version

    async def text_of(self, request: Request, model: str, tokens: list[int]) -> str:
        """The text of tokens. ApiError for those that the model has not.

        Args:
            request: of starlette.
            model: its name.
            tokens: any number.
        """
        async with self._lease(request, model, Asked(model, {})) as version:
            size = version.metadata.get("vocab_size", 0)
            tokenizer = await self._texts.of(version.spec, size)
            if tokenizer is None:
                raise refuse(f"{model} has no tokenizer", "model")

            def decoded() -> str:
                if not all(0 <= token < size for token in tokens):
                    raise refuse(f"a token is out of the vocabulary of {size}", "tokens")
                return tokenizer.decode(tokens, False)

            return await asyncio.to_thread(decoded)

    def _params(self, asked: Asked, version: Version, number: int, tokens: list[int]) -> dict[str, Any]:
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
        """POST /v1/embeddings

        Args:
            request: of starlette.
        """
        body = await self.asked(request, lambda body: body)
        openai_requests.known(body, "model", "input", "encoding_format", "dimensions", "user")
        form = take(body, "encoding_format", str, "float")
        if form not in ("float", "base64"):
            raise refuse(f"encoding_format must be float or base64, got {form!r:.50}", "encoding_format")
        vectors, count = await self.vectors(request, body, form)
        data = [{"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(vectors)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        answer = {"object": "list", "data": data, "model": body["model"], "usage": usage}
        return JSON(await dumps(answer))

    async def vectors(
        self, request: Request, body: dict[str, Any], form: str = "float"
    ) -> tuple[list[Any], int]:
        """The vectors of the texts that a request for embeddings has, and how many tokens these have.

        Args:
            request: of starlette.
            body: with "model", "input" and, where wanted, "dimensions".
            form: "float" or "base64".
        """
        dimensions, model = take(body, "dimensions", int), openai_requests.named(body)
        inputs = openai_requests.inputs(body)

        async def texts(version: Version) -> tuple[str, list[Text]]:
            return "embed", [(tokens, None) for tokens in await self.inputs(inputs, version, model)]

        _, _, vectors_of, count = await self.read(request, model, texts)
        return [_shaped(vector, dimensions, form) async for vector in in_turns(vectors_of)], count

    async def read(
        self, request: Request, model: str, texts: Callable[[Version], Awaitable[tuple[str, list[Text]]]]
    ) -> tuple[Version, str, list[Any], int]:
        """What a model that reads says of texts: the version, the operation, an array for each text, and how
        many tokens were read.

        Args:
            request: of starlette.
            model: its name.
            texts: gives the operation and the texts' tokens (see Worker.read).
        """
        async with self._lease(request, model) as version:
            observe = _Observer(self._metrics, version, time.monotonic())
            try:
                if version.metadata.get("kind") not in ("llm", "encoder"):
                    raise refuse(f"{model} reads no texts", "model")
                op, tokens = await texts(version)
                most = version.metadata["max_embedded_len"]
                longest = max(len(each) for each, _ in tokens)
                if longest > most:
                    raise refuse(f"an input has {longest} tokens, {model} takes {most}", "input", CONTEXT)
                call = _read(version, op, tokens, request.scope["warptape"]["deadline"])
                result = await unless_left(request.receive, call)
            except BaseException as error:
                observe.failed(error)
                raise
            observe.succeeded()
        count = request.scope["warptape"]["prompt_tokens"] = sum(len(each) for each, _ in tokens)
        return version, op, result, count

    async def reader(self, version: Version, model: str) -> Tokenizer:
        """The tokenizer of a model that reads. ApiError where it has none.

        Args:
            version: of the model.
            model: its name.
        """
        tokenizer = await self._texts.of(version.spec, version.metadata["vocab_size"])
        if tokenizer is None:
            raise refuse(f"{model} has no tokenizer: give token ids", "input")
        return tokenizer

    async def inputs(self, given: list[Any], version: Version, model: str) -> list[list[int]]:
        """The tokens of texts, or those that are given. ApiError for what is neither.

        Args:
            given: texts and lists of tokens.
            version: of the model.
            model: its name.
        """
        metadata, out = version.metadata, list[list[int]]()
        texts, encoded = [each for each in given if isinstance(each, str)], iter(list[list[int]]())
        if texts:
            most = metadata["max_embedded_len"]
            encoded = iter(await self._texts.encode(await self.reader(version, model), texts, True, most))
        async for each in in_turns(given):
            if isinstance(each, str):
                each = next(encoded)
            if not isinstance(each, list) or not each or not all(type(t) is int for t in each):
                raise refuse(f"input must be texts or lists of token ids, got {each!r:.100}", "input")
            if not all(0 <= t < metadata["vocab_size"] for t in each):
                raise refuse(f"input has tokens out of the vocabulary of {metadata['vocab_size']}", "input")
            out.append(each)
        return out


async def in_turns(values: Iterable[T]) -> AsyncIterator[T]:
    """Values, between which others have their turn.

    Args:
        values: any.
    """
    for i, value in enumerate(values):
        if i % AT_ONCE == 0:
            await asyncio.sleep(0)
        yield value


async def _read(version: Version, op: str, inputs: list[Text], deadline: float | None) -> list[Any]:
    """What is said of each input; a worker has a few at a time, and others' requests between them.

    Raises: the first error of any of them.
    """
    out: list[Any] = [None] * len(inputs)
    waiting = iter(enumerate(inputs))

    async def some() -> None:
        for i, (tokens, types) in waiting:
            out[i] = await version.worker.read(op, tokens, types, deadline)

    at_once = READ_AT_ONCE if version.metadata["kind"] == "encoder" else AT_ONCE
    count = min(at_once * len(version.workers), len(inputs))
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

    def __init__(self, metrics: Metrics, version: Version, start: float) -> None:
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
