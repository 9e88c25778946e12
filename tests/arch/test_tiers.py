"""The tiers name files and tests that are there, and the quick one touches every folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import TESTS, listed, read

QUICK, SLOW = read("quick", 1), read("slow", 0)


def folders_without(tests: Path, steps: dict[str, int]) -> list[str]:
    """Folders with tests of which none is listed."""
    folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}
    return sorted(folders - {Path(name).parent.as_posix() for name in steps})


def missing(steps: dict[str, int]) -> list[str]:
    """Listed names without a file, or without such a function in it."""
    gone = []
    for name in steps:
        file, _, function = name.partition("::")
        path = TESTS / file
        if not path.is_file() or (function and f"def {function}(" not in path.read_text()):
            gone.append(name)
    return gone


def test_every_folder_has_a_quick_file() -> None:
    assert folders_without(TESTS, QUICK) == []


@pytest.mark.parametrize("steps", [QUICK, SLOW], ids=["quick", "slow"])
def test_what_is_listed_is_there(steps: dict[str, int]) -> None:
    assert missing(steps) == []


def test_what_is_not_there_is_named() -> None:
    assert missing(
        {"arch/test_tiers.py::test_other": 0, "arch/test_gone.py": 1, "arch/test_tiers.py": 1}
    ) == [
        "arch/test_tiers.py::test_other",
        "arch/test_gone.py",
    ]


def test_a_folder_that_is_left_out_is_named() -> None:
    without = {name: step for name, step in QUICK.items() if not name.startswith("chain/")}
    assert folders_without(TESTS, without) == ["chain"]


@pytest.mark.parametrize("text", ["a.py 2 3", "a.py\na.py", "a.py two"])
def test_a_wrong_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"list of a tier|invalid literal"):
        listed(text, 1)


def test_comments_and_steps() -> None:
    assert listed("# a comment\na.py\nb.py 4  # each fourth\n\n", 1) == {"a.py": 1, "b.py": 4}


CONFTEST = """
from tiers import Tiers

def pytest_configure(config):
    for name in ("quick", "slow"):
        config.addinivalue_line("markers", name)
    config.pluginmanager.register(Tiers(config))
"""
FILE = """
import pytest

@pytest.mark.parametrize("k", range(4))
def test_one(k): pass

def test_two(): pass
"""


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["."], ["test_one[0]", "test_one[3]"]),
        (["test_file.py"], ["test_one[0]", "test_one[1]", "test_one[2]", "test_one[3]", "test_two"]),
        ([".", "-m", "slow"], ["test_one[1]", "test_one[2]", "test_two"]),
        ([".", "-k", "one"], ["test_one[0]", "test_one[1]", "test_one[2]", "test_one[3]"]),
        ([".", "-m", "quick"], ["test_one[0]", "test_two"]),
    ],
)
def test_what_a_run_leaves_out(tmp_path: Path, arguments: list[str], names: list[str]) -> None:
    (tmp_path / "test_file.py").write_text(FILE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "quick_tier.txt").write_text("test_file.py 4\n")
    (tmp_path / "slow_tier.txt").write_text("test_file.py 3\ntest_file.py::test_two\n")
    (tmp_path / "tiers.py").write_text((TESTS / "tiers.py").read_text())
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        f"--rootdir={tmp_path}",
        "--collect-only",
        "-q",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line] == names, (
        done.stdout
    )
