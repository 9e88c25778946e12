"""Tokenizers and chat templates of the models that are served. Nothing long is done on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ..inference import tokenizer as files
from ..inference.tokenizer import Tokenizer
from .errors import ApiError
from .images import laid_out
from .render import TEMPLATE_SECONDS, RenderProcesses
from .workers import RequestError

T = TypeVar("T")
MOST_TOKENIZERS = 16
LONG = 2_000  # characters of texts, from which they are tokenised in a thread
PART = 1 << 16  # characters that are tokenised at once, where they may be parted
MOST_TEXTS = 512  # that are tokenised at once
CUT = 32  # tokens that a cut within a text may add
LONG_BODY = 1 << 15  # bytes, from which a body is parsed in a thread
MOST_RENDERED = 32 << 20  # characters of a rendered conversation
MOST_EACH, LEAST_TRUNCATED = 16, 1 << 18  # characters a token, and in all, of a text that is to be truncated
CONTEXT = "context_length_exceeded"
# What a tokenizer is read from, beside its own file.
FILES = (files.CONFIG, files.SPECIAL, files.TEMPLATE, files.TEMPLATES)


def _state(path: str) -> tuple[Any, ...]:
    """Changes with a model's files; () where there is no tokenizer."""
    own = path if os.path.isfile(path) else files.find_file(path)
    if own is None:
        return ()
    stamps = []
    for each in (own, *(os.path.join(path, name) for name in FILES)):
        with contextlib.suppress(OSError):
            stamps.append((each, os.stat(each).st_mtime_ns))
    return tuple(stamps)


def _read(path: str, vocab_size: int | None, template: str | None) -> Tokenizer:
    return Tokenizer(path, vocab_size, Path(template).read_text(encoding="utf-8") if template else None)


