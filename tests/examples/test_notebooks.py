"""Every notebook runs from its first cell to its last, in a kernel of this Python."""

import os
import platform
import shutil
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))

COMPILE = {"tensors_and_tape", "gpu_to_tensor_core"}  # C++ of their own


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    if path.stem in COMPILE and not shutil.which(os.environ.get("CXX", "g++")):
        pytest.skip("needs a C++ compiler")
    if path.stem == "gpu_to_tensor_core" and platform.machine() != "x86_64":
        pytest.skip("the emulated device needs an x86-64 processor")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    formats = [o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", [])]
    assert any("image/png" in data or "image/svg+xml" in data for data in formats), "the picture is missing"


def test_there_are_notebooks():
    assert NOTEBOOKS
