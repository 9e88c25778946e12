"""The models of examples/ as a user runs them: in one process and on two ranks, each to a figure that a
broken program misses."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launched import LAUNCHER, environ
from time_limits import seconds

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUMBER = r"(-?\d+\.\d+)"

LOSSES = f"code {NUMBER}, prose {NUMBER}"


def lora_is_good(*figures):
    *losses, difference = figures
    base, adapted, removed, merged = zip(losses[::2], losses[1::2])
    return removed == base and merged == adapted and difference < 1e-3 and base[1] - adapted[1] > 0.2


# Arguments, the line with the figures, and whether they are good enough.
CASES = {
    "resnet": (["--epochs", "6"], f"test accuracy {NUMBER}", lambda right: right > 0.85),
    "lstm_language_model": (
        ["--steps", "120"],
        f"validation loss {NUMBER}, unigram {NUMBER}",
        lambda loss, unigram: 1.5 < loss < unigram - 0.6 and 2.5 < unigram < 4.0,
    ),
    "vae": (
        ["--epochs", "15"],
        f"test elbo {NUMBER}, baseline {NUMBER}",
        # -91 without the latents' noise or their divergence
        lambda bound, baseline: -140 < bound < -105 and -260 < baseline < -245,
    ),
    "vision_transformer": (
        ["--epochs", "15"],
        f"test accuracy {NUMBER}",
        lambda right: right > 0.8,  # 0.33 without positions
    ),
    "graph_network": (
        ["--steps", "60"],
        f"accuracy MLP {NUMBER}, GCN {NUMBER}, GAT {NUMBER}",
        lambda mlp, gcn, gat: 0.5 < mlp < gcn - 0.05 and gcn > 0.8 and gat > 0.8,
    ),
    "diffusion": (
        ["--epochs", "40"],
        rf"DDPM, 200 steps: {NUMBER}, spread {NUMBER}\nDDIM, 20 steps: {NUMBER}, spread {NUMBER}",
        lambda ddpm, wide, ddim, wider: ddpm > 0.7 and ddim > 0.5 and 0.5 < wide < 1.1 and 0.5 < wider < 1.4,
    ),
    "mixture_of_experts": (
        ["--steps", "80"],
        f"an expert had {NUMBER} to {NUMBER} times its part of the bytes\n"
        f"validation loss {NUMBER} with experts, {NUMBER} without",
        # 0.02 to 3.4 without the balancing loss
        lambda least, most, experts, dense: least > 0.3 and most < 2 and 1.6 < experts < dense + 0.05 < 2.7,
    ),
    "lora": (
        ["--steps", "80"],
        rf"base: {LOSSES}\n(?:.*\n)*adapted: {LOSSES}\nremoved: {LOSSES}\nmerged: {LOSSES}\n"
        f"merged, it gives logits that differ by {NUMBER} at most",
        lora_is_good,
    ),
    "ppo": (
        ["--updates", "25"],
        rf"mean return {NUMBER} of 500, {NUMBER} before training",
        lambda after, before: after > 300 and before < 250,
    ),
}
PICTURES = ("vae", "diffusion")


def run(*command):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds(240), check=False, env=environ()
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_reaches_its_figure(name, ranks, tmp_path):
    pytest.importorskip("sklearn")
    arguments, line, good = CASES[name]
    if name in PICTURES:
        arguments = [*arguments, "--out", str(tmp_path)]
    launcher = [*LAUNCHER, "--nproc-per-node", "2"] if ranks == 2 else [sys.executable]
    done = run(*launcher, str(EXAMPLES / f"{name}.py"), *arguments)
    assert done.returncode == 0, done.stderr
    found = re.findall(f"^{line}$", done.stdout, re.MULTILINE)
    assert len(found) == 1, done.stdout  # of the first rank alone
    figures = [float(each) for each in ([found[0]] if isinstance(found[0], str) else found[0])]
    assert good(*figures), done.stdout
    assert ("2 processes, whose weights are equal" in done.stdout) == (ranks == 2)
    if name in PICTURES and "pip install matplotlib" not in done.stdout:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *((name, ["--wrong"]) for name in CASES),
        ("resnet", ["--seed", "x"]),
        ("resnet", ["--seed", "-1"]),
        ("resnet", ["--seed", "4294967296"]),
        ("resnet", ["--epochs", "0"]),
        ("resnet", ["--epochs", "-1"]),
        ("resnet", ["--batch", "1439"]),
        ("vae", ["--batch", "1439"]),
        ("lstm_language_model", ["--batch", "100000"]),
        ("vae", ["--out", __file__]),
    ],
)
def test_wrong_arguments_get_one_line(name, arguments):
    pytest.importorskip("sklearn")
    done = run(sys.executable, str(EXAMPLES / f"{name}.py"), *arguments)
    assert done.returncode == 2
    assert re.fullmatch(rf"{name}\.py: .*{arguments[0]}.*\n", done.stderr)


@pytest.mark.parametrize(
    ("name", "ranks", "batch", "message"),
    [
        ("resnet", 2, 33, "--batch 33: does not divide among 2 processes"),
        ("mixture_of_experts", 3, 18, "8 experts do not divide among 3 processes"),
    ],
)
def test_what_the_processes_cannot_share_gets_one_line(name, ranks, batch, message):
    script = str(EXAMPLES / f"{name}.py")
    done = run(*LAUNCHER, "--nproc-per-node", str(ranks), script, "--batch", str(batch))
    assert done.returncode != 0
    assert done.stderr.count(f"{name}.py: {message}\n") == 1
    assert "Traceback" not in done.stderr


def test_a_missing_package_is_named(tmp_path):
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ModuleNotFoundError('not here', name='sklearn')")
    more = environ()
    more["PYTHONPATH"] = f"{tmp_path}:{more['PYTHONPATH']}"
    command = [sys.executable, str(EXAMPLES / "resnet.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(60), check=False, env=more)
    assert done.returncode == 2
    assert done.stderr == "resnet.py: needs scikit-learn: pip install scikit-learn\n"