def _parts(values: Sequence[T], size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Values in parts, none of which is large, unless it is one value."""
    at = 0
    while at < len(values):
        end = whole = at
        while end < min(len(values), at + MOST_TEXTS) and (end == at or whole + size(values[end]) <= PART):
            whole, end = whole + size(values[end]), end + 1
        yield values[at:end]
        at = end


class Texts:
    """The tokenizers of model folders and GGUF files, the last used ones kept.

    Args:
        template_seconds: that a chat template may take.
    """

    def __init__(self, template_seconds: float = TEMPLATE_SECONDS) -> None:
        self._known: OrderedDict[tuple[Any, ...], Tokenizer] = OrderedDict()
        self._render = RenderProcesses(template_seconds, MOST_RENDERED)
        self._bodies, self._long, self._longer = (
            ThreadPoolExecutor(threads, f"warptape-{name}")
            for name, threads in (("bodies", 1), ("texts", 2), ("long-texts", 1))
        )

    def close(self) -> None:
        """Ends threads and processes."""
        self._render.close()
        for pool in (self._bodies, self._long, self._longer):
            pool.shutdown(wait=False, cancel_futures=True)

    async def parsed(self, body: bytes, parse: Callable[[bytes], T]) -> T:
        """What is made of a request's body. One large body at a time: to parse one holds up all threads for a
        moment."""
        if len(body) < LONG_BODY:
            return parse(body)
        return await asyncio.get_running_loop().run_in_executor(self._bodies, parse, body)

    async def of(self, spec: Any, vocab_size: int | None = None) -> Tokenizer | None:
        """A version's tokenizer; None where it has none. Raises: ValueError for a damaged one.

        Args:
            spec: where the model lies.
            vocab_size: of the model, where it is known.
        """
        path = os.fspath(spec.options.get("tokenizer") or spec.path)
        template = spec.options.get("chat_template")
        key = _state(path)
        if not key or spec.options.get("skip_tokenizer_init"):
            return None
        key = (*key, template)
        tokenizer = self._known.get(key)
        if tokenizer is None:
            try:
                tokenizer = await asyncio.to_thread(_read, path, vocab_size, template)
            except FileNotFoundError:  # a GGUF file without one
                if template:
                    raise
                return None
            self._known[key] = tokenizer
        self._known.move_to_end(key)
        while len(self._known) > MOST_TOKENIZERS:
            self._known.popitem(last=False)
        return tokenizer

    async def encode(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        special: bool = True,
        most: int | None = None,
        truncated: bool = False,
    ) -> list[list[int]]:
        """The tokens of each text. A thread does little at once: all wait while it hands over tokens.

        Args:
            most: tokens of a text; one that has more is refused as soon as that is clear.
            truncated: a text may have more, and its last tokens are kept.

        Raises: ApiError.
        """
        if most is not None:
            await self._check(tokenizer, texts, most, truncated)
        out: list[list[int]] = []
        for part in _parts(texts, len):
            out += await self._encoded(tokenizer, part, special)
        return out

    async def _check(self, tokenizer: Tokenizer, texts: Iterable[str], most: int, truncated: bool) -> None:
        """ApiError where a text is too long, which the whole of it need not be tokenised for."""
        for text in texts:
            limit = max(most * MOST_EACH, LEAST_TRUNCATED)
            if truncated and len(text) > limit:
                what = f"a text to be truncated to {most} tokens may have {limit} characters"
                raise ApiError(400, f"{what}, got {len(text)}", code=CONTEXT)
            if not truncated and len(text) > PART:
                await self._check_length(tokenizer, text, most)

    async def pairs(
        self,
        tokenizer: Tokenizer,
        first: Sequence[str],
        second: Sequence[str],
        most: int,
        cut: bool = False,
        each: int | None = None,
    ) -> list[tuple[list[int], list[int]]]:
        """Tokens of pairs of texts, and the tokens' types.

        Args:
            first, second: texts of each pair.
            most: tokens of a pair.
            cut: the end of a second text is left out where a pair has more.
            each: tokens of a second text, which is cut to these.

        Raises: ApiError.
        """
        await self._check(tokenizer, {*first}, most, False)
        await self._check(tokenizer, second, most, cut)
        loop, out = asyncio.get_running_loop(), list[tuple[list[int], list[int]]]()
        limits = most if cut else None, each
        for part in _parts([*zip(first, second)], lambda pair: len(pair[1]) + PART // MOST_TEXTS):
            out += await loop.run_in_executor(self._longer, tokenizer.encode_pairs, part, *limits)
        return out

    async def spans(self, tokenizer: Tokenizer, texts: Sequence[str], most: int) -> list[Any]:
        """Tokens of texts, and where each token stands in its text; None for special ones.

        Args:
            texts: any.
            most: tokens of a text.

        Raises: ApiError.
        """
        await self._check(tokenizer, texts, most, False)
        loop, out = asyncio.get_running_loop(), list[Any]()
        for part in _parts(texts, len):
            out += await loop.run_in_executor(self._longer, tokenizer.encode_spans, part)
        return out

    async def _encoded(self, tokenizer: Tokenizer, texts: Sequence[str], special: bool) -> list[list[int]]:
        size = sum(map(len, texts))
        if size < LONG and len(texts) < LONG // 16:
            return [tokenizer.encode(text, add_special_tokens=special) for text in texts]
        pool = self._long if size <= PART else self._longer
        return await asyncio.get_running_loop().run_in_executor(pool, tokenizer.encode_many, texts, special)

    async def _check_length(self, tokenizer: Tokenizer, text: str, most: int) -> None:
        """ApiError where a text has more than so many tokens, after as many parts of it as show that."""
        least, loop = 0, asyncio.get_running_loop()
        for at in range(0, len(text), PART):
            part = [text[at : at + PART]]
            (tokens,) = await loop.run_in_executor(self._longer, tokenizer.encode_many, part, False)
            least += max(len(tokens) - CUT, 0)
            if least > most:
                end = min(at + PART, len(text))
                raise ApiError(
                    400,
                    f"a text has {len(text)} characters, its first {end} at least {least} tokens; at most "
                    f"{most} are taken",
                    code=CONTEXT,
                )

    async def render(
        self,
        tokenizer: Tokenizer,
        messages: list[Any],
        template: str | None,
        variables: dict[str, Any],
        place: str | None = None,
    ) -> str:
        """A conversation as text. RequestError for what the template refuses or takes too long for.

        Args:
            template: None: the model's.
            variables: what it finds by name.
            place: the text of the token for an image; None: the model reads none.
        """
        variables = dict(variables)
        continued = variables.pop("continue_final_message", False)
        try:
            text, special = tokenizer.chat_template(template, variables.get("tools"))
        except (ValueError, OSError) as error:
            raise RequestError(str(error)) from error
        if place is not None:
            messages = laid_out(messages, text, place)
        return await self._render(text, messages, {**special, **variables}, continued)
