"""The tokenizer in a GGUF file's metadata, for the library `tokenizers`.

llama.cpp's two kinds: "gpt2", byte pairs with their merges, and "llama", pieces with scores as
SentencePiece's BPE has them, of which the pair with the best joined piece is merged first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEY = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"  # of others by name: tokenizer.chat_template.tool_use
# How text is split before pairs are merged, by tokenizer.ggml.pre (llama.cpp, src/llama-vocab.cpp).
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS: dict[str, str | None] = {  # None: GPT-2's own
    "gpt-2": None,
    "default": None,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
}
# Name of a token there -> in tokenizer_config.json.
_NAMES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep", "mask": "mask"}
_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6  # of tokenizer.ggml.token_type


def _merges(tokens: list[str], scores: list[float], whole: set[int]) -> list[tuple[str, str]]:
    """The pairs that make up the pieces `whole`, those of the best score first."""
    number = {token: i for i, token in enumerate(tokens)}
    found = []
    for i in whole:
        token = tokens[i]
        pairs = ((token[:at], token[at:]) for at in range(1, len(token)))
        inside = [(left, right) for left, right in pairs if left in number and right in number]
        inside.sort(key=lambda pair: (number[pair[0]], number[pair[1]]))
        found += [(-scores[i], order, pair) for order, pair in enumerate(inside)]
    found.sort(key=lambda entry: entry[:2])
    return [pair for *_, pair in found]


def _pieces(of: Mapping[str, Any], tokens: list[str], types: list[int]) -> Any:
    """Of the kind "llama"."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = of.get("scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ValueError(f"{_KEY}scores must have one for each of the {len(tokens)} tokens")
    whole = {i for i, kind in enumerate(types) if kind not in (_UNKNOWN, _CONTROL, _BYTE)}
    unknown = of.get("unknown_token_id", types.index(_UNKNOWN) if _UNKNOWN in types else None)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    model = models.BPE(
        vocabulary,
        _merges(tokens, scores, whole),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=_BYTE in types,
    )
    out = Tokenizer(model)
    prefix = bool(of.get("add_space_prefix", True))
    marks = [normalizers.Prepend("▁")] if prefix else []
    out.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    out.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return out


def _byte_pairs(of: Mapping[str, Any], tokens: list[str]) -> Any:
    """Of the kind "gpt2"."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name, merges = of.get("pre", "default"), of.get("merges")
    if name not in _SPLITS:
        raise ValueError(f"{_KEY}pre is {name!r:.40}; supported: {', '.join(_SPLITS)}")
    if not isinstance(merges, list) or not all(isinstance(m, str) and m.count(" ") == 1 for m in merges):
        raise ValueError(f"{_KEY}merges must be a list of two parts with a space between")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    split = _SPLITS[name]
    out = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=split is _LLAMA3))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    if split is None:
        out.pre_tokenizer = to_bytes
    else:
        apart = pre_tokenizers.Split(Regex(split), "isolated")
        out.pre_tokenizer = pre_tokenizers.Sequence([apart, to_bytes])
    if split is _QWEN2:
        out.normalizer = normalizers.NFC()
    out.decoder = decoders.ByteLevel()
    return out


def tokenizer_of(metadata: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A tokenizers.Tokenizer, and what tokenizer_config.json would say: chat_template, special tokens.

    Raises: KeyError where there is none, ValueError for kinds that are not supported and damaged ones.
    """
    from tokenizers import AddedToken, processors

    of = {key.removeprefix(_KEY): value for key, value in metadata.items() if key.startswith(_KEY)}
    kind, tokens = of["model"], of["tokens"]
    types = of.get("token_type", [1] * len(tokens))
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{_KEY}model is {kind!r:.40}; supported: gpt2, llama")
    if not all(isinstance(token, str) for token in tokens) or len(types) != len(tokens):
        raise ValueError(f"{_KEY}tokens must be texts, with a token_type for each")
    out = _byte_pairs(of, tokens) if kind == "gpt2" else _pieces(of, tokens, types)
    special = [token for token, each in zip(tokens, types) if each in (_CONTROL, _UNKNOWN)]
    out.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    user = [token for token, each in zip(tokens, types) if each == _USER]
    out.add_tokens([AddedToken(token, normalized=False) for token in user])
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
    begins = of.get("add_bos_token", kind == "llama" or _SPLITS[of.get("pre", "default")] is _LLAMA3)
    ends = of.get("add_eos_token", False)
    around = [(which, config.get(f"{which}_token")) for which, on in (("bos", begins), ("eos", ends)) if on]
    if known := {which: token for which, token in around if token is not None}:
        template = [known.get("bos"), "$A", known.get("eos")]
        out.post_processor = processors.TemplateProcessing(
            single=" ".join(each for each in template if each is not None),
            special_tokens=[(token, tokens.index(token)) for token in known.values()],
        )
    return out, config
