"""How often the Python package uses words of its own dialect: python tests/arch/python_words.py

Counted are pieces of names, by what the name is of, and words of the texts of errors. `--list` prints where
functions, classes, parameters and errors have them; `--table` prints the counts as MOST has them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "python/warptape"
PIECE = re.compile(r"[A-Z]?[a-z]+")
# Of each: what the field says instead. Words that no name may have stand in test_words.py.
WORDS = {
    "answer": "response",
    "answers": "responses",
    "asked": "requested",
    "box": "slice, region",
    "coded": "quantized, encoded",
    "each": "the thing's own name",
    "found": "result, matches, the thing's own name",
    "given": "args, values, options",
    "guest": "submodule",
    "guests": "submodules",
    "kind": "type, mode, format",
    "kinds": "types, modes, formats",
    "made": "created, result, the thing's own name",
    "ours": "warptape's, local",
    "part": "shard, slice, chunk",
    "parts": "shards, slices, chunks",
    "patience": "timeout",
    "rows": "batch, records",
    "tell": "send, broadcast",
    "theirs": "PyTorch's, remote",
    "whole": "full, unsharded, integer",
}
# Plain English in the text of an error, where they are not counted.
PROSE = {"each", "found", "given", "kind", "kinds"}
KINDS_OF_NAMES = ("function or class", "parameter", "variable", "text of an error")
# The uses that are left; a count may only fall. A rename that lowers one lowers the row with it.
MOST: dict[str, dict[str, int]] = {
    "function or class": {
        "answer": 9,
        "answers": 3,
        "asked": 2,
        "box": 4,
        "coded": 7,
        "each": 8,
        "found": 8,
        "given": 5,
        "guest": 2,
        "kind": 18,
        "kinds": 1,
        "made": 17,
        "part": 17,
        "parts": 28,
        "rows": 18,
        "tell": 2,
        "theirs": 4,
        "whole": 16,
    },
    "parameter": {
        "answer": 8,
        "asked": 17,
        "box": 1,
        "coded": 1,
        "each": 13,
        "found": 26,
        "given": 45,
        "guest": 6,
        "guests": 1,
        "kind": 92,
        "kinds": 9,
        "made": 8,
        "part": 12,
        "parts": 42,
        "patience": 1,
        "rows": 27,
        "theirs": 2,
        "whole": 3,
    },
    "variable": {
        "answer": 30,
        "answers": 5,
        "asked": 29,
        "box": 3,
        "coded": 3,
        "each": 332,
        "found": 31,
        "given": 45,
        "guest": 7,
        "guests": 2,
        "kind": 273,
        "kinds": 52,
        "made": 16,
        "ours": 2,
        "part": 199,
        "parts": 153,
        "patience": 1,
        "rows": 189,
        "theirs": 5,
        "whole": 18,
    },
    "text of an error": {
        "answer": 4,
        "answers": 4,
        "asked": 2,
        "made": 12,
        "part": 15,
        "parts": 13,
        "rows": 13,
        "tell": 1,
        "theirs": 1,
        "whole": 15,
    },
}


def words_in(text: str) -> set[str]:
    """Those of the words that a name or text is made of."""
    return {piece.lower() for piece in PIECE.findall(text)} & WORDS.keys()


def names(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """(what the name is of, name or text, line) of each definition, assignment and text of an error."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield KINDS_OF_NAMES[0], node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield KINDS_OF_NAMES[1], node.arg, node.lineno
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield KINDS_OF_NAMES[2], node.id if isinstance(node, ast.Name) else node.attr, node.lineno
        elif isinstance(node, ast.Raise) and node.exc is not None:
            for text in ast.walk(node.exc):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield KINDS_OF_NAMES[3], text.value, text.lineno


def uses(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Of each of KINDS_OF_NAMES: (word, place) of every use."""
    places: dict[str, list[tuple[str, str]]] = {what: [] for what in KINDS_OF_NAMES}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        for what, name, line in names(ast.parse(path.read_text())):
            where = f"{path.relative_to(root).as_posix()}:{line}: {name}"
            words = words_in(name) - (PROSE if what == KINDS_OF_NAMES[3] else set())
            places[what] += [(word, where) for word in sorted(words)]
    return places


def counts(root: Path) -> dict[str, Counter[str]]:
    """Of each of KINDS_OF_NAMES: how often it has each word."""
    return {what: Counter(word for word, _ in places) for what, places in uses(root).items()}


def grown(root: Path, most: dict[str, dict[str, int]]) -> list[str]:
    """Words that are used more often than `most` allows, with what to say instead."""
    return [
        f"{word!r} in a {what}: {n} uses, at most {most.get(what, {}).get(word, 0)}; say {WORDS[word]}"
        for what, of_words in counts(root).items()
        for word, n in sorted(of_words.items())
        if n > most.get(what, {}).get(word, 0)
    ]


def main() -> None:
    if "--table" in sys.argv:
        for what, of_words in counts(ROOT).items():
            print(f'    "{what}": {{')
            print(*(f'        "{word}": {n},' for word, n in sorted(of_words.items())), sep="\n")
            print("    },")
        return
    if "--list" in sys.argv:
        places = uses(ROOT)
        for what in (*KINDS_OF_NAMES[:2], KINDS_OF_NAMES[3]):
            print(f"# {what}", *(where for _, where in places[what]), sep="\n")
    for what, of_words in counts(ROOT).items():
        most = of_words.most_common()
        print(f"{of_words.total():6}  {what}:", ", ".join(f"{word} {n}" for word, n in most))


if __name__ == "__main__":
    main()
