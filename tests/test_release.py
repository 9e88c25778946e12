"""tools/release.py: pip reads the index that it writes, and a wheel that does not work is refused."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load("release")


def wheel(folder: Path, name: str, version: str, more: str = "", code: bytes = b"") -> Path:
    """A wheel of one module."""
    module = name.lower().replace("-", "_").replace(".", "_")
    path, info = folder / f"{module}-{version}-py3-none-any.whl", f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    load("build_wheel").write_wheel(path, files, f"{info}/RECORD")
    return path


def pip(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """pip, which finds what to install in the index alone."""
    index = f"--index-url={(folder / 'simple').as_uri()}"
    command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-cache-dir", index, *names]
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [*command, "-d", str(folder / "got")], capture_output=True, text=True, env=environment
    )


def test_pip_reads_the_index(tool: ModuleType, tmp_path: Path) -> None:
    wheel(tmp_path, "Some.Name", "1.0")
    wheel(tmp_path, "Some.Name", "2.0", "Requires-Python: >=9\n")
    wheel(tmp_path, "user", "0.1", "Requires-Dist: some-name\n")
    assert tool.write_index(tmp_path) == ["some-name", "user"]
    done = pip(tmp_path, "user")
    assert done.returncode == 0, done.stderr
    got = sorted(f.name for f in (tmp_path / "got").iterdir())
    assert got == ["some_name-1.0-py3-none-any.whl", "user-0.1-py3-none-any.whl"]  # 2.0 is for another Python
    missing = pip(tmp_path, "absent")
    assert missing.returncode and "absent" in missing.stderr


def test_a_file_that_changed_is_refused(tool: ModuleType, tmp_path: Path) -> None:
    file = wheel(tmp_path, "user", "0.1")
    (tmp_path / "user-0.1.tar.gz").write_bytes(b"source")
    tool.write_index(tmp_path)
    sums = dict(reversed(line.split()) for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert sums == {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in tmp_path.glob("user*")}
    wheel(tmp_path, "user", "0.1", code=b"planted = 1\n")
    done = pip(tmp_path, "user")
    assert done.returncode and "hash" in done.stderr.lower()
    assert file.exists() and not list((tmp_path / "got").glob("*"))


def test_a_release_without_wheels_is_refused(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no wheel and no source"):
        tool.write_index(tmp_path)


@pytest.mark.parametrize("code", [b"raise ImportError('planted')\n", b"tensor = None\n"])
def test_a_wheel_that_cannot_train_is_refused(tool: ModuleType, tmp_path: Path, code: bytes) -> None:
    wheel(tmp_path, "warptape", "0.1", code=code)
    tool.write_index(tmp_path)
    with pytest.raises(SystemExit, match="failed with 1") as error:
        tool.check(tmp_path, Path(sys.executable))
    assert "Error" in str(error.value)
