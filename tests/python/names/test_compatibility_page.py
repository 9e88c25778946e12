"""What docs/measurements/compatibility.md calls missing is missing: a name that came in has gone from it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from warptape._missing import find

PAGE = Path(__file__).resolve().parents[3] / "docs" / "measurements" / "compatibility.md"
ROW = re.compile(r"\| (torch[\w.]*) \| \d+ of \d+ \| (.*?) \|")


def there(text: str) -> Iterator[str]:
    """Names that a table calls missing and that can be found."""
    for space, names in ROW.findall(text):
        for name in re.findall(r"\w+(?=,| *$)", names):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    find(f"{space}.{name}")
            except (AttributeError, ImportError, NotImplementedError):
                continue
            yield f"{space}.{name}"


@pytest.mark.skipif(not PAGE.is_file(), reason="without the documentation")
def test_missing_names_are_missing() -> None:
    text = PAGE.read_text()
    assert len(ROW.findall(text)) > 50
    assert not list(there(text)), "run tools/compatibility.py"


def test_planted_row() -> None:
    assert list(there("| torch.nn | 1 of 3 | Container, Linear |\n")) == ["torch.nn.Linear"]
