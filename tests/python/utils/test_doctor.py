"""python -m warptape.doctor, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warptape
from warptape import doctor

COMMAND = [sys.executable, "-m", "warptape.doctor"]


def run(**options: Any) -> subprocess.CompletedProcess[str]:
    path = str(Path(warptape.__file__).parents[1])  # the package under test, from wherever it was imported
    env = os.environ | {"PYTHONPATH": path}
    return subprocess.run(COMMAND, text=True, stderr=subprocess.PIPE, env=env, check=False, **options)


def test_report_says_what_is_there_and_that_it_works() -> None:
    done = run(stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"warptape {warptape.__version__}, Python ")
    assert [line for line in lines if line in ("built in", "found", "missing")] == [
        "built in",
        "found",
        "missing",
    ]
    assert lines[-1] == "warptape works here"


def test_without_the_plugin_its_wheel_and_a_build_of_it_are_named() -> None:
    if Path(warptape.__file__).with_name("libwarptape_cuda.so").exists():
        pytest.skip("the plugin is there")
    (missing,) = [line for line in doctor._missing() if line.startswith("CUDA ")]
    assert "the wheel warptape-cuda" in missing
    assert "WARPTAPE_CUDA=ON" in missing
    assert "CUDA plugin         no" in list(doctor._built())


def test_a_reader_that_leaves_early_causes_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_file_that_is_named_exists() -> None:
    root = Path(__file__).parents[3]
    for purpose, _ in doctor._EXTRAS.values():
        if "/" in purpose:
            assert (root / purpose).exists(), purpose
