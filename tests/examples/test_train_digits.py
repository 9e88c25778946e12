"""examples/train_digits.py as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"


def run(*arguments, **more):
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **more)


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_reaches_its_accuracy(workers):
    pytest.importorskip("sklearn")
    done = run(*workers)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"test accuracy (0\.\d{4}|1\.0000) after \d+\.\d s", done.stdout.splitlines()[-1])
    assert found, done.stdout
    assert float(found[1]) >= 0.985


def test_says_what_is_missing(tmp_path):
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ImportError('not here')")
    done = run(env={"PYTHONPATH": f"{tmp_path}:{':'.join(path for path in sys.path if path)}"})
    assert done.returncode == 2
    assert done.stderr == "train_digits.py: the digits come with scikit-learn: pip install scikit-learn\n"
