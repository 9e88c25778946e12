"""`warptape` and `python -m warptape`, as a user types them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import warptape
from warptape.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warptape", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, check=False)


def test_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    for name, (_, what) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(what)}$", said, re.M)
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_runs_is_there(name: str) -> None:
    what = COMMANDS[name][0].partition(" ")[0]
    if "/" in what:
        assert (ROOT / what).is_file()
    else:
        assert find_spec(what) is not None


def test_the_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"warptape {warptape.__version__}\n")


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["genrate"]) == 2
    assert capsys.readouterr().err == "warptape: there is no command 'genrate'; did you mean generate?\n"
    assert main(["zzz"]) == 2
    assert "warptape alone lists them" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["coverage", "diagnose", "doctor", "plan", "serve", "generate", "run", "pack"]
)
def test_help_names_the_command_as_it_was_typed(name: str) -> None:
    assert re.match(rf"usage: warptape[ -]{name} ", run(name, "--help").stdout)


def test_arguments_and_the_exit_status_are_the_commands(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys, torch\nprint(torch.ones(2).sum().item(), sys.argv[1:])\nsys.exit(7)\n"
    )
    done = run("torch", "program.py", "--lr", "1", folder=tmp_path)
    assert (done.returncode, done.stdout) == (7, "2.0 ['--lr', '1']\n"), done.stderr
    plan = run("plan", "--model", "gpt3-175b", "--gpus", "8", "--gpu", "h100")
    assert plan.returncode == 2 and "fits in no layout" in plan.stderr


def test_a_model_that_is_not_there_says_what_would_be_needed(tmp_path: Path) -> None:
    done = run("generate", "gpt2", "hi", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and "Errno" not in done.stderr
    for word in (
        "gpt2: no such folder",
        "config.json",
        "tokenizer.json",
        "Nothing is downloaded",
        "hf download",
    ):
        assert word in done.stderr
    (tmp_path / "empty").mkdir()
    done = run("pack", "empty", "out", folder=tmp_path)
    assert done.returncode == 1 and "empty has no config.json" in done.stderr


def test_what_lies_in_the_source_tree_is_found_or_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("warptape.__main__.__file__", str(tmp_path / "a" / "b" / "warptape" / "__main__.py"))
    monkeypatch.chdir(tmp_path)
    assert main(["train"]) == 2
    assert "examples/train_gpt.py lies in warptape's source tree" in capsys.readouterr().err
    for command, program in (("train", "train_gpt.py"), ("course", "01_quickstart.ipynb")):
        assert main([command, "--help"]) == 0
        help_text = capsys.readouterr().out
        assert help_text.startswith(f"usage: warptape {command}") and program in help_text
    monkeypatch.chdir(ROOT)
    assert main(["course", "--help"]) == 0
    assert "notebooks/README.md" in capsys.readouterr().out


def test_the_course_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["course"]) == 2
    assert "pip install 'warptape[course]'" in capsys.readouterr().err
