"""The committed stubs and page of ops are those that the declarations give."""

from __future__ import annotations

import ast
import importlib.util
import json
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


def test_files_are_up_to_date(generate: ModuleType) -> None:
    written = {path for path in generate.texts() if path.suffix == ".pyi"}
    assert set((ROOT / "python/warptape").rglob("*.pyi")) == written
    # In a process of its own: what other tests import must not change what is compared.
    done = subprocess.run(
        [sys.executable, ROOT / "tools/generate.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


PUBLIC = """
import importlib, inspect, json, sys
names = {}
for path in sys.argv[1:]:
    found = vars(importlib.import_module(path))
    names[path] = [n for n, value in found.items() if not n.startswith("_") and not inspect.ismodule(value)]
print(json.dumps(names))
"""


def test_stubs_have_the_public_names(generate: ModuleType) -> None:
    # In a process of its own: names that come at their first use are not there yet.
    paths = [*generate.MODULES.values(), "warptape"]
    command = [sys.executable, "-W", "ignore", "-c", PUBLIC, *paths]
    public = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name in paths:
        tree = ast.parse(generate.stub_path(name).read_text())
        declared = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        declared |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
        declared |= {n.asname for node in tree.body if isinstance(node, ast.ImportFrom) for n in node.names}
        assert {*public[name]} - declared <= {"annotations"}


@pytest.mark.parametrize(
    ("tool", "file"),
    [
        ("generate", "docs/reference/ops.md"),
        ("compatibility", "docs/measurements/compatibility.md"),
        ("torch_names", "python/warptape/torch/names.txt"),
    ],
)
def test_help_writes_nothing(tool: str, file: str) -> None:
    before = (ROOT / file).stat().st_mtime_ns
    job = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--help"]
    done = subprocess.run(job, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage:") and (ROOT / file).stat().st_mtime_ns == before
