"""Where train_gpt.py finds text: sentences of a small grammar, Python's standard library, or a user's files.

The grammar's entropy is known, so that the loss of a model that reads its text has a floor to stand beside.
"""

from __future__ import annotations

import lzma
import math
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

LIBRARY = "stdlib"  # the name of the standard library's source as a text
SIZE = 1_500_000  # bytes of the grammar's text

# The alternatives of each symbol, all equally likely. Each sentence has one derivation. Verbs agree with
# subjects that stand far off; pronouns agree with names and numbers.
GRAMMAR = {
    "sentence": [
        "<girl> <does> the <kind> <animal> because she <feels> it.\n",
        "<girl> <does> <two> <kind> <animal>s because she <feels> them.\n",
        "<boy> <does> the <kind> <animal> because he <feels> it.\n",
        "<boy> <does> <two> <kind> <animal>s because he <feels> them.\n",
        "The <kind> <animal><place> <acts>s <when>.\n",
        "<Two> <kind> <animal>s<place> <acts> <when>.\n",
        "<When> the <animal> <acts>s<place>.\n",
        "<When> <two> <animal>s <acts><place>.\n",
    ],
    "girl": ["Anna", "Clara", "Ida", "Maria"],
    "boy": ["Ben", "Karl", "Noah", "Tom"],
    "does": ["feeds", "follows", "draws", "calls", "watches"],
    "feels": ["likes", "knows", "misses"],
    "kind": ["old", "small", "black", "hungry", "quiet", "white"],
    "animal": ["dog", "cat", "horse", "goat", "bird", "duck", "cow"],
    "two": ["two", "three", "many"],
    "Two": ["Two", "Three", "Many"],
    "acts": ["sleep", "sing", "eat", "wait", "play"],
    "place": ["", " near the <water>", " behind the <house>", " between two <tree>s"],
    "water": ["river", "lake", "well"],
    "house": ["barn", "mill", "school"],
    "tree": ["oak", "tree", "rock"],
    "when": ["all day", "at night", "in the rain", "until the sun rises"],
    "When": ["Today", "Every morning", "After dinner", "In winter"],
}
State = tuple[str, ...]  # what a sentence still holds: literal text and symbols


def pieces(alternative: str) -> State:
    """Literal text and symbols of an alternative, in order."""
    return tuple(filter(None, re.split(r"(<\w+>)", alternative)))


def sentences(seed: int, size: int) -> bytes:
    """At least `size` bytes of the grammar's text, a sentence a line."""
    choose, out, length = random.Random(seed).choice, [], 0

    def write(alternative: str) -> str:
        return re.sub(r"<(\w+)>", lambda symbol: write(choose(GRAMMAR[symbol[1]])), alternative)

    while length < size:
        out.append(write("<sentence>"))
        length += len(out[-1])
    return "".join(out).encode()


@cache
def following(state: State) -> dict[int, list[tuple[float, State]]]:
    """{byte that may come: [(its probability, the state after it)]}."""
    if not state:
        return following(("<sentence>",))
    first, rest = state[0], state[1:]
    found: dict[int, list[tuple[float, State]]] = {}
    if not first.startswith("<"):
        return {ord(first[0]): [(1.0, (first[1:], *rest) if first[1:] else rest)]}
    alternatives = GRAMMAR[first[1:-1]]
    for each in alternatives:
        for byte, ways in following(pieces(each) + rest).items():
            found.setdefault(byte, []).extend((p / len(alternatives), after) for p, after in ways)
    return found


@cache
def visits() -> dict[State, float]:
    """{state: how often a sentence passes through it, in the mean}; their sum is a sentence's mean length."""
    order: dict[State, None] = {}

    def walk(state: State) -> None:
        if state and state not in order:
            for ways in following(state).values():
                for _, after in ways:
                    walk(after)
            order[state] = None

    start = ("<sentence>",)
    walk(start)
    found = dict.fromkeys(order, 0.0)
    found[start] = 1.0
    for state in reversed(order):
        for ways in following(state).values():
            for p, after in ways:
                if after:
                    found[after] += p * found[state]
    return found


def entropy() -> float:
    """Of a sentence in nats, over its mean length: nats per byte. Every choice among k counts log k."""

    def of(symbol: str) -> float:
        alternatives = GRAMMAR[symbol]
        inner = sum(of(name) for each in alternatives for name in re.findall(r"<(\w+)>", each))
        return math.log(len(alternatives)) + inner / len(alternatives)

    return of("sentence") / sum(visits().values())


@lru_cache(maxsize=4096)
def believed(seen: bytes) -> tuple[dict[State, float], float]:
    """({state: its probability}, probability of the last byte) after a window that may begin anywhere."""
    before: dict[State, float] = visits()
    before = believed(seen[:-1])[0] if len(seen) > 1 else before
    total, after = sum(before.values()), dict[State, float]()
    for state, weight in before.items():
        for p, then in following(state).get(seen[-1], ()):
            then = then or ("<sentence>",)
            after[then] = after.get(then, 0.0) + weight * p / total
    probability = sum(after.values())
    return {state: weight / probability for state, weight in after.items()}, probability


def floor(text: np.ndarray, block: int) -> float:
    """The least loss on the text's blocks, in nats per byte: that of a reader who knows the grammar.

    A block follows one byte of context. Its first bytes cost more than the entropy, because the reader does
    not know where in a sentence it begins. The forward algorithm of hidden Markov models gives the number.
    """
    rows = (len(text) - 1) // block
    total = 0.0
    for row in range(rows):
        window = text[row * block : (row + 1) * block + 1].tobytes()
        total -= sum(math.log(believed(window[: n + 1])[1]) for n in range(1, block + 1))
    return total / (rows * block)


def standard_library() -> list[Path]:
    """The running Python's own modules in order of name, without test folders and installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files: list[Path] = []
    for module in sorted(sys.stdlib_module_names):
        files += sorted((root / module).rglob("*.py")) or [root / f"{module}.py"]
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    return [f for f in files if f.is_file() and not left_out & set(f.relative_to(root).parts)]


def readable_files(folder: Path) -> Iterator[Path]:
    """The text files under a folder: neither hidden nor with a zero byte near their start."""
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.is_file() and not hidden and b"\0" not in file.open("rb").read(4096):
            yield file


def parts(data: str | None) -> Iterator[bytes]:
    """The bytes of a text that is no single file: of the grammar, the standard library or a folder."""
    if data is None:
        yield sentences(0, SIZE)
    else:
        for file in standard_library() if data == LIBRARY else readable_files(Path(data)):
            yield file.read_bytes()


def reference(data: str | None, text: np.ndarray, block: int) -> tuple[str, float]:
    """(name, bits per byte) to compare the loss on the text with: the floor of the grammar's text, the
    size of xz's archive of any other."""
    if data is None:
        return "floor", floor(text, block) / math.log(2)
    size = (len(text) - 1) // block * block
    return "xz", 8 * len(lzma.compress(text[1 : size + 1].tobytes(), preset=9)) / size
