"""How much an addition touches: CONTRIBUTING's recipes, counted on what was added by them."""

from __future__ import annotations

import pytest
from arch.cpp_numbers import (
    ADDED,
    FAMILY,
    MOST_OF_FAMILY,
    MOST_PLACES,
    of_family,
    places,
    with_python,
)
from arch.test_seams import ROOT, sources


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return sources(ROOT)


@pytest.fixture(scope="module")
def everything(files: dict[str, str]) -> dict[str, str]:
    return with_python(files)


@pytest.mark.parametrize("name", ADDED)
def test_few_places_name_what_was_added(name: str, everything: dict[str, str]) -> None:
    words, users = ADDED[name]
    found = places(everything, words, users)
    assert 0 < sum(found.values()) <= MOST_PLACES[name], found


def test_a_family_is_a_file_of_each_kind(files: dict[str, str]) -> None:
    found = of_family(files, FAMILY)
    assert len(found) == MOST_OF_FAMILY and {path.split("/")[1] for path in found} >= {
        "cpu",
        "cuda",
        "include",
    }


def test_a_planted_place_is_found() -> None:
    text = 'WT_OP(rot90)\n\n\n\n\ndecltype(rot90) rot90{"rot90",\n  "rot90"};\n'
    assert places(
        {"csrc/ops/a.cpp": text, "csrc/ops/b.cpp": "rot900", "use/c.py": "rot90"}, "rot90", ("use/",)
    ) == {"csrc/ops/a.cpp": 2}
