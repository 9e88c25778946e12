"""python -m warptape.doctor, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
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


def test_a_required_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "safetensors":
            raise metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(doctor.metadata, "version", version)
    assert "safetensors         which warptape requires: pip install safetensors" in list(doctor._missing())
    assert [line.split()[0] for line in doctor._found() if line.split()[0] in doctor._REQUIRED] == [
        "numpy",
        "tqdm",
    ]


def plugin_is_there() -> bool:
    return Path(warptape.__file__).with_name("libwarptape_cuda.so").exists()


def test_the_plugin_says_what_it_was_built_with() -> None:
    """Whatever the rest was built with: the plugin may come from a wheel of its own."""
    built = warptape._C._build_info()["cuda"]
    assert bool(built) == plugin_is_there() == warptape.backends.cuda.is_built()
    assert f"CUDA plugin         {built or 'no'}" in list(doctor._built())


def test_without_the_plugin_its_wheel_and_a_build_of_it_are_named() -> None:
    if plugin_is_there():
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
