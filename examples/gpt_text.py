"""Where train_gpt.py finds text."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


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
