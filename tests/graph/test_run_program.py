"""warptape-run-program: a saved program from the command line, with a limit of memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import warptape as torch
from warptape import nn
from warptape.export import Dim, export, save

TOOL = Path(torch.__file__).parent / "bin" / "warptape-run-program"


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3)).eval()


@pytest.fixture
def path(model: nn.Module, tmp_path: Path) -> Path:
    where = tmp_path / "model.safetensors"
    save(export(model, (torch.ones(2, 64),), dynamic_shapes=({0: Dim("batch", max=1 << 20)},)), where)
    return where


def test_runs_on_given_elements(model: nn.Module, path: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((5, 64), np.float32)
    x.tofile(tmp_path / "x.bin")
    done = call(path, f"5x64@{tmp_path / 'x.bin'}", "--output", tmp_path / "y.bin", "--repeat", 3, "--text")
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    found = np.fromfile(tmp_path / "y.bin", np.float32).reshape(5, 3)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)  # as one thread sums
    assert done.stdout.startswith("graph<batch in ") and "[5, 3]:" in done.stdout and " ms, " in done.stdout


def test_lists_its_kernels(path: Path, tmp_path: Path) -> None:
    assert call(path, "2x64", "--kernels", tmp_path / "k.txt").returncode == 0
    names = (tmp_path / "k.txt").read_text().split()
    assert "matmul" in names and names == sorted(set(names)) and len(names) < 20


def test_more_memory_than_allowed_is_an_error_of_its_own(path: Path) -> None:
    assert call(path, "8x64", "--memory", 1).returncode == 0
    done = call(path, "100000x64", "--memory", 1)
    assert done.returncode == 3 and "the limit is 1048576" in done.stderr
    assert call(path, "8x64", "--memory", 0.01).returncode == 3  # the weights are larger


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "expected a program"),
        (["MODEL", "2x64", "3"], "has 1 inputs, got 2"),
        (["MODEL", "2xx64"], "expects sizes"),
        (["MODEL", "2x64@/no/such"], "cannot open /no/such"),
        (["MODEL", "2x64", "--threads", "0"], "at least 1.00"),
        (["MODEL", "2x64", "--threads"], "at least"),
        (["MODEL", "--fast"], "unknown option"),
    ],
)
def test_wrong_calls_end_with_2(path: Path, arguments: list[str], says: str) -> None:
    done = call(*[path if a == "MODEL" else a for a in arguments])
    assert done.returncode == 2 and says in done.stderr


def test_wrong_files_and_shapes_end_with_1(path: Path, tmp_path: Path) -> None:
    assert call(tmp_path / "none").returncode == 1
    (tmp_path / "cut").write_bytes(path.read_bytes()[:-9])
    done = call(tmp_path / "cut")
    assert done.returncode == 1 and done.stderr
    assert call(path, "2x65").returncode == 1
