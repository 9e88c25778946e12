"""The package that users copy builds, and passes its own tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warptape

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/extension"
pytest.importorskip("setuptools")
pytest.importorskip("pybind11")


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler")
def test_the_package_builds_and_passes_its_tests(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.so", "build"))
    package = str(Path(warptape.__file__).parents[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), package])}

    def python(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python("setup.py", "build_ext", "--inplace")
    assert (tmp_path / "squared_relu" / "_C.so").exists()
    assert "7 passed" in python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
