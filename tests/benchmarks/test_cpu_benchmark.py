"""The benchmark's arithmetic on times that are known, and one real row where PyTorch is installed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def cpu(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import cpu

    return cpu


def measured(cpu, name, ours, peers, **more):
    return cpu.Measured(name, {"warptape": list(ours), "torch": list(peers)}, **more)


def test_ratio_is_of_medians_and_bound_lies_above(cpu):
    random = np.random.default_rng(1)
    ours, peers = 2.0 + 0.2 * random.random(31), 4.0 + 0.4 * random.random(31)
    ours[3] = 1000.0  # one disturbed round must not matter
    ratio, bound = cpu.ratio_and_bound([measured(cpu, "a", ours, peers)])
    assert ratio == pytest.approx(np.median(ours) / np.median(peers))
    assert ratio < bound < 1.1 * ratio
    steady = measured(cpu, "b", [1.0] * 31, [8.0] * 31)
    assert cpu.ratio_and_bound([steady]) == pytest.approx((0.125, 0.125))
    # Of several rows the geometric mean.
    double = measured(cpu, "c", [2.0] * 31, [1.0] * 31)
    assert cpu.ratio_and_bound([steady, double])[0] == pytest.approx(0.5)


def test_target_is_met_by_the_bound_not_the_ratio(cpu):
    group = cpu.Group("g", "some work", 0.5)
    noisy = measured(cpu, "g", [0.4, 0.4, 0.4, 0.9, 0.9], [1.0] * 5)
    line = cpu.summary(group, [noisy])
    assert line["ratio"] == pytest.approx(0.4)
    assert line["bound"] > 0.5
    assert not line["met"]
    assert cpu.summary(group, [measured(cpu, "g", [0.4] * 5, [1.0] * 5)])["met"]


def test_failed_row_or_other_loss_misses_the_target(cpu):
    group = cpu.Group("g", "some work", 0.5)
    failed = measured(cpu, "x", [], [], error="warptape: DtypeError: no")
    line = cpu.summary(group, [failed, measured(cpu, "y", [0.1] * 5, [1.0] * 5)])
    assert not line["met"]
    assert "DtypeError" in cpu.markdown([line])
    losses = {"warptape": {"step": 9, "validation_loss": 2.0}, "torch": {"step": 9, "validation_loss": 2.02}}
    line = cpu.summary(group, [measured(cpu, "g", [0.1] * 5, [1.0] * 5, results=losses)])
    assert not line["met"]
    assert "after 9 steps 2.0000" in cpu.markdown([line])


def test_keeps_the_lines_of_other_runs(cpu, tmp_path):
    def line(name, seconds, commit):
        group = next(group for group in cpu.GROUPS if group.name == name)
        machine = {"processor": "p", "cores": 2, "instruction_sets": ["avx2"], "load_average": 0.1}
        versions = {"commit": commit, "python": "3", "warptape": "0", "torch": "2"}
        run = {"date": commit, "machine": machine, "versions": versions}
        return {**cpu.summary(group, [measured(cpu, name, [seconds] * 5, [1.0] * 5)]), "run": run}

    cpu.keep([line("add", 0.25, "one"), line("linear", 0.5, "one")], tmp_path)
    cpu.keep([line("linear", 0.125, "two")], tmp_path)
    kept = {entry["name"]: entry for entry in json.loads((tmp_path / "cpu.json").read_text())}
    assert kept["add"]["ratio"] == pytest.approx(0.25)
    assert kept["linear"]["ratio"] == pytest.approx(0.125)
    table = (tmp_path / "cpu.md").read_text()
    assert "commit one: add." in table
    assert "commit two: linear." in table


def test_share_of_the_limit_that_is_nearer(cpu, monkeypatch):
    import _roofline

    monkeypatch.setattr(_roofline, "peak_flops", lambda threads, dtype: 1e11 * threads)
    monkeypatch.setattr(_roofline, "peak_bytes", lambda threads: 1e10)
    assert _roofline.share(1.0, 1e11, 0, 2) == pytest.approx(0.5)
    assert _roofline.share(1.0, 1e11, 8e9, 2) == pytest.approx(0.8)
    assert _roofline.share(0.5, 0, 2e9, 1) == pytest.approx(0.4)
    assert _roofline.share(1.0, 0, 0, 1) is None
    group = cpu.Group("g", "some work", 0.5)
    rows = [measured(cpu, n, [0.1] * 5, [1.0] * 5, share=s) for n, s in (("a", 0.4), ("b", 0.9), ("c", None))]
    line = cpu.summary(group, rows)
    assert line["share"] == pytest.approx(0.6)
    assert "| 60% |" in cpu.markdown([line])
    assert "| 90% |" in cpu.details([line])
    older = cpu.summary(group, rows[2:])
    assert older["share"] is None
    assert "%" not in cpu.markdown([older])


def test_flops_are_counted_forward_and_backward(cpu):
    import _roofline
    import warptape

    a, b = (warptape.ones(8, 8, requires_grad=True) for _ in range(2))
    assert _roofline.count_flops(warptape, lambda: (a @ b).sum().backward()) == 3 * 2 * 8**3
    assert _roofline.count_flops(warptape, lambda: a + b) == 0


def test_peers_are_compared_each_with_warptape(cpu):
    import peers

    seconds = {"warptape": [0.02] * 5, "torch": [0.04] * 5, "openvino": [0.016] * 5}
    results = {"warptape": [1.0, 2.0], "torch": [1.0, 2.0], "openvino": [1.0, 2.5]}
    row = cpu.Measured("net", seconds, results=results)
    torch, openvino = peers.lines_of(row, gflop=1.0, peak=1e11)
    assert torch == "| net | PyTorch | 0.50 | 0.50 | 20.00 ms, 40.00 ms | 50% |"
    assert "RESULTS DIFFER by 2.5e-01 | 1.25 |" in openvino
    failed = cpu.Measured("net", seconds, error="openvino: no")
    assert "failed: openvino: no" in peers.lines_of(failed, 1.0, 1e11)[0]
    assert peers.version_in(sys.executable, "no_such_module_here") is None


def test_networks_of_the_peers_say_what_they_multiply(cpu):
    """Their FLOPs are what the counter finds, on the smallest of their kinds."""
    import _peer_rows
    import _roofline
    import warptape

    build = _peer_rows.NETWORKS[0].build.func
    network = _peer_rows.Network(
        "tiny",
        "",
        lambda lib: build(lib, width=16, heads=2, inner=32, layers=2),
        (1, 8, 16),
        _peer_rows.encoder_gflop(8, 8, 16, 32, 2),
    )
    model = _peer_rows.filled(network, warptape)
    x = warptape.from_numpy(network.numbers())
    with warptape.no_grad():
        assert _roofline.count_flops(warptape, lambda: model(x)) == round(network.gflop * 1e9)


def test_every_target_has_rows(cpu):
    groups = {group.name for group in cpu.GROUPS}
    assert {row.group for row in cpu.ROWS} | {"import"} == groups
    assert len({row.name for row in cpu.ROWS}) == len(cpu.ROWS)


@pytest.mark.parity
def test_measures_against_the_installed_torch(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, str(FOLDER / "cpu.py"), "--quick", "--threads", "1", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--rows", "add,mlp_adamw"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads((tmp_path / "cpu.json").read_text())
    assert [line["name"] for line in kept] == ["add", "mlp_adamw"]
    assert all(0.001 < line["ratio"] < 1000 for line in kept)


def test_the_picture_is_that_of_the_committed_table(monkeypatch):
    """A bar a line, as long as the ratio says, and the committed file is that picture."""
    monkeypatch.syspath_prepend(str(FOLDER.parent / "docs/figures"))
    monkeypatch.delitem(sys.modules, "cpu", raising=False)
    import cpu as picture

    lines = json.loads((FOLDER / "results/cpu.json").read_text())
    text = picture.draw(lines)
    widths = [float(bar.split('width="')[1].split('"')[0]) for bar in text.splitlines() if "bar" in bar]
    assert widths == [round(picture.SCALE * line["ratio"], 1) for line in lines]
    assert text == (FOLDER.parent / "docs/figures/cpu.svg").read_text()
    monkeypatch.delitem(sys.modules, "cpu")
