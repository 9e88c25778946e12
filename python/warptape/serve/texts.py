"""Tokenizers and chat templates of the models that are served. Nothing long is done on the event loop."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..inference import tokenizer as files
from ..inference.tokenizer import Tokenizer
from .errors import ApiError
from .render import TEMPLATE_SECONDS, RenderProcesses
from .workers import RequestError

T = TypeVar("T")
MOST_TOKENIZERS = 16
LONG = 2_000  # characters of texts, from which they are tokenised in a thread
LONGER = 100_000  # from which in another one, so that others do not wait for it
LONG_BODY = 1 << 15  # bytes, from which a body is parsed in a thread
MOST_RENDERED = 32 << 20  # characters of a rendered conversation
# Characters of text to be tokenised as a whole although only its last tokens are kept.
LEAST_LIMIT = 1 << 16  # characters that may always be tokenised
MOST_TRUNCATED = 4 << 20
SLACK = 2  # how many times as long as its tokens a text may be, for normalizers that shorten it
# The files that a tokenizer is read from.
FILES = (files.FILE, files.CONFIG, files.SPECIAL, files.TEMPLATE, files.TEMPLATES)


def _state(path: str) -> tuple[Any, ...]:
    """Changes with a model's files; () where there is no tokenizer."""
    found = []
    for each in (path,) if os.path.isfile(path) else [os.path.join(path, name) for name in FILES]:
        try:
            found.append((each, os.stat(each).st_mtime_ns))
        except OSError:
            if each.endswith(files.FILE):
                return ()
    return tuple(found)


class Texts:
    """The tokenizers of model folders and GGUF files, the last used ones kept."""

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
        """A version's tokenizer; None where it has none. Raises: ValueError for a damaged one."""
        path = os.fspath(spec.options.get("tokenizer") or spec.path)
        key = _state(path)
        if not key or spec.options.get("skip_tokenizer_init"):
            return None
        found = self._known.get(key)
        if found is None:
            try:
                found = await asyncio.to_thread(Tokenizer, path, vocab_size)
            except FileNotFoundError:  # a GGUF file without one
                return None
            await asyncio.to_thread(getattr, found, "longest")  # of the whole vocabulary
            self._known[key] = found
        self._known.move_to_end(key)
        while len(self._known) > MOST_TOKENIZERS:
            self._known.popitem(last=False)
        return found

    async def encode(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        special: bool = True,
        most: int | None = None,
        truncated: bool = False,
    ) -> list[list[int]]:
        """The tokens of each text.

        Args:
            most: tokens of a text; a longer one that no tokenizer could make so short is refused untokenised.
            truncated: a text may have more, and its last tokens are kept.

        Raises: ApiError.
        """
        limit = None if most is None else max(SLACK * most * tokenizer.longest, LEAST_LIMIT)
        if truncated and limit is not None:
            limit = max(limit, MOST_TRUNCATED)
        for text in texts:
            if limit is not None and len(text) > limit:
                least = -(-len(text) // tokenizer.longest)
                what = f"of {most} tokens" if not truncated else "that may be truncated"
                raise ApiError(
                    400,
                    f"a text has {len(text)} characters, at least {least} tokens; a text {what} has at most "
                    f"{limit} characters",
                    code="context_length_exceeded",
                )
        size = sum(map(len, texts))
        if size < LONG:
            return [tokenizer.encode(text, add_special_tokens=special) for text in texts]
        pool = self._long if size < LONGER else self._longer
        return await asyncio.get_running_loop().run_in_executor(pool, tokenizer.encode_many, texts, special)

    async def render(
        self, tokenizer: Tokenizer, messages: list[Any], template: str | None = None, **variables: Any
    ) -> str:
        """A conversation as text. RequestError for what the template refuses or takes too long for.

        Args:
            template: None: the model's.
        """
        continued = variables.pop("continue_final_message", False)
        try:
            text, special = tokenizer.chat_template(template, variables.get("tools"))
        except (ValueError, OSError) as error:
            raise RequestError(str(error)) from error
        return await self._render(text, messages, {**special, **variables}, continued)
