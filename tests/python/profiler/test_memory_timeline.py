"""MemoryTimeline: against the allocator's own peak, and against what a step is known to hold."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import _C, nn
from warptape.profiler._memory import CATEGORIES, MemoryTimeline
from warptape.utils.checkpoint import checkpoint

KIB = 1024
N = 256  # of all sizes: powers of two, for which the allocator takes what is asked for


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(N, N, bias=False), nn.Linear(N, N, bias=False)
        self.register_buffer("table", torch.ones(N, N))

    def forward(self, x):
        return self.second(self.hidden(x) * self.table)

    def hidden(self, x):
        return self.first(x).relu()


SQUARE = 4 * N * N


def test_peak_is_the_allocators():
    gc.collect()  # what earlier tests left must not go meanwhile
    model, x = Net(), torch.ones(N, N)
    optimizer = torch.optim.Adam(model.parameters())
    with MemoryTimeline(model, optimizer) as timeline:
        _C._reset_peak_memory()
        start = _C._memory_stats()["allocated_bytes"]
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        end = _C._memory_stats()
    before = 4 * SQUARE  # two parameters, the table, the input
    seconds, series = timeline.series()
    held = [sum(values) for values in zip(*series.values(), strict=True)]
    assert held[0] == before and max(held) == timeline.peak_bytes and seconds == sorted(seconds)
    assert timeline.peak_bytes - before == pytest.approx(end["peak_allocated_bytes"] - start, abs=2048)
    assert held[-1] - before == pytest.approx(end["allocated_bytes"] - start, abs=2048)
    at_peak = timeline.at_peak_by_category()
    assert list(at_peak) == list(CATEGORIES) and sum(at_peak.values()) == timeline.peak_bytes
    assert at_peak["parameters"] == 2 * SQUARE
    assert series["optimizer state"][-1] == pytest.approx(4 * SQUARE, abs=2048)  # and the steps' counts
    assert series["gradients"][-1] == 0 and max(series["gradients"]) == 2 * SQUARE
    assert series["activations"][-1] == 0


def names(blocks):
    return {b.name for b in blocks if b.name}


def test_categories_and_what_is_told_of_a_tensor():
    model = Net()
    model(torch.ones(N, N)).sum().backward()
    with MemoryTimeline(model) as timeline:
        model.zero_grad()
        hidden = model.hidden(torch.ones(N, N))
        y = (hidden * model.table).exp()
        y.sum().backward()
    found = {c: [b for b in timeline.blocks if b.category == c and b.bytes == SQUARE] for c in CATEGORIES}
    assert names(found["parameters"]) == {"first.weight", "second.weight"}
    assert all(b.born == 0 and b.died is None for b in found["parameters"])
    # Two gradients of before, which are freed, and one that the step made.
    assert sorted(b.name for b in found["gradients"]) == ["first.weight", "first.weight", "second.weight"]
    assert [b.op for b in found["gradients"] if b.died is None] == ["LinearBackward0"]
    activations = {b.op: b for b in found["activations"]}
    assert set(activations) == {"linear", "relu", "mul", "exp"}
    line = test_categories_and_what_is_told_of_a_tensor.__code__.co_firstlineno
    assert activations["exp"].site == (
        f"test_memory_timeline.py:{line + 6} in test_categories_and_what_is_told_of_a_tensor"
    )
    assert activations["relu"].site.endswith("in hidden")
    assert activations["exp"].shape == (N, N) and activations["exp"].dtype == torch.float32
    # Nobody holds the first on, the next is `hidden`, the last `y`.
    assert activations["linear"].died is not None and activations["mul"].died is not None
    assert activations["relu"].died is None and activations["exp"].died is None
    other = {b.op: b.name for b in found["other"]}
    assert other["ones"] == "" and "table" in other.values()
    assert str(activations["exp"]).startswith("256 KiB activations float32[256, 256] by exp at test_memory")
    del hidden, y


def peak_of_activations(forward):
    model = Net()
    x = torch.ones(N, N, requires_grad=True)
    with MemoryTimeline(model) as timeline:
        y = forward(model, x)
        if y.requires_grad:
            y.backward()
    return max(timeline.series()[1]["activations"]) / SQUARE


def test_checkpoints_hold_less_and_no_grad_nothing():
    def layers(model, x):
        for _ in range(4):
            x = model.hidden(x)
        return x

    def without(model, x):
        with torch.no_grad():
            return layers(model, x).sum()

    full = peak_of_activations(lambda model, x: layers(model, x).sum())
    halves = peak_of_activations(
        lambda model, x: checkpoint(
            layers, model, checkpoint(layers, model, x, use_reentrant=False), use_reentrant=False
        ).sum()
    )
    twice = peak_of_activations(lambda model, x: layers(model, layers(model, x)).sum())
    assert full == pytest.approx(5, abs=0.01)  # of relu four; each linear's is freed, but while relu reads it
    assert twice == pytest.approx(9, abs=0.01)
    assert halves <= full + 1.01  # the border, and one half at a time
    assert peak_of_activations(without) == 0


def test_what_an_op_needs_for_itself_is_other():
    x = torch.ones(N, N, requires_grad=True)
    with MemoryTimeline() as timeline:
        a = x * 2
        del a
        b = F.gelu(x @ x)
    by_op = {(b.op, b.category) for b in timeline.blocks if b.bytes == SQUARE}
    by_op.discard(("matmul", "other"))  # an operand that is packed
    assert by_op == {
        ("", "parameters"),
        ("mul", "activations"),
        ("matmul", "activations"),
        ("gelu", "activations"),
    }
    assert sum(block.category == "activations" for block in timeline.blocks) == 3
    assert next(block for block in timeline.blocks if block.op == "mul").died is not None
    assert b.requires_grad
    with MemoryTimeline() as timeline:
        torch.linalg.solve(torch.eye(N), torch.ones(N, 4))
    assert {block.category for block in timeline.blocks} == {"other"}


def test_nothing_is_left_behind():
    model = Net()

    def step():
        with MemoryTimeline(model):
            model(torch.ones(N, N)).sum().backward()
            raise KeyError("planted")

    with pytest.raises(KeyError):
        step()
    assert _C._memory_trace_length() == 0 and _C._torch_function_modes() == []
    assert all(not _C._post_accumulate_dict(p) for p in model.parameters())
    torch.ones(N, N)
    assert _C._memory_trace_length() == 0
    with MemoryTimeline(model) as outer:
        torch.ones(N, N)
        with pytest.raises(RuntimeError, match="another timeline is recording"), MemoryTimeline():
            pass
        torch.ones(N, N)
        with pytest.raises(ValueError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        torch.zeros(N, N)
    assert [b.op for b in outer.blocks if b.bytes == SQUARE and b.op] == ["ones", "ones", "zeros"]
    with outer:  # anew
        torch.zeros(N, N)
    assert [b.op for b in outer.blocks if b.bytes == SQUARE and b.op] == ["zeros"]


def test_resized_and_foreign_memory():
    held = torch.ones(N, N)
    with MemoryTimeline() as timeline:
        torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()
        t = torch.empty(0)
        t.untyped_storage().resize_(SQUARE)
        (torch.from_numpy(np.ones((N, N), "float32")) + 1).sum()
        del held  # was there, though no op of the block has read it
    sizes = sorted((b.bytes, b.op, b.died is None) for b in timeline.blocks if b.bytes == SQUARE)
    assert sizes == [(SQUARE, "", False), (SQUARE, "", True), (SQUARE, "", True), (SQUARE, "add", False)]
    assert t.untyped_storage().nbytes() == SQUARE


def test_report():
    model = Net()
    with MemoryTimeline(model) as timeline:
        model(torch.ones(N, N)).sum().backward()
    lines = timeline.report(top=3).splitlines()
    assert lines[0].startswith("peak on cpu: ") and "parameters 512 KiB" in lines[0]
    assert len(lines) == 5 and lines[4].startswith("  and ")
    assert all(line.startswith("  256 KiB ") for line in lines[1:4])
    empty = MemoryTimeline()
    with empty:
        pass
    assert empty.peak_bytes == 0 and "0 bytes" in str(empty) and empty.at_peak() == []


def test_pictures(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    with MemoryTimeline() as timeline:
        x = torch.ones(N, N, requires_grad=True)
        (x * 2).sum().backward()
    axes = timeline.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes()[1:4] == b"PNG"
    assert axes.get_legend_handles_labels()[1][:5] == list(CATEGORIES)
    top = max(path.vertices[:, 1].max() for c in axes.collections for path in c.get_paths())
    assert top == pytest.approx(timeline.peak_bytes / 2**20)
    bars = timeline.plot_peak(tmp_path / "peak.svg", top=2)
    assert [bar.get_width() for bar in bars.patches] == [b.bytes / 2**20 for b in timeline.at_peak()[:2]]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install warptape\[plot\]"):
        timeline.plot(tmp_path / "none.png")
