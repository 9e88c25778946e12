"""Three newcomers' first hour, by the commands that README.md, the course and CONTRIBUTING.md print.

pip's part is the installation that runs these tests: what pip is asked for is compared with pyproject.toml.
Blocks of Python in README.md and docs run in tests/test_docs.py, notebooks in test_notebooks.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def blocks(text: str, language: str = "") -> list[str]:
    """Fenced blocks of a page that say this language, or none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for name, block in found if name == language]


def commands(text: str) -> list[str]:
    """Commands of the blocks without a language, without comments; what && joins is apart."""
    lines = [line.split(" #")[0].strip() for block in blocks(text) for line in block.splitlines()]
    return [command.strip() for line in lines for command in line.split("&&") if command.strip()]


def run(*command: str | Path, folder: Path, seconds: float = 240) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
    return done.stdout


def extras_of_the_project() -> set[str]:
    """Names below [project.optional-dependencies]; Python 3.10 has no tomllib."""
    table = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]\n")[1]
    return set(re.findall(r"^([a-z]+) = \[", table.split("\n[")[0], re.M))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "notebooks/README.md"])
def test_pip_is_asked_for_extras_that_exist(page: str) -> None:
    asked = re.findall(r"pip install[^\n]*?'?(?:\.|warptape)\[([a-z,]+)\]", (ROOT / page).read_text())
    assert asked
    assert {extra for extras in asked for extra in extras.split(",")} <= extras_of_the_project()


# ---- a student -----------------------------------------------------------------------------------------


def test_student_the_first_block_learns(tmp_path: Path) -> None:
    program = blocks(README, "python")[0]
    last = float(run("-c", program, folder=tmp_path))
    first = float(run("-c", program.replace("range(200)", "range(1)"), folder=tmp_path))
    assert last < 0.2 * first


@pytest.mark.timeout(900)  # a minute on two cores that have nothing else to do
def test_student_the_main_job_runs_as_written(tmp_path: Path) -> None:
    """It prints the loss, the floor under it and three samples, draws a picture, and says what to do next."""
    line = next(command for command in commands(README) if "examples/train_gpt.py" in command)
    _, script, *arguments = shlex.split(line)
    assert not arguments
    out = run(ROOT / script, folder=tmp_path, seconds=840)
    losses = [float(x) for x in re.findall(r"val bits/byte (\d+\.\d+)", out)]
    floor = float(re.findall(r"\(floor (\d+\.\d+)\)", out)[0])
    assert floor < losses[-1] < floor + 0.1 < losses[0]
    assert len(losses) >= 3
    assert list(tmp_path.rglob("*.png"))
    assert "examples/train_gpt.py --resume" in out or "warptape" in out.splitlines()[-1]


def test_student_the_command_lists_itself(tmp_path: Path) -> None:
    listed = re.findall(r"^  (\w+)  ", run("-m", "warptape", folder=tmp_path), re.M)
    named = set(re.findall(r"^\S*warptape (\w+)", "\n".join(commands(README)), re.M))
    assert "course" in named <= set(listed)
    for command in listed:
        assert "usage" in run("-m", "warptape", command, "--help", folder=tmp_path).lower()


def test_student_each_lesson_leads_to_the_next() -> None:
    lessons = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    index = (ROOT / "notebooks/README.md").read_text()
    assert re.findall(r"^\| \[[^]]*\]\((\S+)\)", index, re.M) == lessons
    for name, following in pairwise(lessons):
        assert following in (ROOT / "notebooks" / name).read_text(), f"{name} does not lead to {following}"


# ---- a researcher --------------------------------------------------------------------------------------

SCRIPT = """
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x @ torch.randn(8, 1)).sigmoid().round().squeeze(1).long()
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
schedule = CosineAnnealingLR(optimizer, T_max=20)
for _ in range(20):
    model.train()
    for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    schedule.step()
model.eval()
torch.save({"model": model.state_dict(), "lr": args.lr}, "checkpoint.pt")
again = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 2)).eval()
again.load_state_dict(torch.load("checkpoint.pt")["model"])
print(torch.__name__, (again(x).argmax(1) == y).float().mean().item())
"""


def test_researcher_a_script_for_pytorch_runs_unedited(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/net.py").write_text("import torch\nlayer = torch.nn.Linear\n")
    lines = [
        command for command in commands(README) if "-m warptape.torch" in command and "train.py" in command
    ]
    assert len(lines) == 2, "README shows how a script runs and how it is checked before"
    out = {line: run(*shlex.split(line)[1:], folder=tmp_path) for line in lines}
    name, accuracy = next(text for line, text in out.items() if "coverage" not in line).split()
    assert name in ("torch", "warptape")
    assert float(accuracy) > 0.95
    assert "missing" in next(text for line, text in out.items() if "coverage" in line)


def test_researcher_the_wheel_named_torch_is_what_the_constraint_names(tmp_path: Path) -> None:
    run("-m", "warptape.torch.wheel", "wheels", folder=tmp_path)
    (wheel,) = (tmp_path / "wheels").glob("torch-*.whl")
    (constraint,) = re.findall(r'echo "torch==(\S+)" > constraints.txt', README)
    assert wheel.name.startswith(f"torch-{constraint}-")


# ---- an engineer ---------------------------------------------------------------------------------------


def test_engineer_the_tests_that_are_named_are_found(tmp_path: Path) -> None:
    """Commands of one file or one row run as they stand; of the others pytest's arguments are looked at."""
    text = commands(CONTRIBUTING) + re.findall(r"`(python -m pytest [^`]+)`", CONTRIBUTING)
    lines = {line for line in text if line.startswith("python -m pytest tests")}
    assert len(lines) >= 4
    for line in sorted(lines):
        arguments = shlex.split(line)[3:]
        assert (ROOT / arguments[0]).exists(), line
        if "-k" in arguments or arguments[0].endswith(".py"):
            out = run("-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider", folder=ROOT)
            assert re.search(r"[1-9]\d* passed", out), line


def test_engineer_the_options_of_the_build_are_cmakes() -> None:
    source = "\n".join(
        path.read_text() for path in [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")]
    )
    options = re.findall(r"^\| `(WARPTAPE_\w+)` \|", CONTRIBUTING, re.M)
    assert len(options) >= 5
    assert [name for name in options if name not in source] == []
