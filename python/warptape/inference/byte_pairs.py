"""Byte-level BPE for the library `tokenizers`: how models split texts, and merges of what has only ranks.

The splits are those of the models' own tokenizer.json and tiktoken's; their names are llama.cpp's
`tokenizer.ggml.pre` (src/llama-vocab.cpp) and tiktoken's encodings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .detokenizer import byte_letters

T = TypeVar("T", str, bytes)


class Split(NamedTuple):
    """How a text is cut before pairs are merged.

    Args:
        patterns: what each in turn cuts out.
        gpt2: whether GPT-2's pattern cuts last.
        whole: whether a part that is a token is not made of pairs.
        begins: whether texts begin with the begin token if a file does not say.
        composed: whether texts are in Unicode's form NFC.
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    whole: bool = False
    begins: bool = False
    composed: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _ENDS
_DIGITS = _WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_LEADS = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _cased(after: str, digits: str) -> str:
    """Words are cut where a small letter comes before a capital one."""
    return (
        f"{_LEADS}{_UPPER}*{_LOWER}+{after}|{_LEADS}{_UPPER}+{_LOWER}*{after}|{digits}{_PUNCTUATION}{_ENDS}"
    )


_ASCII = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_LLAMA3 = Split((_WORDS,), whole=True, begins=True)
_GPT2 = Split(gpt2=True)
_BY_DIGIT = Split((r"\p{N}",), gpt2=True)
_TEKKEN = Split((_cased("", r"\p{N}"),), whole=True, begins=True)
_GPT4O = Split((_cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}"),))
_DEEPSEEK3 = Split((
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    _ASCII + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + _ENDS,
))  # fmt: skip
_HAN = r"\p{Han}"
_KIMI = Split((
    rf"[{_HAN}]+|"
    rf"{_LEADS}(?:(?!{_HAN}){_UPPER})*(?:(?!{_HAN}){_LOWER})+{_CONTRACTIONS}?|"
    rf"{_LEADS}(?:(?!{_HAN}){_UPPER})+(?:(?!{_HAN}){_LOWER})*{_CONTRACTIONS}?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _ENDS,
))  # fmt: skip
_CODER = Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"))
_MARKED = _DIGITS.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_NAMED = {
    "gpt-2 default phi-2 mpt olmo jais trillion granite-docling modern-bert mellum gigachat jina-es jina-de "
    "jina-v2-es jina-v2-de a.x-4.0 exaone4 jina-v1-en jina-v2-code roberta-bpe gpt2 r50k_base": _GPT2,
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": _LLAMA3,
    "dbrx smaug-bpe glm4 chatglm-bpe cl100k_base": Split((_WORDS,)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez qwen": Split((_DIGITS,), composed=True),
    "stablelm2 hunyuan grok-2": Split((_DIGITS,)),
    "qwen35": Split((_MARKED,), composed=True),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": _BY_DIGIT,
    "tekken": _TEKKEN,
    "gpt-4o llama4 kanana2 o200k_base": _GPT4O,
    "deepseek-v3 hunyuan-dense": _DEEPSEEK3,
    "deepseek-coder": _CODER,
    "kimi-k2": _KIMI,
    "seed-coder": Split((_DIGITS.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+"),)),
}
SPLITS: dict[str, Split] = {name: split for names, split in _NAMED.items() for name in names.split()}


def ordered_pairs(tokens: Mapping[T, Any], token: T) -> list[tuple[T, T]]:
    """The pairs that a token can be made of, in the order in which they come first.

    By rank alone the leftmost of pairs with the same sum is merged. The library merges by pairs, so of two
    that overlap in a text (A + B == B + C) the first must come before the second.

    Args:
        tokens: all.
        token: one of them.
    """
    size = len(token)
    cuts = [at for at in range(size - 1, 0, -1) if token[:at] in tokens and token[at:] in tokens]

    def rank(at: int) -> int:
        other = size - at
        if at < other and token[at:] == token[:other] and token[other:] != token[:at]:
            return -other * 2 - 1  # before its mirror
        return -at * 2

    return [(token[:at], token[at:]) for at in sorted(cuts, key=rank)]


def ranked_merges(
    tokens: Mapping[T, Any], order: Sequence[T], write: Callable[[T], str]
) -> list[tuple[str, str]]:
    """Merges for tokens that have only an order, of which the first possible one is merged first.

    Args:
        tokens: all that may be parts.
        order: tokens, best first.
        write: how the library has a part.
    """
    return [(write(a), write(b)) for token in order for a, b in ordered_pairs(tokens, token)]


def byte_text(token: bytes) -> str:
    """A token as byte-level BPE writes it.

    Args:
        token: its bytes.
    """
    return token.decode("latin-1").translate(_LETTERS)


_LETTERS = {byte: letter for letter, byte in byte_letters().items()}


def byte_level(vocabulary: dict[str, int], merges: list[tuple[str, str]], split: Split) -> Any:
    """A tokenizer of the library.

    Args:
        vocabulary: tokens as `byte_text` writes them, with their numbers.
        merges: pairs, the first first.
        split: of texts.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    out = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.whole))
    parts: list[Any] = [pre_tokenizers.Split(Regex(each), "isolated") for each in split.patterns]
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.gpt2))
    out.pre_tokenizer = pre_tokenizers.Sequence(parts) if len(parts) > 1 else parts[0]
    if split.composed:
        out.normalizer = normalizers.NFC()
    out.decoder = decoders.ByteLevel()
    return out


def of_ranks(
    ranks: Mapping[bytes, int], split: Split, first: int = 0, more: Mapping[str, int] | None = None
) -> Any:
    """A tokenizer of tiktoken's ranks: of bytes, the part of the lowest rank is merged first.

    Args:
        ranks: of tokens.
        split: of texts; a part that is a token is one.
        first: the number of the token of rank 0.
        more: numbers of special tokens by their texts.

    Raises: ValueError where one of the bytes has no token, or two tokens have one rank or text.
    """
    lacking = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if lacking:
        raise ValueError(f"byte {lacking[0]} has no token")
    order = sorted(ranks, key=ranks.__getitem__)
    if len({*ranks.values()}) != len(order):
        raise ValueError("several tokens have one rank")
    vocabulary = {byte_text(token): first + ranks[token] for token in order}
    both = {*vocabulary} & {*(more or ())}
    if both or len({*vocabulary.values()} & {*(more or {}).values()}):
        raise ValueError(f"special tokens have the texts or numbers of others: {sorted(both)!r:.80}")
    merges = ranked_merges(ranks, order, byte_text)
    return byte_level({**vocabulary, **(more or {})}, merges, split._replace(whole=True))
