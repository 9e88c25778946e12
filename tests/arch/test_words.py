"""The graph compiler and the Python package are named in the field's words. Identifiers made of the words on
the left once stood for what the words on the right say; a planted one must be found. Words of which uses are
left may not become more frequent. CONTRIBUTING's glossary has words that the sources use."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest
from arch.python_words import MOST, grown

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "csrc/graph"

INSTEAD = {
    "aside": "evicted",
    "beside": "row operand, concurrent",
    "choice": "tuner",
    "elsewhere": "swapped memory",
    "fate": "use summary",
    "form": "cache key",
    "given": "output, present",
    "graveyard": "deferred deletion",
    "held": "references",
    "kept": "retained, saved",
    "meet": "force before use, join",
    "note": "record",
    "noted": "recorded",
    "piece": "chunk, tile",
    "place": "position, index, view",
    "promise": "remat, rematerialize",
    "recipe": "remat call",
    "relaid": "propagated layout",
    "seen": "visited, observed",
    "stray": "unexpected",
    "stretch": "tile",
    "turn": "measurement, alternation",
    "vigil": "watchdog",
    "way": "mode, variant",
    "whole": "opaque, full",
    "workshop": "capture stream",
}
PYTHON = "python/warptape"
INSTEAD_IN_PYTHON = {
    "bury": "reap",
    "hear": "receive",
    "pacer": "rate control",
    "sheet": "cost model",
    "sight": "attention mask",
    "stranger": "unauthenticated peer",
    "weighed": "weighted",
}
# In place is the field's word; the rest is declared in lower layers.
ALLOWED = {"in_place", "in_place_form", "kInPlace", "kInPlaceResult", "kPlaces"} | {"held", "promise"}
TOKEN = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|#include[^\n]*|[A-Za-z_]\w*')
PART = re.compile(r"[A-Z]?[a-z]+")


def dialect(root: Path) -> list[str]:
    plural = {w + "s": to for w, to in INSTEAD.items()}
    words = INSTEAD | plural
    found = []
    for path in sorted((root / FOLDER).rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        relative = path.relative_to(root).as_posix()
        for token in TOKEN.finditer(path.read_text()):
            if token[0][0] in '/"#' or token[0] in ALLOWED:
                continue
            for part in PART.findall(token[0]):
                if part.lower() in words:
                    found.append(f"{relative}: {token[0]}: say {words[part.lower()]}")
    return found


def python_dialect(root: Path) -> list[str]:
    plural = {w + "s": to for w, to in INSTEAD_IN_PYTHON.items()}
    words = INSTEAD_IN_PYTHON | plural
    found = []
    for path in sorted((root / PYTHON).rglob("*.py")):
        relative, text = path.relative_to(root).as_posix(), path.read_text()
        if not any(word in text.lower() for word in INSTEAD_IN_PYTHON):
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                parts = {part.lower() for part in PART.findall(token.string)}
                found += [
                    f"{relative}: {token.string}: say {words[part]}" for part in sorted(parts & words.keys())
                ]
    return found


def glossary(root: Path) -> list[str]:
    """The terms in the first column of CONTRIBUTING's table."""
    table = (root / "CONTRIBUTING.md").read_text().split("## Glossary\n", 1)[1]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    return [term for row in rows[2:] for term in row.split(", ")]


def unused_terms(root: Path) -> list[str]:
    """Terms that no source says."""
    left = {
        term: re.compile(term.split(" that ")[0].replace(" ", r"[ _-]?"), re.IGNORECASE)
        for term in glossary(root)
    }
    for folder in ("csrc", "kernels", "python"):
        for path in sorted((root / folder).rglob("*")):
            if left and path.suffix in (".h", ".cpp", ".py"):
                text = path.read_text()
                left = {term: pattern for term, pattern in left.items() if not pattern.search(text)}
    return list(left)


def test_words() -> None:
    assert not dialect(ROOT)
    assert not python_dialect(ROOT)


def test_glossary() -> None:
    assert len(glossary(ROOT)) > 30
    assert not unused_terms(ROOT)


def test_planted_term(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "planted.cpp").write_text("// the tape\n")
    table = "| here | meaning |\n| --- | --- |\n| tape, gramophone | sounds |\n"
    (tmp_path / "CONTRIBUTING.md").write_text(f"## Glossary\n\n{table}")
    assert unused_terms(tmp_path) == ["gramophone"]


@pytest.mark.parametrize("name", ["Pacer", "_hear", "time_sheet"])
def test_planted_words_in_python(name: str, tmp_path: Path) -> None:
    file = tmp_path / PYTHON / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(f'text = "{name}"  # {name}\n{name} = 1\n')
    assert [line.split(": ")[1] for line in python_dialect(tmp_path)] == [name]


@pytest.mark.parametrize("name", ["Fates", "noted_whole", "kPromises", "relaid"])
def test_planted_words(name: str, tmp_path: Path) -> None:
    file = tmp_path / FOLDER / "ir" / "planted.h"
    file.parent.mkdir(parents=True)
    file.write_text(f'// a promise of "{name}"\nint in_place, {name}; const char* text = "{name}";\n')
    assert {line.split(": ")[1] for line in dialect(tmp_path)} == {name}


def test_words_that_may_only_become_rarer() -> None:
    assert not grown(ROOT, MOST)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("def make_whole(): ...", "'whole' in a function or class: 2 uses, at most 1"),
        ("class HostParts: ...", "'parts' in a function or class: 1 uses, at most 0"),
        ("def f(*, kind): ...", "'kind' in a parameter: 1 uses, at most 0"),
        ("all_found = x.made = 1", "'found' in a variable: 1 uses, at most 0"),
        ("x.is_made = 1", "'made' in a variable: 1 uses, at most 0"),
        ("raise ValueError(f'{x}: theirs')", "'theirs' in a text of an error: 1 uses, at most 0"),
    ],
)
def test_a_planted_use_more(line: str, message: str, tmp_path: Path) -> None:
    most = {"function or class": {"whole": 1}}
    file = tmp_path / PYTHON / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text("def whole(): ...\n\n\nraise ValueError('each file that was given was not found')\n")
    assert not grown(tmp_path, most)
    file.write_text(f"{file.read_text()}{line}\n")
    assert message in [text.split("; ")[0] for text in grown(tmp_path, most)]
