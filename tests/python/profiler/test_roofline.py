"""Rooflines: costs of ops against counts by hand, with a clock that ticks once for each look at it."""

from __future__ import annotations

import itertools
import sys

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape.profiler import _roofline as module
from warptape.profiler._roofline import Roofline, RooflineRow, measured_bandwidth, measured_peak, roofline

PEAK, BANDWIDTH = 1e12, 1e11


def rows(f, clock=None):
    """By op, and all; each op takes one second, for the clock is read before it and after it."""
    seconds = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "timer", clock or (lambda: float(next(seconds))))
        found = roofline(f, peak=PEAK, bandwidth=BANDWIDTH)
    return {row.op: row for row in found.rows}, found


def test_costs_of_a_linear_layer():
    x, w, b = torch.ones(16, 64), torch.ones(32, 64, requires_grad=True), torch.ones(32, requires_grad=True)
    g = torch.ones(16, 32)
    found, all_ = rows(lambda: F.linear(x, w, b).backward(g))
    assert set(found) == {"linear", "linear (backward)"}
    forward, backward = found["linear"], found["linear (backward)"]
    sizes = {"x": 16 * 64, "w": 32 * 64, "b": 32, "y": 16 * 32}
    assert forward.flops == 2 * 16 * 64 * 32 and forward.bytes == 4 * sum(sizes.values())
    assert forward.shapes == "16x64 32x64 32" and forward.calls == 1 and forward.dtype == torch.float32
    # The data wants no gradient, so that the weight was not saved; the bias's is passed on and summed later.
    assert backward.flops == 2 * 16 * 64 * 32
    assert backward.bytes == 4 * (sizes["y"] + sizes["x"] + sizes["w"])
    assert (all_.flops, all_.seconds) == (2 * forward.flops, 2.0)
    assert all_.bytes == forward.bytes + backward.bytes
    found, _ = rows(lambda: F.linear(x, w, b).sum().backward())
    assert found["sum (backward)"].bytes == 0  # the gradient of the sum is expanded: a view of it


def test_what_moves_nothing_is_no_op():
    x = torch.ones(4, 6, requires_grad=True)
    found, _ = rows(lambda: (x.view(6, 4).t()[1:].shape, x.is_contiguous(), x.expand(2, 4, 6).contiguous()))
    assert set(found) == {"contiguous"}
    assert found["contiguous"].bytes == 4 * (24 + 48)  # what was expanded is there once
    y = torch.ones(4, 6)
    found, _ = rows(lambda: (y.add_(1), torch.mul(y, y, out=y), y.exp()))
    assert {op: row.bytes for op, row in found.items()} == {"add": 192, "mul": 192, "exp": 192}
    assert {op: row.flops for op, row in found.items()} == {"add": 24, "mul": 24, "exp": 24}


def test_gradients_of_elementwise_ops():
    x = torch.ones(4, 6, requires_grad=True)
    found, _ = rows(lambda: (x.exp() + 1).backward(torch.ones(4, 6)))
    row = found["exp (backward)"]
    assert (row.flops, row.bytes) == (24, 3 * 96)  # the gradient and the saved result, and what is made
    assert (found["add (backward)"].flops, found["add (backward)"].bytes) == (0, 0)  # passed on


def test_calls_of_one_kind_are_one_row_and_times_are_medians():
    took = [1.0, 1.0, 9.0, 9.0, 2.0, 2.0]  # two calls in each of three runs
    clock = iter([t for start in itertools.accumulate(took, initial=0.0) for t in (start, start)][1:])
    a, b = torch.ones(8, 8), torch.ones(8, 8)
    _, all_ = rows(lambda: (torch.mm(a, b), torch.mm(b, a)), lambda: next(clock))
    assert [(r.op, r.calls, r.seconds, r.flops) for r in all_.rows] == [("mm", 2, 4.0, 2048)]


