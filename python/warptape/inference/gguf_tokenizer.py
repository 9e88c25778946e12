"""The tokenizer in a GGUF file's metadata, for the library `tokenizers`.

llama.cpp's two kinds: "gpt2", byte pairs with their merges, and "llama", pieces with scores as
SentencePiece's BPE has them, of which the pair with the best joined piece is merged first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .byte_pairs import SPLITS, Split, byte_level
from .pieces import CONTROL, UNKNOWN, USER, Pieces, piece_tokenizer
from .tokenizer_files import put_around

_KEY = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"  # of others by name: tokenizer.chat_template.tool_use
# Name of a token there -> in tokenizer_config.json.
_NAMES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep", "mask": "mask"}


def _pieces(of: Mapping[str, Any], tokens: list[str], types: list[int]) -> Any:
    """Of the kind "llama"."""
    scores = of.get("scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ValueError(f"{_KEY}scores must have one for each of the {len(tokens)} tokens")
    unknown = of.get("unknown_token_id", types.index(UNKNOWN) if UNKNOWN in types else None)
    pieces = Pieces(tokens, scores, types, unknown=unknown, user_first=True)
    pieces.prefix = bool(of.get("add_space_prefix", True))
    pieces.squeeze = bool(of.get("remove_extra_whitespaces", False))
    return piece_tokenizer(pieces)


def _byte_pairs(of: Mapping[str, Any], tokens: list[str], types: list[int]) -> Any:
    """Of the kind "gpt2"."""
    from tokenizers import AddedToken

    split, merges = _split(of), of.get("merges")
    if not isinstance(merges, list) or not all(isinstance(m, str) and m.count(" ") == 1 for m in merges):
        raise ValueError(f"{_KEY}merges must be a list of two parts with a space between")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    out = byte_level({token: i for i, token in enumerate(tokens)}, pairs, split)
    special = [token for token, each in zip(tokens, types) if each in (CONTROL, UNKNOWN)]
    out.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    user = [token for token, each in zip(tokens, types) if each == USER]
    out.add_tokens([AddedToken(token, normalized=False) for token in user])
    return out


def _split(of: Mapping[str, Any]) -> Split:
    name = of.get("pre", "default")
    if name not in SPLITS:
        raise ValueError(f"{_KEY}pre is {name!r:.40}; supported: {', '.join(SPLITS)}")
    return SPLITS[name]


def tokenizer_of(metadata: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A tokenizers.Tokenizer, and what tokenizer_config.json would say: chat_template, special tokens.

    Raises: KeyError where there is none, ValueError for kinds that are not supported and damaged ones.
    """
    of = {key.removeprefix(_KEY): value for key, value in metadata.items() if key.startswith(_KEY)}
    kind, tokens = of["model"], of["tokens"]
    types = of.get("token_type", [1] * len(tokens))
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{_KEY}model is {kind!r:.40}; supported: gpt2, llama")
    if not all(isinstance(token, str) for token in tokens) or len(types) != len(tokens):
        raise ValueError(f"{_KEY}tokens must be texts, with a token_type for each")
    out = (_byte_pairs if kind == "gpt2" else _pieces)(of, tokens, types)
    config: dict[str, Any] = {}
    for which, name in _NAMES.items():
        number = of.get(f"{which}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            config[f"{name}_token"] = tokens[number]
    named = {key.removeprefix(_TEMPLATE).removeprefix("."): each for key, each in metadata.items()
             if key == _TEMPLATE or key.startswith(_TEMPLATE + ".")}  # fmt: skip
    templates = {name or "default": each for name, each in named.items() if isinstance(each, str)}
    if templates:
        listed = [{"name": name, "template": each} for name, each in templates.items()]
        config["chat_template"] = templates["default"] if [*templates] == ["default"] else listed
    begins = of.get("add_bos_token", True if kind == "llama" else _split(of).begins)
    ends = of.get("add_eos_token", False)
    first, last = config.get("bos_token"), config.get("eos_token")
    put_around(out, first if begins else None, last if ends else None)
    return out, config
