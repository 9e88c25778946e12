"""Tokenizers and chat templates of the models that are served."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..inference.tokenizer import FILE, Tokenizer
from .workers import RequestError

TEMPLATE_SECONDS = 2.0
MOST_TOKENIZERS = 16
LONG = 20_000  # characters, from which a text is tokenised in a thread
MOST_RENDERED = 32 << 20  # characters of a rendered conversation


class TemplateTimeoutError(RequestError):
    """A chat template that takes too long."""


class _Interrupt(BaseException):
    """Raised within a thread that has had its time; templates cannot catch it."""


def limited(function: Callable[[], Any], limit: float) -> Any:
    """What a function of Python code returns, or raises, within `limit` seconds; blocks.

    Raises: TemplateTimeoutError. The thread ends at its next Python instruction.
    """
    done: list[Any] = []

    def run() -> None:
        try:
            done.append((True, function()))
        except _Interrupt:
            pass
        except BaseException as error:
            done.append((False, error))

    thread = threading.Thread(target=run, name="warptape-template", daemon=True)
    thread.start()
    thread.join(limit)
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Interrupt))
        thread.join(limit)
    if not done:
        raise TemplateTimeoutError(f"the chat template took more than {limit:g} s")
    worked, value = done[0]
    if not worked:
        raise value
    return value


class Texts:
    """The tokenizers of model folders, the last used ones kept."""

    def __init__(self, template_seconds: float = TEMPLATE_SECONDS) -> None:
        self._template_seconds = template_seconds
        self._made: OrderedDict[tuple[str, int], Tokenizer] = OrderedDict()

    async def of(self, spec: Any, vocab_size: int | None = None) -> Tokenizer | None:
        """A version's tokenizer; None where it has none. Raises: ValueError for a damaged one."""
        folder = os.fspath(spec.options.get("tokenizer") or spec.path)
        path = os.path.join(folder, FILE)
        try:
            key = path, os.stat(path).st_mtime_ns
        except OSError:
            return None
        found = self._made.get(key)
        if found is None:
            found = await asyncio.to_thread(Tokenizer, folder, vocab_size)
            self._made[key] = found
        self._made.move_to_end(key)
        while len(self._made) > MOST_TOKENIZERS:
            self._made.popitem(last=False)
        return found

    async def encode(self, tokenizer: Tokenizer, text: str, special: bool = True) -> list[int]:
        """A text's tokens."""
        if len(text) < LONG:
            return tokenizer.encode(text, add_special_tokens=special)
        return await asyncio.to_thread(tokenizer.encode, text, special)

    async def render(self, tokenizer: Tokenizer, messages: list[Any], **variables: Any) -> str:
        """A conversation as text. RequestError for what the template refuses or takes too long for."""

        def call() -> str:
            return tokenizer.apply_chat_template(messages, **variables)

        try:
            text = await asyncio.to_thread(limited, call, self._template_seconds)
        except RequestError:
            raise
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            OverflowError,
            MemoryError,
        ) as error:
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        if len(text) > MOST_RENDERED:
            raise RequestError(
                f"the conversation has {len(text)} characters, at most {MOST_RENDERED} are taken"
            )
        return text
