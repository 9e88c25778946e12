"""SentencePiece's tokenizers for the library `tokenizers`: of `.model` files, and of what GGUF files say.

A `.model` file is a protocol buffer, sentencepiece_model.proto, of which a few fields matter. They are read
here: the class that the package sentencepiece ships cannot be loaded beside another copy of that file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .byte_pairs import ranked_merges

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # types of pieces; GGUF's token_type, too
_UNIGRAM, _BPE = 1, 2
_SPACE = "▁"


@dataclass
class Pieces:
    """What a tokenizer consists of.

    Args:
        tokens, scores, types: of each piece.
        unigram: whether the likeliest pieces are taken; else pairs are merged, the best first.
        unknown: the number of the piece for what has none.
        byte_fallback: whether bytes are written instead, where there are pieces for them.
        prefix: whether a text begins with a space.
        squeeze: whether spaces at the ends, and all but one between words, are left out.
        charsmap: how characters are normalised, as SentencePiece compiles it.
        user_first: whether tokens of the user's are cut out of a text before all else, as llama.cpp does.
        named: numbers by name: "bos", "eos", "pad", "unk".
    """

    tokens: list[str]
    scores: list[float]
    types: list[int]
    unigram: bool = False
    unknown: int | None = None
    byte_fallback: bool = True
    prefix: bool = True
    squeeze: bool = False
    charsmap: bytes = b""
    user_first: bool = False
    named: dict[str, int] = field(default_factory=dict)


# ---- files ----


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Of a message: numbers of fields with their values, bytes or whole numbers."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if size > len(data) - at:
            raise ValueError("it is truncated")
        yield key >> 3, data[at : at + size]
        at += size


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def read_pieces(data: bytes) -> Pieces:
    """The tokenizer in a `.model` file.

    Args:
        data: of the file.

    Raises: ValueError for damaged ones, and those of words or characters.
    """
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in _fields(memoryview(data)):
            if number == 1:
                piece = dict(_fields(value))
                tokens.append(str(piece[1], "utf-8"))
                scores.append(struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0)
                types.append(piece.get(3, NORMAL))
            elif number in (2, 3):
                (trainer if number == 2 else normalizer).update(_fields(value))
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"no SentencePiece model, or a damaged one: {error}") from error
    kind = trainer.get(3, _UNIGRAM)
    if not tokens or kind not in (_UNIGRAM, _BPE):
        raise ValueError("a SentencePiece model must have pieces, and be of the type unigram or bpe")
    if UNUSED in types or trainer.get(24, 0) or not normalizer.get(5, 1):
        raise ValueError(
            "SentencePiece models with unused pieces, or other marks of spaces, are not supported"
        )
    numbers = {"unk": trainer.get(40, 0), "bos": trainer.get(41, 1), "eos": trainer.get(42, 2)}
    numbers["pad"] = trainer.get(43, (1 << 64) - 1)
    return Pieces(
        tokens,
        scores,
        types,
        unigram=kind == _UNIGRAM,
        unknown=types.index(UNKNOWN) if UNKNOWN in types else None,
        byte_fallback=bool(trainer.get(35, 0)),
        prefix=bool(normalizer.get(3, 1)),
        squeeze=bool(normalizer.get(4, 1)),
        charsmap=bytes(normalizer.get(2, b"")),
        named={name: i for name, n in numbers.items() if 0 <= (i := _signed(n)) < len(tokens)},
    )


# ---- the library's ----


def piece_tokenizer(of: Pieces) -> Any:
    """A tokenizer of the library, whose special tokens are the control pieces.

    Raises: ValueError for a description that the library refuses.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

    bytes_there = of.byte_fallback and BYTE in of.types
    if of.unigram:
        pairs = list(zip(of.tokens, of.scores))
        model: Any = models.Unigram(pairs, of.unknown, byte_fallback=bytes_there)
    else:
        model = models.BPE(
            {token: i for i, token in enumerate(of.tokens)},
            _merges(of),
            unk_token=None if of.unknown is None else of.tokens[of.unknown],
            fuse_unk=True,
            byte_fallback=bytes_there,
        )
    out = Tokenizer(model)
    user = [token for token, kind in zip(of.tokens, of.types) if kind == USER]
    steps: list[Any] = [normalizers.Precompiled(of.charsmap)] if of.charsmap else []
    if of.squeeze:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps.append(normalizers.Replace(" ", _SPACE))
    if of.prefix:
        steps.append(_prefix([] if of.user_first else user))
    out.normalizer = normalizers.Sequence(steps)
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    out.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if of.prefix else [])])
    special = [token for token, kind in zip(of.tokens, of.types) if kind in (CONTROL, UNKNOWN)]
    out.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    # SentencePiece finds them in what the normaliser writes, which must leave them as they are.
    out.add_tokens([AddedToken(token, normalized=not of.user_first) for token in user])
    return out


def _prefix(user: list[str]) -> Any:
    """A space before a text, but not before a token of the user's, which the library normalises by itself to
    find it later. So a text that is one such token alone gets none, other than in SentencePiece."""
    from tokenizers import Regex, normalizers

    if not user:
        return normalizers.Prepend(_SPACE)
    alone = "|".join(re.escape(token) for token in user)
    return normalizers.Replace(Regex(rf"\A(?=[\s\S])(?!(?:{alone})\z)"), _SPACE)


def _merges(of: Pieces) -> list[tuple[str, str]]:
    """Pairs that make up pieces, those of the best score first."""
    there = {t: i for i, t in enumerate(of.tokens) if of.types[i] not in (UNKNOWN, CONTROL, BYTE, USER)}
    order = sorted(there, key=lambda token: (-of.scores[there[token]], there[token]))
    return ranked_merges(there, order, str)
