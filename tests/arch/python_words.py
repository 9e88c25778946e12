"""How often the Python package uses words of its own dialect: python tests/arch/python_words.py [--list]

Counted are parts of names, by what the name is of, and words of the texts of errors. `--list` prints where
functions, classes, parameters and errors have them.
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
WORDS = {"kind", "kinds", "found", "made", "given", "part", "parts", "rows", "whole", "theirs", "ours"}
PIECE = re.compile(r"[A-Z]?[a-z]+")
KINDS_OF_NAMES = ("function or class", "parameter", "variable", "text of an error")


def words_in(text: str) -> set[str]:
    """Those of the words that a name or text is made of."""
    return {piece.lower() for piece in PIECE.findall(text)} & WORDS


def names(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """(what the name is of, name or text, line) of each definition, assignment and text of an error."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield KINDS_OF_NAMES[0], node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield KINDS_OF_NAMES[1], node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield KINDS_OF_NAMES[2], node.id, node.lineno
        elif isinstance(node, ast.Raise) and node.exc is not None:
            for text in ast.walk(node.exc):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield KINDS_OF_NAMES[3], text.value, text.lineno


def uses(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Of each of KINDS_OF_NAMES: (word, place) of every use."""
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in KINDS_OF_NAMES}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        for kind, name, line in names(ast.parse(path.read_text())):
            where = f"{path.relative_to(root).as_posix()}:{line}: {name}"
            found[kind] += [(word, where) for word in sorted(words_in(name))]
    return found


def main() -> None:
    found = uses(ROOT)
    if "--list" in sys.argv:
        for kind in (*KINDS_OF_NAMES[:2], KINDS_OF_NAMES[3]):
            print(f"# {kind}", *(where for _, where in found[kind]), sep="\n")
    for kind, each in found.items():
        counts = Counter(word for word, _ in each)
        print(f"{len(each):6}  {kind}:", ", ".join(f"{word} {n}" for word, n in counts.most_common()))


if __name__ == "__main__":
    main()
