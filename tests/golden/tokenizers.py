"""Tokenizers' files, and what the packages that they belong to made of texts: tokenizers.json, which
record_tokenizers.py writes."""

from __future__ import annotations

import base64
import json
import random
import zlib
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("tokenizers.json")
WORDS = [
    *(
        "the",
        "old",
        "man",
        "and",
        "sea",
        "is",
        "not",
        "land",
        "an",
        "end",
        "of",
        "12345",
        "it's",
        "theirs",
        "THE",
    ),
    *("iOS", "naïve", "café", "東京", "🎈", "½", "Привет", "안녕", "don't", "you'll", "\n\n\t\r\n", "a1b2"),
    *("foo_(x)[0]!=", "--", "...", "aaaa", "abab"),
]


def random_text(rng: random.Random, words: list[str] = WORDS, most: int = 30) -> str:
    """Words, runs of one thing, and characters of several scripts that have been in Unicode for long."""
    out = []
    for _ in range(rng.randint(0, most)):
        kind = rng.random()
        if kind < 0.5:
            out.append(rng.choice(words) + rng.choice(["", " ", "  ", "   "]))
        elif kind < 0.7:
            out.append(rng.choice(["a", "ab", "aba", " ", "  ", "\n"]) * rng.randint(1, 9))
        else:
            ranges = [
                (32, 126),
                (160, 0x52F),
                (0x4E00, 0x9F00),
                (0x1F300, 0x1F5FF),
                (0xAC00, 0xD7A3),
                (1, 31),
            ]
            out.append(chr(rng.randint(*rng.choice(ranges))))
    return "".join(out)


def cases() -> dict[str, Any]:
    """By name: file, its data, compressed and in base64, config beside it, texts, and their tokens."""
    found: dict[str, Any] = json.loads(FILE.read_text())["cases"]
    return found


def write_case(folder: Path, case: dict[str, Any]) -> None:
    """The folder that a case is of."""
    folder.mkdir(exist_ok=True)
    (folder / case["file"]).write_bytes(zlib.decompress(base64.b64decode(case["data"])))
    (folder / "tokenizer_config.json").write_text(json.dumps(case["config"]))
