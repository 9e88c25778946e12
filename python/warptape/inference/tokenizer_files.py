"""Tokenizers of folders that have no tokenizer.json: Mistral's tekken.json, ranks as tiktoken has them, and
SentencePiece's models."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from .byte_pairs import SPLITS, Split, of_ranks
from .generation_config import read_object
from .pieces import Pieces, piece_tokenizer, read_pieces

CONFIG, ADDED = "tokenizer_config.json", "added_tokens.json"
TEKKEN = "tekken.json"
PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model")
RANKS = ".tiktoken"
MOST_SPECIAL = 1 << 16
_RANK = re.compile(rb"\s*[A-Za-z0-9+/]+=* [0-9]+\r?\n")
# Whose files of ranks are not split as Llama 3's, by model_type.
_OF_MODELS = {"qwen": "qwen2", "qwen2": "qwen2", "qwen3": "qwen2", "qwen2_moe": "qwen2", "qwen3_moe": "qwen2",
              "gpt_oss": "gpt-4o", "kimi_k2": "kimi-k2", "deepseek_v3": "kimi-k2"}  # fmt: skip
_AT_ENDS = ("t5", "mt5", "umt5")  # whose texts end with the end token, by the class's name
# Of Mistral's files that do not list them, the first ones of 1,000.
_CONTROLS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
# Of Llama 3's, whose files have none; others between are reserved.
_LLAMA3 = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 4: "<|finetune_right_pad_id|>", 5: "<|step_id|>",
           6: "<|start_header_id|>", 7: "<|end_header_id|>", 8: "<|eom_id|>", 9: "<|eot_id|>",
           10: "<|python_tag|>"}  # fmt: skip

Made = tuple[Any, dict[str, str]]  # a tokenizer of the library, and texts of special tokens by name


def file_of(folder: str | os.PathLike[str]) -> str | None:
    """The file that a folder's tokenizer is read from; None where there is none.

    Args:
        folder: with a model.
    """
    path = os.fspath(folder)
    for name in (TEKKEN, *PIECES):
        if os.path.isfile(os.path.join(path, name)):
            return os.path.join(path, name)
    ranks = sorted(name for name in os.listdir(path) if name.endswith(RANKS)) if os.path.isdir(path) else []
    return os.path.join(path, ranks[0]) if len(ranks) == 1 else None


def read_tokenizer(path: str) -> Made:
    """The tokenizer in such a file, with tokens that its folder's tokenizer_config.json or added_tokens.json
    adds.

    Args:
        path: of the file.

    Raises: ValueError for damaged files and kinds that are not supported.
    """
    folder = os.path.dirname(path)
    config = read_object(folder, CONFIG)
    with open(path, "rb") as file:
        data = file.read()
    read: Callable[[bytes, str, dict[str, Any]], Made]
    if os.path.basename(path) == TEKKEN:
        read = _tekken
    elif path.endswith(RANKS) or _RANK.match(data):
        read = _tiktoken
    else:
        read = _sentencepiece
    return read(data, path, config)


def put_around(library: Any, first: str | None, last: str | None) -> None:
    """Makes texts begin and end with these tokens.

    Args:
        library: a tokenizer.
        first: None: with none.
        last: as `first`.
    """
    from tokenizers import processors

    if known := [token for token in (first, last) if token is not None]:
        library.post_processor = processors.TemplateProcessing(
            single=" ".join(each for each in (first, "$A", last) if each is not None),
            special_tokens=[(token, library.token_to_id(token)) for token in dict.fromkeys(known)],
        )


def _add(library: Any, tokens: Mapping[int, Any]) -> None:
    """Tokens by number. The library numbers what is not in the vocabulary: that must go on behind it."""
    from tokenizers import AddedToken

    for number, each in sorted(tokens.items()):
        said = each if isinstance(each, dict) else {"content": each, "special": True}
        text, flags = (
            said.get("content"),
            {f: bool(said.get(f, False)) for f in ("lstrip", "rstrip", "single_word")},
        )
        if not isinstance(text, str) or not text:
            raise ValueError(f"the added token {number} has no text")
        token = AddedToken(text, special=bool(said.get("special")), normalized=False, **flags)
        (library.add_special_tokens if token.special else library.add_tokens)([token])
        if library.token_to_id(text) != number:
            raise ValueError(f"the added token {text!r:.40} cannot have the number {number}")


def _added(folder: str, config: Mapping[str, Any]) -> dict[int, Any]:
    """What files beside add, by number."""
    listed = config.get("added_tokens_decoder")
    if isinstance(listed, dict):
        return {int(number): each for number, each in listed.items() if str(number).isdecimal()}
    return {n: {"content": text} for text, n in read_object(folder, ADDED).items() if isinstance(n, int)}


# ---- Mistral's ----


def _tekken(data: bytes, path: str, config: dict[str, Any]) -> Made:
    """Special tokens have the first numbers, and ranks follow."""
    said = json.loads(data)
    about, vocabulary = said["config"], said["vocab"]
    count, size = about["default_num_special_tokens"], about["default_vocab_size"]
    listed = said.get("special_tokens") or [{"rank": i, "token_str": t} for i, t in enumerate(_CONTROLS)]
    special = {each["rank"]: each["token_str"] for each in listed}
    ranks = {base64.b64decode(each["token_bytes"]): each["rank"] for each in vocabulary}
    ranks = {token: rank for token, rank in ranks.items() if rank < size - count}
    split = SPLITS["tekken"]._replace(patterns=(about["pattern"],))
    if not 0 < count <= MOST_SPECIAL:
        raise ValueError(f"default_num_special_tokens is {count!r:.40}, not up to {MOST_SPECIAL}")
    numbered = {i: special.get(i, f"<SPECIAL_{i}>") for i in range(count)}
    if len(numbered) != len({*numbered.values()}):
        raise ValueError("special tokens with one text")
    out = of_ranks(ranks, split, count, {text: i for i, text in numbered.items()})
    _add(out, numbered)
    put_around(out, "<s>", None)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return out, {name: text for name, text in names.items() if text in numbered.values()}


# ---- tiktoken's ----


def _split_of(path: str) -> Split:
    """A file of ranks does not say how texts are split: its name does, or the model beside it."""
    stem = os.path.basename(path).removesuffix(RANKS)
    if stem in SPLITS:
        return SPLITS[stem]
    kind = read_object(os.path.dirname(path), "config.json").get("model_type")
    return SPLITS[_OF_MODELS.get(str(kind), "llama3")]


def _tiktoken(data: bytes, path: str, config: dict[str, Any]) -> Made:
    try:
        rows = [line.split() for line in data.splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in rows}
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"no file of ranks, or a damaged one: {error}") from error
    added = _added(os.path.dirname(path), config)
    names: dict[str, str] = {}
    if not added and len(ranks) == 128_000:
        reserved = iter(range(256))
        added = {
            128_000 + i: _LLAMA3.get(i) or f"<|reserved_special_token_{next(reserved)}|>" for i in range(256)
        }
        names = {"bos_token": _LLAMA3[0], "eos_token": _LLAMA3[1]}
    added = {n: each for n, each in added.items() if n not in {*ranks.values()}}
    numbers = {*ranks.values(), *added}
    if max(numbers, default=0) >= len(numbers) + MOST_SPECIAL:
        raise ValueError(f"the tokens have numbers up to {max(numbers)}, but there are {len(numbers)}")
    # Libraries take the number of tokens for what numbers end at: those between have tokens that no text has.
    between = {n: f"[PAD{n}]" for n in range(max(numbers, default=0)) if n not in numbers}
    more = {n: str(_text(each)) for n, each in added.items()} | between
    out = of_ranks(ranks, _split_of(path), 0, {text: n for n, text in more.items()})
    _add(out, added)
    first = _text(config.get("bos_token")) or names.get("bos_token")
    put_around(out, first if config.get("add_bos_token", first is not None) else None, None)
    return out, names


# ---- SentencePiece's ----


def _text(token: Any) -> str | None:
    said = token.get("content") if isinstance(token, dict) else token
    return said if isinstance(said, str) else None


def _sentencepiece(data: bytes, path: str, config: dict[str, Any]) -> Made:
    pieces = read_pieces(data)
    if os.path.basename(path) == "sentencepiece.bpe.model":
        return _xlm_roberta(pieces, config)
    out = piece_tokenizer(pieces)
    there = len(pieces.tokens)
    _add(out, {n: each for n, each in _added(os.path.dirname(path), config).items() if n >= there})
    names = {f"{name}_token": pieces.tokens[number] for name, number in pieces.named.items()}
    kind = str(config.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer").lower()
    ends = config.get("add_eos_token", kind in _AT_ENDS)
    first, last = ({**names, **config}.get(f"{which}_token") for which in ("bos", "eos"))
    begins = config.get("add_bos_token", first is not None and kind not in _AT_ENDS)
    put_around(out, _text(first) if begins else None, _text(last) if ends else None)
    return out, names


def _xlm_roberta(pieces: Pieces, config: dict[str, Any]) -> Made:
    """fairseq's numbers: its special tokens, then the pieces from the third on, then the mask."""
    kind = str(config.get("tokenizer_class", "XLMRobertaTokenizer"))
    if not kind.startswith("XLMRoberta"):
        raise ValueError(
            f"{kind:.40} with sentencepiece.bpe.model is not supported, only XLMRobertaTokenizer"
        )
    head = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces.tokens = [*head, *pieces.tokens[3:], "<mask>"]
    pieces.scores = [0.0] * 4 + [*pieces.scores[3:], 0.0]
    pieces.types = [3, 3, 3, 2, *pieces.types[3:], 3]
    pieces.unknown = 3
    out = piece_tokenizer(pieces)
    put_around(out, "<s>", "</s>")
    return out, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
                 "mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}  # fmt: skip
