"""examples/compress_digits.py as a user runs it, for few epochs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("digits")


def run(*arguments):
    command = [sys.executable, str(ROOT / "examples" / "compress_digits.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    "method, least, most_bytes",
    [("prune", 0.9, 60_000), ("distill", 0.6, 20_000), ("binarise", 0.5, 110_000)],
)
def test_a_method(method, least, most_bytes, cache, tmp_path):
    pytest.importorskip("sklearn")
    program = tmp_path / "small.safetensors"
    epochs = ("--epochs", 2, "--first-epochs", 4)
    done = run(method, *epochs, "--cache", cache, "--save", program)
    assert done.returncode == 0, done.stderr
    found = re.search(rf"{method}: accuracy (\d\.\d+), (\d+) bytes", done.stdout)
    assert found, done.stdout
    assert float(found[1]) >= least and int(found[2]) <= most_bytes
    assert program.stat().st_size < 200_000


def test_wrong_options(cache):
    assert run("quantise").returncode == 2
    assert run("prune", "--epochs", 0).returncode == 2
