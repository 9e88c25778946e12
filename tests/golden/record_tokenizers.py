"""Records tokenizers.json from tiktoken, mistral-common and sentencepiece: `PYTHONPATH=tests python -m
golden.record_tokenizers`, where they are installed beside warptape."""

from __future__ import annotations

import base64
import functools
import importlib.metadata
import json
import random
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import tiktoken
import tokenizers
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from warptape.inference.byte_pairs import SPLITS

from golden.tokenizers import FILE, WORDS, random_text

PACKAGES = ("tiktoken", "mistral-common", "sentencepiece")


class Case(NamedTuple):
    """A file, and the package's own reading of it."""

    file: str
    data: bytes
    config: dict[str, Any]
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]


def trained(pattern: str, size: int) -> list[bytes]:
    """Byte pairs by rank, single bytes first."""
    cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    to_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([cut, to_bytes])
    rng = random.Random(0)
    alphabet = to_bytes.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([random_text(rng) for _ in range(300)], trainer)
    tokens = [
        tokenizers.decoders.ByteLevel().decode([t])
        for t in sorted(made.get_vocab(), key=made.get_vocab().get)
    ]
    found = [token.encode() for token in tokens if "\ufffd" not in token and len(token.encode()) > 1]
    return [*(bytes([i]) for i in range(256)), *dict.fromkeys(found)]  # fmt: skip


def of_ranks(stem: str) -> Case:
    pattern = SPLITS[stem].patterns[0]
    tokens = trained(pattern, 400)
    ranks = {token: rank for rank, token in enumerate(tokens)}
    data = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    special = {"<|end|>": len(ranks), "<|more|>": len(ranks) + 3}
    added = {str(n): {"content": text, "special": True} for text, n in special.items()}
    made = tiktoken.Encoding(stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    config = {"added_tokens_decoder": added, "eos_token": "<|end|>"}
    return Case(
        f"{stem}.tiktoken", data, config, lambda text: made.encode(text, allowed_special="all"), made.decode
    )


def tekken(listed: bool) -> Case:
    pattern = SPLITS["tekken"].patterns[0]
    tokens = trained(pattern, 400)
    rows = [
        {"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
        for i, t in enumerate(tokens)
    ]
    config = {"pattern": pattern, "num_vocab_tokens": len(rows), "default_vocab_size": len(rows) + 20,
              "default_num_special_tokens": 30, "version": "v7" if listed else "v3"}  # fmt: skip
    said: dict[str, Any] = {"config": config, "vocab": rows}
    if listed:
        texts = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
        said["special_tokens"] = [
            {"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(texts)
        ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tekken.json")
        path.write_text(json.dumps(said))
        made = Tekkenizer.from_file(path)
        return Case("tekken.json", path.read_bytes(), {}, lambda text: made.encode(text, True, False),
                    lambda tokens: made.decode(tokens))  # fmt: skip


def pieces(words: list[str] = WORDS, bos: bool = True, **settings: Any) -> Case:
    said = {"normalization_rule_name": "identity", "byte_fallback": True, "vocab_size": 330, **settings}
    rng = random.Random(0)
    lines = [
        " ".join(rng.choices([w for w in words if w.isascii() and w.isprintable()], k=20)) for _ in range(500)
    ]
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.write_text("\n".join(lines))
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=f"{folder}/x", minloglevel=2, hard_vocab_limit=False, **said
        )
        data = Path(folder, "x.model").read_bytes()
    made = sentencepiece.SentencePieceProcessor(model_proto=data)
    config = {} if bos else {"add_bos_token": False, "add_eos_token": True}
    return Case("tokenizer.model", data, config, lambda text: made.encode(text, add_bos=bos, add_eos=not bos),
                made.decode)  # fmt: skip


@functools.cache
def all_cases() -> dict[str, Case]:
    kept = {"remove_extra_whitespaces": False}
    return {
        "cl100k_base": of_ranks("cl100k_base"),
        "o200k_base": of_ranks("o200k_base"),
        "tekken": tekken(True),
        "tekken without a list": tekken(False),
        "byte pairs": pieces(model_type="bpe", **kept),
        "byte pairs, no space first": pieces(model_type="bpe", add_dummy_prefix=False, **kept),
        "byte pairs of a user": pieces(model_type="bpe", user_defined_symbols=["foo_", "▁▁"], **kept),
        "unigram": pieces(model_type="unigram", bos=False),
        "unigram with spaces": pieces(model_type="unigram", **kept),
    }


def main() -> None:
    """All of them."""
    rng = random.Random(1)
    out = {}
    for name, case in all_cases().items():
        texts = ["", "the sea", "  the  sea ", "\n", *(random_text(rng, most=12) for _ in range(12))]
        ids = [case.encode(text) for text in texts]
        data = base64.b64encode(zlib.compress(case.data)).decode()
        out[name] = {"file": case.file, "data": data, "config": case.config, "texts": texts,
                     "ids": ids, "back": [case.decode(each) for each in ids]}  # fmt: skip
    said = {name: importlib.metadata.version(name) for name in PACKAGES}
    FILE.write_text(json.dumps({"recorded from": said, "cases": out}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
