"""Tokens to text, one after the other: bytes that are no whole character yet, the space before a word, and
the stop texts at which an answer ends. All texts of tokens come from here.

Each token stands for bytes, which joined are the text. What a library's decoder does to a whole list is known
of its first token, and of a token behind another one; byte pairs and byte tokens are bytes themselves.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .sampling_params import SamplingParams

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MOST_LENGTH = 4  # bytes of a character in UTF-8


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """U+FFFD for each byte that belongs to no character, as the tokenizers library writes byte tokens."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("warptape-each-byte", _replaced)


def byte_letters() -> dict[str, int]:
    """The letter of byte-level BPE for each byte: GPT-2's bytes_to_unicode."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def _kinds(decoder: Any) -> set[str]:
    """The types of a library's decoder, those of a sequence each."""
    if decoder is None:
        return set()
    waiting, types = [json.loads(decoder.__getstate__())], set()
    while waiting:
        each = waiting.pop()
        types.add(each.get("type", ""))
        waiting += each.get("decoders", ())
    return types


class TokenBytes:
    """The bytes of each token of a library's tokenizer, kept once they were asked for.

    Args:
        library: a tokenizer of the tokenizers library.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        kinds = _kinds(library.decoder)
        self._letters = byte_letters() if "ByteLevel" in kinds else {}
        self._fallback = "ByteFallback" in kinds
        # ByteLevel writes what is no character as the standard says, byte tokens one by one.
        self.errors = "replace" if self._letters else "warptape-each-byte"
        added = library.get_added_tokens_decoder()
        self.special = {token: each.content for token, each in added.items() if each.special}
        self._behind: dict[int, bytes] = {}
        self._anchor: tuple[list[int], str] | None = None  # a token of plain text, and what it is alone

    def known(self, token: int) -> bool:
        """Whether the tokenizer has it.

        Args:
            token: a number.
        """
        return self._library.id_to_token(token) is not None

    def of(self, token: int) -> bytes:
        """Of a token behind others.

        Args:
            token: a number.
        """
        behind = self._behind.get(token)
        if behind is None:
            behind = self._behind[token] = self._raw(token) or self._text_behind(token).encode()
        return behind

    def first(self, token: int) -> bytes:
        """Of a text's first token: decoders of words leave out the space before it.

        Args:
            token: a number.
        """
        return self._raw(token) or self._library.decode([token], skip_special_tokens=False).encode()

    def _raw(self, token: int) -> bytes:
        """Where a token is bytes whatever is around it; nothing else."""
        piece = self._library.id_to_token(token) or ""
        if self._letters:
            if all(letter in self._letters for letter in piece):
                return bytes(self._letters[letter] for letter in piece)
            return piece.encode()
        match = _BYTE.fullmatch(piece) if self._fallback else None
        # Below 128 a byte is a character, which other parts of the decoder see, too.
        return bytes([int(match[1], 16)]) if match and int(match[1], 16) > 127 else b""

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


class HasBytes(Protocol):
    """A tokenizer that knows the bytes of its tokens.

    Masks need no more of a tokenizer.
    """

    @property
    def bytes(self) -> TokenBytes:
        """Of each token."""
        ...


class Detokenizer:
    """Text out of tokens as they come.

    Args:
        after: the tokens before, of which nothing is written again.
        skip_special_tokens, spaces_between_special_tokens: see SamplingParams.
    """

    def __init__(
        self,
        tokenizer: HasBytes,
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
        """What the next token adds, if it is this one; nothing of those that are left out.

        Args:
            token: a number.
        """
        if token in self._skipped:
            return b""
        if token in self._joined and self._previous in self._joined:
            return self._joined[token].encode()
        return self._bytes.first(token) if self._is_first else self._bytes.of(token)

    def piece(self, token: int) -> tuple[str, bytes]:
        """The next token's own text if it is this one, and the bytes that it adds; U+FFFD stands for parts of
        characters. Of a special token that is left out the text is its name, and it adds nothing.

        Args:
            token: a number.
        """
        adds = self.bytes_of(token)
        return (adds or self._bytes.of(token)).decode(errors="replace"), adds

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

    def whole(self, tokens: Sequence[int]) -> str:
        """The text of all tokens that are left.

        Args:
            tokens: to the end.
        """
        return "".join(map(self, tokens)) + self.flush()


class AnswerText:
    """The text of an answer while it grows: as far as it may be told, and cut at the first stop text.

    Args:
        params: stop texts, and what is left out.
        after: the prompt's tokens.

    Attributes:
        text: without what is held back, as it may be the beginning of a stop text.
        stopped_by: the stop text that came; None while none did.
    """

    def __init__(self, tokenizer: HasBytes, params: SamplingParams, after: Sequence[int] = ()) -> None:
        options = params.skip_special_tokens, params.spaces_between_special_tokens
        self._stream = Detokenizer(tokenizer, after, *options)
        self._stops, self._included = params._stops, params.include_stop_str_in_output
        self._held = max(map(len, self._stops)) - 1 if self._stops and not self._included else 0
        self._least, self._tokens = params.min_tokens, 0
        self._whole = ""
        self.text = ""
        self.stopped_by: str | None = None

    @property
    def offset(self) -> int:
        """Characters before the next token's, those that are held back among them."""
        return len(self._whole)

    def piece(self, token: int) -> tuple[str, bytes]:
        """See Detokenizer.

        Args:
            token: a number.
        """
        return self._stream.piece(token)

    def add(self, token: int, last: bool = False, unwritten: bool = False) -> bool:
        """Takes the next token; whether a stop text came.

        Args:
            token: a number.
            last: whether nothing follows.
            unwritten: the token ends the answer and is no part of its text.
        """
        before, self._tokens = len(self._whole), self._tokens + 1
        self._whole += "" if unwritten else self._stream(token)
        if last:
            self._whole += self._stream.flush()
        if self._stopped(before):
            return True
        self.text = self._whole if last else self._whole[: max(len(self._whole) - self._held, 0)]
        return False

    def end(self) -> None:
        """Ends it without another token."""
        self._whole += self._stream.flush()
        self.text = self._whole

    def _stopped(self, before: int) -> bool:
        """Cuts the text at the stop text that is complete first, after its first `before` characters: so the
        answer does not depend on how tokens cut it. Of those that end together the longest counts."""
        stops = []
        for stop in self._stops if self._tokens >= self._least else ():
            at = self._whole.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                stops.append((at + len(stop), at, stop))
        if not stops:
            return False
        end, at, self.stopped_by = min(stops)
        self._whole = self.text = self._whole[: end if self._included else at]
        return True
