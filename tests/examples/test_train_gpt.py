"""examples/train_gpt.py as a user runs it: a process, its lines, its files, its exit codes."""

import argparse
import fcntl
import importlib
import itertools
import math
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
import warptape as wt

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
TINY = ["--layers", "2", "--heads", "2", "--width", "32", "--block", "32", "--batch", "4", "--lr", "0.01"]
STEP = re.compile(r"step (\d+) loss (\d+\.\d{4}) tokens/s \d+ peak \d+\.\d%")


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A real text that is short."""
    path = tmp_path_factory.mktemp("text") / "text.py"
    path.write_bytes(Path(argparse.__file__).read_bytes()[:30000])
    return path


def command(*arguments):
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=240, check=False)


def losses(output):
    """The lines of steps and validations, without what depends on the clock."""
    steps = [match.groups() for match in map(STEP.fullmatch, output.splitlines()) if match]
    return steps, re.findall(r"^val loss (\d+\.\d{4})$", output, flags=re.M)


def assert_same_state(one, other):
    """Two checkpoints hold the same values, bit for bit."""
    if isinstance(one, wt.Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert bool((one == other).all())
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_state(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other):
            assert_same_state(left, right)
    else:
        assert one == other


def test_lines_and_files(text, tmp_path):
    done = run(*TINY, "--data", text, "--steps", 45, "--eval-every", 20, "--out", tmp_path / "new" / "out")
    assert done.returncode == 0, done.stderr
    steps, validations = losses(done.stdout)
    assert [int(step) for step, _ in steps] == [10, 20, 30, 40, 45]
    assert len(validations) == 3  # after steps 20, 40 and the last
    assert 2.0 < float(validations[-1]) < float(validations[0]) < 5.6  # ln 256 is 5.55
    bits, xz = re.findall(r"^val bits/byte (\d+\.\d+) \(xz (\d+\.\d+)\)$", done.stdout, flags=re.M)[-1]
    assert float(bits) == pytest.approx(float(validations[-1]) / 0.6931, abs=2e-3)
    assert 1.0 < float(xz) < 4.0
    assert re.findall(r"--- sample after (\d+) steps", done.stdout) == ["2", "11", "45"]
    assert "what next:" in done.stdout
    files = {file.name for file in (tmp_path / "new" / "out").iterdir()}
    assert files - {"loss.png"} == {
        "checkpoint.pt"
    }  # nothing half-written, and the text is mapped where it lies
    if "loss.png" in files:
        assert (tmp_path / "new" / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "pip install matplotlib" in done.stdout


def test_resumes_to_the_same_bits_after_kill(text, tmp_path):
    arguments = [*TINY, "--data", text, "--steps", 60, "--eval-every", 6]
    whole = run(*arguments, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr

    cut = command(*arguments, "--out", tmp_path / "cut")
    with subprocess.Popen(cut, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step 20 "):
                break
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = wt.load(tmp_path / "cut" / "checkpoint.pt")
    assert 18 <= before["step"] < 60

    # Its settings come from the checkpoint.
    resumed = run("--resume", "--out", tmp_path / "cut")
    assert resumed.returncode == 0, resumed.stderr
    after = [wt.load(tmp_path / name / "checkpoint.pt") for name in ("whole", "cut")]
    assert after[0]["step"] == 60
    assert_same_state(*after)
    steps, validations = losses(whole.stdout)
    assert validations[0] != validations[-1]
    rest, rest_validations = losses(resumed.stdout)
    assert rest == steps[-len(rest) :]
    assert rest_validations == validations[-len(rest_validations) :]
    last = "--- sample after 60 steps"
    assert whole.stdout.split(last)[1].split("\n---")[0] == resumed.stdout.split(last)[1].split("\n---")[0]


def test_more_steps_stay_on_the_curve(text, tmp_path):
    arguments = [*TINY, "--data", text, "--eval-every", 15]
    whole = run(*arguments, "--steps", 60, "--out", tmp_path / "whole")
    first = run(*arguments, "--steps", 30, "--out", tmp_path / "parts")
    second = run("--steps", 60, "--out", tmp_path / "parts", "--resume", tmp_path / "parts" / "checkpoint.pt")
    assert second.returncode == 0, second.stderr
    assert losses(first.stdout + second.stdout) == losses(whole.stdout)
    states = [wt.load(tmp_path / name / "checkpoint.pt") for name in ("whole", "parts")]
    assert_same_state(*states)


def test_bfloat16_follows_float32(text, tmp_path):
    results = {}
    for dtype in ("float32", "bfloat16"):
        done = run(*TINY, "--data", text, "--steps", 40, "--dtype", dtype, "--out", tmp_path / dtype)
        assert done.returncode == 0, done.stderr
        results[dtype] = float(losses(done.stdout)[1][-1])
    assert results["bfloat16"] != results["float32"]
    assert results["bfloat16"] == pytest.approx(results["float32"], abs=0.05)


def test_folder_is_joined_in_order_without_hidden_and_binary_files(text, tmp_path):
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "b" / "one.txt").write_bytes(text.read_bytes())
    (folder / "a.txt").write_bytes(b"first\n")
    (folder / "c.bin").write_bytes(b"\0\1\2")
    (folder / ".hidden" / "d.txt").write_bytes(b"hidden")
    done = run(*TINY, "--data", folder, "--steps", 1, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "text.bin").read_bytes() == b"first\n" + text.read_bytes()


@pytest.fixture
def gpt_text(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("gpt_text")


def derivations(text, symbol):
    """All texts of a symbol with their probabilities."""
    found = []
    for alternative in text.GRAMMAR[symbol]:
        ways = [("", 1.0 / len(text.GRAMMAR[symbol]))]
        for piece in text.pieces(alternative):
            more = derivations(text, piece[1:-1]) if piece.startswith("<") else [(piece, 1.0)]
            ways = [(a + b, p * q) for a, p in ways for b, q in more]
        found += ways
    return found


def test_the_grammars_entropy_is_that_of_its_sentences(gpt_text):
    """All 59,360 of them are written out: no two are equal, so a sentence tells all its choices."""
    found = derivations(gpt_text, "sentence")
    assert len({sentence for sentence, _ in found}) == len(found) > 50_000
    assert sum(p for _, p in found) == pytest.approx(1)
    length = sum(p * len(sentence) for sentence, p in found)
    information = -sum(p * math.log(p) for _, p in found)
    assert sum(gpt_text.visits().values()) == pytest.approx(length)
    assert gpt_text.entropy() == pytest.approx(information / length)
    text = gpt_text.sentences(0, 20_000).decode()
    assert set(text.splitlines(keepends=True)) <= {sentence for sentence, _ in found}


def test_the_floor_is_what_all_places_of_all_sentences_give(gpt_text, monkeypatch):
    """Of a grammar small enough to write down each text that a window may see."""
    grammar = {"sentence": ["a<x>.", "ab."], "x": ["c", "ac"]}
    monkeypatch.setattr(gpt_text, "GRAMMAR", grammar)
    for cached in (gpt_text.following, gpt_text.visits, gpt_text.believed):
        cached.cache_clear()
    sentences = dict(derivations(gpt_text, "sentence"))
    assert sentences == {"ac.": 0.25, "aac.": 0.25, "ab.": 0.5}

    def probability(window):
        """Over all starts in all sequences of sentences that cover the window, weighted by their chance."""
        total = 0.0
        for count in range(1, len(window) + 2):
            for chosen in itertools.product(sentences.items(), repeat=count):
                text, p = "".join(s for s, _ in chosen), math.prod(q for _, q in chosen)
                for start in range(len(chosen[0][0])):
                    end = start + len(window)
                    if len(text) - len(chosen[-1][0]) < end <= len(text) and text[start:end] == window:
                        total += p
        return total / sum(p * len(s) for s, p in sentences.items())

    text = np.frombuffer(b"c.ab.aac.ac.a", dtype=np.uint8)
    expected = 0.0
    for row in range(4):
        window = text[3 * row : 3 * row + 4].tobytes().decode()
        expected -= math.log(probability(window) / probability(window[:1]))
    assert gpt_text.floor(text, 3) == pytest.approx(expected / 12)
    for cached in (gpt_text.following, gpt_text.visits, gpt_text.believed):
        cached.cache_clear()


def test_the_default_text_has_a_floor_that_the_loss_approaches(tmp_path):
    shape = [*TINY, "--block", 64, "--batch", 16]
    done = run(*shape, "--steps", 120, "--eval-every", 60, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (first, floor), (last, _) = re.findall(r"val bits/byte (\d+\.\d+) \(floor (\d+\.\d+)\)", done.stdout)
    assert 0.35 < float(floor) < 0.45
    assert float(floor) < float(last) < 0.7 * float(first)
    assert (tmp_path / "text.bin").stat().st_size >= 1_500_000


def test_the_standard_library_is_a_text(gpt_text):
    files = gpt_text.standard_library()
    names = [file.name for file in files]
    assert "argparse.py" in names
    assert names.index("argparse.py") < names.index("zipfile.py" if "zipfile.py" in names else "zipimport.py")
    assert not [f for f in files if {"test", "tests", "site-packages"} & set(f.parts[-3:])]
    assert sum(file.stat().st_size for file in files) > 5_000_000


def test_terminal_gets_a_progress_bar(text, tmp_path):
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    arguments = command(*TINY, "--data", text, "--steps", 20, "--out", tmp_path)
    with subprocess.Popen(arguments, stdout=child, stderr=child) as process:
        os.close(child)
        output = b""
        while True:
            try:
                chunk = os.read(parent, 65536)
            except OSError:  # Linux reports a closed terminal so
                break
            if not chunk:
                break
            output += chunk
    os.close(parent)
    assert process.returncode == 0, output.decode()
    assert b"20/20" in output
    assert b"loss=" in output
    assert b"tokens_s=" in output
    assert b"\nstep 10 loss" not in output


BAD_INPUT = {
    "missing file": (["--data", "{tmp}/none.txt"], "no such file"),
    "empty text": (["--data", "{tmp}/empty.txt"], "empty"),
    "folder without text": (["--data", "{tmp}/folder"], "empty"),
    "text shorter than a block": (["--data", "{tmp}/short.txt", "--block", "64"], "--block 64"),
    "heads do not divide": (["--width", "32", "--heads", "5"], "--heads 5"),
    "no steps": (["--steps", "0"], "--steps 0"),
    "experts below none": (["--experts", "-1"], "--experts -1"),
    "not a number": (["--steps", "many"], "many"),
    "rate that is no number": (["--lr", "nan"], "--lr nan"),
    "negative seed": (["--seed", "-1"], "--seed -1"),
    "unknown dtype": (["--dtype", "float8"], "float8"),
    "unknown device": (["--device", "abacus"], "--device abacus"),
    "unknown flag": (["--depth", "3"], "--depth"),
    "no checkpoint": (["--resume", "{tmp}/none.pt"], "no such file"),
    "not a checkpoint": (["--resume", "{tmp}/short.txt"], "checkpoint"),
    "out is a file": (["--out", "{tmp}/short.txt"], "short.txt"),
}


def assert_one_line_and_code_2(done, words):
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("train_gpt.py: ")
    assert words in done.stderr


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_line_and_exit_code_2(case, text, tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "short.txt").write_bytes(b"a text of few words")
    (tmp_path / "folder").mkdir()
    arguments, words = BAD_INPUT[case]
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    defaults = ["--data", text, "--out", tmp_path / "out"]
    assert_one_line_and_code_2(run(*defaults, *given), words)
    assert not (tmp_path / "out" / "checkpoint.pt").exists()


def test_checkpoint_of_another_shape_is_refused(text, tmp_path):
    arguments = [*TINY, "--data", text, "--steps", 2, "--out", tmp_path]
    assert run(*arguments).returncode == 0
    before = (tmp_path / "checkpoint.pt").read_bytes()
    for flag, value in (("--width", 64), ("--layers", 3), ("--block", 16), ("--heads", 4)):
        assert_one_line_and_code_2(run(*arguments, "--resume", flag, value), f"{flag} {value}")
    # The settings may agree and the tensors not.
    state = wt.load(tmp_path / "checkpoint.pt")
    state["model"]["norm.weight"] = wt.ones(7)
    wt.save(state, tmp_path / "other.pt")
    assert_one_line_and_code_2(run(*arguments, "--resume", tmp_path / "other.pt"), "norm.weight")
    cut = before[: len(before) // 2]
    (tmp_path / "cut.pt").write_bytes(cut)
    assert_one_line_and_code_2(run(*arguments, "--resume", tmp_path / "cut.pt"), "cut.pt")
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
