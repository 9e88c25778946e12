"""The committed stub and page of ops are those that the declarations give."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("tool", "file"),
    [
        ("generate", "docs/ops.md"),
        ("compatibility", "docs/compatibility.md"),
        ("torch_names", "python/warptape/torch/names.txt"),
    ],
)
def test_help_writes_nothing(tool: str, file: str) -> None:
    before = (ROOT / file).stat().st_mtime_ns
    job = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--help"]
    done = subprocess.run(job, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage:") and (ROOT / file).stat().st_mtime_ns == before
