"""export_memory_timeline: the three kinds of files, and that categories agree with MemoryTimeline's."""

from __future__ import annotations

import base64
import builtins
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warptape as torch
from warptape import nn
from warptape.profiler import MemoryTimeline, profile

ALL = {"record_shapes": True, "profile_memory": True, "with_stack": True}
# Columns of the points after the zeros.
PARAMETERS, STATE, INPUTS, TEMPORARY, ACTIVATIONS, GRADIENTS, DETAILS, UNKNOWN = range(1, 9)


def training() -> tuple[Callable[[], None], nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, 64)

    def step() -> None:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step, model, optimizer


def exported(p: profile, path: Path) -> Any:
    p.export_memory_timeline(str(path))
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        return json.load(file)


def test_categories_agree_with_a_timeline_that_watches_every_op(tmp_path: Path) -> None:
    step, model, optimizer = training()
    with MemoryTimeline(model, optimizer) as watched:
        step()
    with profile(**ALL) as p:
        step()
    times, sizes = exported(p, tmp_path / "points.json")
    assert times == sorted(set(times)) and len(times) == len(sizes) > 10 and times[0] == 0
    assert all(len(row) == 9 and row[0] == 0 and min(row) >= 0 for row in sizes)
    most = [max(column) for column in zip(*sizes, strict=True)]
    values = watched.series()[1]
    for column, name in ((PARAMETERS, "parameters"), (STATE, "optimizer state"), (GRADIENTS, "gradients"),
                         (ACTIVATIONS, "activations")):  # fmt: skip
        assert most[column] == max(values[name]) > 0, name
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert [row[PARAMETERS] for row in sizes] == [weights] * len(sizes)
    assert sizes[0][GRADIENTS] == sizes[-1][GRADIENTS] == 0 == sizes[-1][ACTIVATIONS]
    assert most[DETAILS] >= 16 * 128 * 4 and most[INPUTS] == 0  # the gradient of the hidden layer


def test_a_model_that_is_made_and_trained_without_an_optimizer(tmp_path: Path) -> None:
    with profile(**ALL) as p:
        model = nn.Linear(32, 8)
        for _ in range(2):
            model(torch.ones(4, 32)).sum().backward()
        kept = [q.grad for q in model.parameters()]
    _, sizes = exported(p, tmp_path / "points.json")
    weights = 4 * (32 * 8 + 8)
    assert sizes[0][PARAMETERS] == 4 * 32 * 8 and sizes[-1][PARAMETERS] == sizes[-1][GRADIENTS] == weights
    assert len(kept) == 2


def test_what_no_tape_recorded_is_temporary(tmp_path: Path) -> None:
    x = torch.ones(64, requires_grad=True)
    with profile(**ALL) as p:
        with torch.no_grad():
            y = x.exp()
        z = x.exp()
        total = z.detach().sum()
        del y, total
    _, sizes = exported(p, tmp_path / "points.json")
    assert max(row[TEMPORARY] for row in sizes) == 256 + 4 and z.requires_grad
    assert sizes[-1][TEMPORARY] == 0 and sizes[-1][ACTIVATIONS] == 256


def test_a_gradient_that_its_node_copied_and_nobody_kept(tmp_path: Path) -> None:
    w = torch.ones(64, requires_grad=True)
    with profile(**ALL) as p:
        w.sum().backward()
        w.grad = None
    _, sizes = exported(p, tmp_path / "points.json")
    assert max(row[GRADIENTS] for row in sizes) == 256 and sizes[-1][GRADIENTS] == 0


def test_compressed_and_raw(tmp_path: Path) -> None:
    step, _, _ = training()
    with profile(**ALL) as p:
        step()
    times, sizes = exported(p, tmp_path / "points.json")
    assert exported(p, tmp_path / "points.json.gz") == [times, sizes]
    raw = exported(p, tmp_path / "points.raw.json.gz")
    assert [at for at, *_ in raw] == sorted(at for at, *_ in raw)
    assert {action for _, action, _, _ in raw} == {1, 2, 4}
    assert all(at == 0 for at, action, *_ in raw if action == 1)
    assert all((size < 0) == (action == 4) for _, action, size, _ in raw)
    assert sum(size for _, _, size, _ in raw) == sum(sizes[-1])
    assert sum(size for _, action, size, place in raw if (action, place) == (1, 0)) == sizes[0][PARAMETERS]
    shared: dict[int, int] = {}
    for _, _, size, place in raw:
        shared[place + 1] = shared.get(place + 1, 0) + size
    assert [shared.get(i, 0) for i in range(1, 9)] == sizes[-1][1:]


def test_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    step, _, _ = training()
    with profile(**ALL) as p:
        step()
    p.export_memory_timeline(str(tmp_path / "page.html"), device="cpu")
    page = (tmp_path / "page.html").read_text()
    picture = page.split("data:image/png;base64,")[1].split('"')[0]
    assert base64.b64decode(picture, validate=True).startswith(b"\x89PNG") and len(picture) > 5000
    assert page.startswith("<html>") and page.rstrip().endswith("</html>")
    assert "peak on cpu" in page and "LinearBackward0" in page

    importing = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return importing(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install warptape\[plot\]"):
        p.export_memory_timeline(str(tmp_path / "other.html"))
    assert not (tmp_path / "other.html").exists()


def test_what_it_needs(tmp_path: Path) -> None:
    path = str(tmp_path / "points.json")
    with profile(profile_memory=True) as p:
        torch.ones(1)
    with pytest.raises(ValueError, match="needs record_shapes=True, with_stack=True"):
        p.export_memory_timeline(path)
    p = profile(**ALL)
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        p.export_memory_timeline(path)
    with p, pytest.raises(RuntimeError, match="after the end"):
        p.export_memory_timeline(path)
    assert not Path(path).exists()
    assert exported(p, tmp_path / "empty.json") == [[], []]


def test_the_notes_are_not_in_the_trace_and_keep_nothing_alive() -> None:
    step, _, optimizer = training()
    with profile(**ALL) as p:
        step()
        free = torch.ones(1000, requires_grad=True)
    assert p.profiler is not None
    with profile(with_stack=True) as plain:
        step()
    assert plain.profiler is not None

    def calls(of: Any) -> list[str]:
        return sorted(e.name for e in of.python_events)

    assert calls(p.profiler) == calls(plain.profiler) != []
    assert p.profiler.notes is not None and not p.profiler.notes._params
    hooks = len(torch.optim.optimizer._global_pre_hooks)
    with profile(**ALL), pytest.raises(RuntimeError, match="another profile is running"):
        profile(**ALL).start()
    assert len(torch.optim.optimizer._global_pre_hooks) == hooks
    assert free.numel() == 1000 and optimizer.state


def test_off_times_do_not_lose_memory(tmp_path: Path) -> None:
    with profile(**ALL) as p:
        p.toggle_collection_dynamic(False, [torch.profiler.ProfilerActivity.CPU])
        kept = torch.empty(100)
        p.toggle_collection_dynamic(True, [torch.profiler.ProfilerActivity.CPU])
        del kept
    _, sizes = exported(p, tmp_path / "points.json")
    assert max(sum(row) for row in sizes) == 400 and sum(sizes[-1]) == 0
