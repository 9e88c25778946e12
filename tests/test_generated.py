"""The committed stub and page of ops are those that the declarations give."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools/generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "function"), [("python/warptape/_C.pyi", "stub_text"), ("docs/ops.md", "ops_page")]
)
def test_file_is_up_to_date(generate: ModuleType, file: str, function: str) -> None:
    expected = getattr(generate, function)()
    assert (ROOT / file).read_text() == expected, f"{file} is old; run: python tools/generate.py"