def test_limits():
    def row(flops, moved, seconds):
        return RooflineRow("op", "", torch.float32, 1, flops, moved, seconds, PEAK, BANDWIDTH)

    left = row(2_000_000, 1_000_000, 2e-5)  # intensity 2; the ridge is at 10
    assert (left.intensity, left.bound, left.limit) == (2, "memory", 2e11)
    assert left.attained == pytest.approx(1e11) and left.share_of_peak == pytest.approx(0.1)
    assert left.share_of_limit == pytest.approx(0.5) == pytest.approx(left.attained / left.limit)
    right = row(20_000_000, 1_000_000, 4e-5)
    assert (right.bound, right.limit, right.share_of_limit) == ("compute", PEAK, pytest.approx(0.5))
    copy = row(0, 1_000_000, 4e-5)
    assert (copy.bound, copy.limit, copy.share_of_limit) == ("memory", 0, pytest.approx(0.25))
    all_ = Roofline([left, right, copy])
    assert all_.share_of_limit == pytest.approx((1e-5 + 2e-5 + 1e-5) / 10e-5)
    assert all_.share_of_peak == pytest.approx(22e-6 / 10e-5)
    lines = all_.table(row_limit=2).splitlines()
    assert lines[1].split() == ["op", "1", "20.0", "2.0", "1.0", "2.00", "100.0", "200.0", "50.0%", "memory"]
    assert lines[3] == "and 1 more"
    assert lines[4].split() == ["all", "3", "100.0", "22.0", "3.0", "7.33", "220.0", "40.0%"]
    assert lines[5] == "cpu: 1000.0 GFLOP/s of float32, 100.0 GB/s; 22.0% of the peak attained"


def test_modules_and_arguments():
    layer = torch.nn.Linear(8, 4)
    found = roofline(layer, torch.ones(2, 8), repeats=1, peak=PEAK, bandwidth=BANDWIDTH)
    assert [row.op for row in found.rows] == ["linear"] and layer.weight.grad is None
    with pytest.raises(ValueError, match="repeats of at least 1, got 0"):
        roofline(layer, torch.ones(2, 8), repeats=0)
    with pytest.raises(ValueError, match="no op was called"):
        roofline(lambda: None)
    with pytest.raises(ValueError, match="meta device"):
        roofline(layer.to("meta"), torch.ones(2, 8, device="meta"))


def test_a_peak_for_each_dtype(monkeypatch):
    peaks = {torch.float32: 1e12, torch.bfloat16: 4e12, torch.float64: 5e11}
    monkeypatch.setattr(module, "measured_peak", lambda dtype, device: peaks[dtype])
    monkeypatch.setattr(module, "measured_bandwidth", lambda device: 1e11)
    a = torch.ones(8, 8)
    found = roofline(lambda: (a @ a, a.bfloat16() @ a.bfloat16(), a.double().exp(), torch.arange(3) + 1))
    by_op = {(row.op, row.dtype): row.peak for row in found.rows}
    assert by_op["matmul", torch.bfloat16] == 4e12 and by_op["matmul", torch.float32] == 1e12
    assert by_op["exp", torch.float64] == 5e11 and by_op["add", None] == 1e12
    assert "1000.0 GFLOP/s of float32" in str(found) and "4000.0 GFLOP/s of bfloat16" in str(found)


def test_pictures(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    a = torch.ones(64, 64)
    found = roofline(lambda: (a @ a, a.exp(), a.clone()), peak=PEAK, bandwidth=BANDWIDTH)
    axes = found.plot(tmp_path / "roof.svg")
    assert (tmp_path / "roof.svg").read_text().startswith("<?xml")
    (roof,) = axes.get_lines()
    x, y = roof.get_data()
    assert list(y[1:]) == [PEAK, PEAK] and x[1] == PEAK / BANDWIDTH and y[0] == x[0] * BANDWIDTH
    dots = {tuple(c.get_offsets()[0]): c.get_label() for c in axes.collections}
    product, exp = (next(r for r in found.rows if r.op == op) for op in ("matmul", "exp"))
    assert dots == {
        (product.intensity, product.attained): "matmul",
        (exp.intensity, exp.attained): "exp",
    }  # and no clone: it has no FLOPs
    assert found.plot(axes) is axes
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install warptape\[plot\]"):
        found.plot(tmp_path / "none.png")


def test_the_machine_is_measured_once():
    assert measured_peak(torch.float32) == measured_peak(torch.float32) > 1e8
    assert measured_bandwidth() == measured_bandwidth() > 1e8
    with pytest.raises(TypeError, match=r"real floating dtype, got torch\.int64"):
        measured_peak(torch.int64)
    a = torch.ones(512, 512)
    found = roofline(lambda: a @ a)
    assert 0 < found.share_of_peak < 3 and found.rows[0].bound == "compute"
