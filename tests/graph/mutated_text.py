"""Texts of programs with wrong pieces, for readers that must refuse them or take them as they are."""

from __future__ import annotations

import random
import re
from collections.abc import Callable


def pieces(text: str, strings: bool = False) -> list[str]:
    """Words, numbers, white space and signs; with `strings`, what stands in quotes is one piece."""
    return re.findall(r"\s+|\w+|\"[^\"]*\"|." if strings else r"\s+|\w+|.", text)


def mutated(
    words: list[str], rng: random.Random, kinds: int, replace: Callable[[list[str], int, int], None]
) -> str:
    """The text with one to three pieces swapped, doubled or dropped, or changed by `replace(words, i, kind)`,
    for a kind from 3 to `kinds` - 1."""
    words = list(words)
    for _ in range(rng.randint(1, 3)):
        i, j = rng.randrange(len(words)), rng.randrange(len(words))
        kind = rng.randrange(kinds)
        if kind == 0:
            words[i], words[j] = words[j], words[i]
        elif kind == 1:
            words.insert(i, words[j])
        elif kind == 2:
            del words[i]
        else:
            replace(words, i, kind)
    return "".join(words)


def numbers_in(words: list[str]) -> list[int]:
    """Where numbers stand."""
    return [k for k, w in enumerate(words) if w.isdigit()]
