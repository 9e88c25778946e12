"""Executes notebooks and stores their outputs in them.

    python tools/execute_notebooks.py                          all of notebooks/
    python tools/execute_notebooks.py notebooks/07_graphs.ipynb

Each runs from its first cell to its last in a new kernel of this Python. Which cell took how long, and which
version of Python ran it, is not stored, nor where the kernel kept a cell's source: two runs of a notebook
differ in what its cells show alone. Pictures get a palette of 64 colours, which makes them a third as large.
A cell that raises ends it, and the file stays as it was. Needs `pip install 'warptape[notebooks]'`.
"""

from __future__ import annotations

import base64
import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from PIL import Image  # matplotlib needs it, too

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
LIMIT = 240  # seconds of a cell
# The kernel's file of a cell, as warnings and graphs name it.
CELL_FILE = re.compile(r"[^\s\"'<>]{0,200}ipykernel_\d+[/\\]\d+\.py")


def execute(path: Path) -> Any:
    """The notebook of a file with the outputs of a run. Raises nbclient.exceptions.CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", record_timing=False)
    client.coalesce_streams = True  # what a cell prints is one output, where nbclient can
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for part in (output, output.get("data", {})):
                part.update({kind: stored(kind, value) for kind, value in part.items()})
    return notebook


def stored(kind: str, value: Any) -> Any:
    """What is kept of a part of an output."""
    if kind == "image/png":
        picture = Image.open(io.BytesIO(base64.b64decode(value))).convert("RGB").quantize(64)
        picture.save(file := io.BytesIO(), "png", optimize=True)
        return base64.b64encode(file.getvalue()).decode()
    return CELL_FILE.sub("cell.py", value) if isinstance(value, str) else value


def main(names: list[str]) -> int:
    for path in map(Path, names) if names else sorted(FOLDER.glob("*.ipynb")):
        start = time.perf_counter()
        nbformat.write(execute(path), path)
        print(f"{path.name}: {time.perf_counter() - start:.1f} s, {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
