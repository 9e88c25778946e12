"""Tokens to text, one after the other: bytes that are no whole character yet, and the space before a word.

Each token stands for bytes, which joined are the text. What a library's decoder does to a whole list is known
of its first token, and of a token behind another one; byte pairs and byte tokens are bytes themselves.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MOST_LENGTH = 4  # bytes of a character in UTF-8


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """U+FFFD for each byte that belongs to no character, as the tokenizers library writes byte tokens."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("warptape-each-byte", _replaced)


def _letters() -> dict[str, int]:
    """The letter of byte-level BPE for each byte: GPT-2's bytes_to_unicode."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def _kinds(decoder: Any) -> set[str]:
    """The types of a library's decoder, those of a sequence each."""
    if decoder is None:
        return set()
    waiting, found = [json.loads(decoder.__getstate__())], set()
    while waiting:
        each = waiting.pop()
        found.add(each.get("type", ""))
        waiting += each.get("decoders", ())
    return found


class TokenBytes:
    """The bytes of each token of a library's tokenizer, kept once they were asked for."""

    def __init__(self, library: Any) -> None:
        self._library = library
        kinds = _kinds(library.decoder)
        self._letters = _letters() if "ByteLevel" in kinds else {}
        self._fallback = "ByteFallback" in kinds
        # ByteLevel writes what is no character as the standard says, byte tokens one by one.
        self.errors = "replace" if self._letters else "warptape-each-byte"
        added = library.get_added_tokens_decoder()
        self.special = {token: each.content for token, each in added.items() if each.special}
        self._behind: dict[int, bytes] = {}
        self._anchor: tuple[list[int], str] | None = None  # a token of plain text, and what it is alone

    def known(self, token: int) -> bool:
        """Whether the tokenizer has it."""
        return self._library.id_to_token(token) is not None

    def of(self, token: int) -> bytes:
        """Of a token behind others."""
        found = self._behind.get(token)
        if found is None:
            found = self._behind[token] = self._raw(token) or self._text_behind(token).encode()
        return found

    def first(self, token: int) -> bytes:
        """Of a text's first token: decoders of words leave out the space before it."""
        return self._raw(token) or self._library.decode([token], skip_special_tokens=False).encode()

    def _raw(self, token: int) -> bytes:
        """Where a token is bytes whatever is around it; nothing else."""
        piece = self._library.id_to_token(token) or ""
        if self._letters:
            if all(letter in self._letters for letter in piece):
                return bytes(self._letters[letter] for letter in piece)
            return piece.encode()
        found = _BYTE.fullmatch(piece) if self._fallback else None
        # Below 128 a byte is a character, which other parts of the decoder see, too.
        return bytes([int(found[1], 16)]) if found and int(found[1], 16) > 127 else b""

    def _text_behind(self, token: int) -> str:
        if self._anchor is None:
            alone = ((t, self._library.decode([t])) for t in self._plain())
            self._anchor = next(
                (([t], text) for t, text in alone if text.strip() and "\ufffd" not in text), ([], "")
            )
        anchor, before = self._anchor
        text: str = self._library.decode([*anchor, token], skip_special_tokens=False)
        if not text.startswith(before):
            text, before = self._library.decode([token], skip_special_tokens=False), ""
        return text[len(before) :]

    def _plain(self) -> Any:
        yield from self._library.encode("a", add_special_tokens=False).ids
        yield from range(min(self._library.get_vocab_size(), 4096))


class Detokenizer:
    """Text out of tokens as they come.

    Args:
        after: the tokens before, of which nothing is written again.
        skip_special_tokens, spaces_between_special_tokens: see SamplingParams.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        after: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._bytes = tokenizer.bytes
        special = self._bytes.special
        self._skipped: Any = special if skip_special_tokens else ()
        self._joined = {} if skip_special_tokens or spaces_between_special_tokens else special
        self._is_first = all(token in self._skipped for token in after)
        self._previous = after[-1] if after else -1
        self._decoder = codecs.getincrementaldecoder("utf-8")(self._bytes.errors)
        self._begun = self._unfinished(after)  # bytes of a character that the tokens before end within

    def _unfinished(self, after: Sequence[int]) -> bytes:
        tail = b""
        for token in reversed(after[-2 * _MOST_LENGTH :]):
            if token not in self._skipped:
                tail = self._bytes.of(token) + tail
            if len(tail) >= _MOST_LENGTH:
                break
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(tail)
        return decoder.getstate()[0]

    def bytes_of(self, token: int) -> bytes:
        """What the next token adds, if it is this one; nothing of those that are left out."""
        if token in self._skipped:
            return b""
        if token in self._joined and self._previous in self._joined:
            return self._joined[token].encode()
        return self._bytes.first(token) if self._is_first else self._bytes.of(token)

    def __call__(self, token: int) -> str:
        """The text that the next token completes, which may be empty."""
        new = self.bytes_of(token)
        if token not in self._skipped:
            self._is_first, self._previous = False, token
        if new and self._begun:
            strict = codecs.getincrementaldecoder("utf-8")()
            try:
                strict.decode(self._begun + new)
            except UnicodeDecodeError as error:
                if error.start < len(self._begun):  # it does not go on with that character
                    self._begun = b""
            new, self._begun = self._begun + new, b""
        return self._decoder.decode(new)

    def flush(self) -> str:
        """What is left at the end: bytes of a character that never came whole."""
        return self._decoder.decode(b"", True)
