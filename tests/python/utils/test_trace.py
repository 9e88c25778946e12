"""trace_hashes and `warptape diff`: which op, line, module, rank and step two runs part at."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import planted_faults
import pytest
import warptape as torch
from warptape import distributed as dist
from warptape import nn
from warptape.distributed.collective_hooks import register_collective_hook
from warptape.tools.trace import TraceError, compare, read_file, read_run
from warptape.tools.trace.__main__ import main
from warptape.utils import trace_hashes


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 2))


def train(folder: Any, change: Any = None, steps: int = 3, model: Any = None, **options: Any) -> Any:
    """Trains; `change(step, model, x)` may disturb a step's beginning."""
    model = net() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.arange(24.0).view(6, 4) / 10
    with trace_hashes(folder, **options) as trace:
        for step in range(steps):
            x = data[2 * step : 2 * step + 2] * 1
            if change is not None:
                change(step, model, x)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return trace


def test_equal_runs_are_equal(tmp_path, capsys):
    train(tmp_path / "a")
    train(tmp_path / "b")
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "equal: " in capsys.readouterr().out
    kinds = {r.key.kind for r in read_file(tmp_path / "a" / "rank0.trace").records}
    assert kinds == {"op", "random", "backward", "input", "module", "parameter", "gradient", "state"}


def test_a_flipped_bit_of_a_weight_is_named_with_line_and_module(tmp_path, capsys):
    def change(step: int, model: Any, x: Any) -> None:
        if step == 1:
            planted_faults.flip(model[3].weight.detach(), 77)

    train(tmp_path / "a")
    train(tmp_path / "b", change)
    page = tmp_path / "page.html"
    assert main([str(tmp_path / "a"), str(tmp_path / "b"), "--html", str(page)]) == 1
    text = capsys.readouterr().out
    assert "rank 0, step 1, record" in text and "op linear in 3 at test_trace.py:" in text
    found = compare(tmp_path / "a", tmp_path / "b").parts
    assert found.record.key.module == "3" and found.before.key.name == "Dropout"
    assert "Where values part" in page.read_text() and "op <b>linear</b>" in page.read_text()


def test_backward_gradients_and_draws_are_named(tmp_path):
    train(tmp_path / "a")

    def disturb(step: int, model: Any, x: Any) -> None:
        if step == 2:
            model[1].register_forward_hook(
                lambda m, i, out: (
                    out.register_hook(lambda g: g * torch.tensor([1.0] * 7 + [1.0000001])) and None
                )
            )

    train(tmp_path / "b", disturb)
    # the hook is an op more, and after it the runs go on in what has names
    out = compare(tmp_path / "a", tmp_path / "b")
    assert out.structure.record.step == 2
    assert (out.parts.record.key.kind, out.parts.record.key.name) == ("gradient", "0.weight")

    def draw(step: int, model: Any, x: Any) -> None:
        if step == 1:
            torch.manual_seed(5)

    train(tmp_path / "c", draw)
    assert compare(tmp_path / "a", tmp_path / "c").parts.record.key[:2] == ("random", "dropout")


def test_other_programs_are_told_and_compared_by_name(tmp_path, capsys):
    train(tmp_path / "a")
    model = net()
    model[1].forward = lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5))
    train(tmp_path / "b", model=model)
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    text = capsys.readouterr().out
    assert "the runs are of different programs" in text and "op gelu in 1" in text
    assert "compared by name" in text


def test_a_run_with_fewer_steps_parts_in_structure(tmp_path):
    train(tmp_path / "a")
    train(tmp_path / "b", steps=2)
    out = compare(tmp_path / "a", tmp_path / "b")
    assert out.structure.second is None and out.structure.record.step == 2 and out.parts is None


def test_a_cut_trace_is_read_up_to_its_end(tmp_path):
    train(tmp_path / "a")
    whole = (tmp_path / "a" / "rank0.trace").read_bytes()
    (tmp_path / "b").mkdir()
    lines = len(whole.splitlines())
    for cut in (len(whole) // 2, len(whole) - 1, len(whole) - 3, whole.index(b"\n") + 1):
        (tmp_path / "b" / "rank0.trace").write_bytes(whole[:cut])
        out = compare(tmp_path / "a", tmp_path / "b")
        assert out.equal and "was cut" in out.notes[0] and out.compared < lines
        assert bool(out.ends) == (cut < len(whole) - 3)
    damaged = bytearray(whole)
    damaged[len(whole) // 3 : len(whole) // 3 + 50] = b"\xff" * 50
    (tmp_path / "b" / "rank0.trace").write_bytes(damaged)
    assert compare(tmp_path / "a", tmp_path / "b").compared < lines


def test_an_error_leaves_a_trace_of_what_was_done(tmp_path):
    def fail(step: int, model: Any, x: Any) -> None:
        if step == 1:
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        train(tmp_path / "a", fail)
    trace = read_file(tmp_path / "a" / "rank0.trace")
    assert not trace.complete and trace.steps == 2
    assert not torch._C._dispatch_modes()


def test_what_is_no_trace_is_refused(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path)]) == 2
    assert "no trace" in capsys.readouterr().err
    (tmp_path / "rank0.trace").write_text("hello\n")
    with pytest.raises(TraceError, match="does not begin with"):
        read_run(tmp_path)
    train(tmp_path / "a")
    with pytest.raises(TraceError, match="statistics"):
        compare(tmp_path / "a", tmp_path / "a", rtol=1e-3)
    text = (tmp_path / "a" / "rank0.trace").read_text().replace("crc32c-crc32", "other", 1)
    (tmp_path / "rank0.trace").write_text(text)
    with pytest.raises(TraceError, match="hashes of two kinds"):
        compare(tmp_path, tmp_path / "a")
    trace = train(tmp_path / "b")
    with pytest.raises(RuntimeError, match="entered already"):
        trace.__enter__()


def test_tolerance_and_kept_tensors(tmp_path):
    def change(step: int, model: Any, x: Any) -> None:
        if step == 1:
            x[0, 0] += 1e-6

    train(tmp_path / "a", statistics=True)
    train(tmp_path / "b", change, statistics=True)
    assert not compare(tmp_path / "a", tmp_path / "b", by_name=True).equal
    assert compare(tmp_path / "a", tmp_path / "b", rtol=1e-2, by_name=True).equal
    assert not compare(tmp_path / "a", tmp_path / "b", rtol=1e-9, by_name=True).equal
    at = compare(tmp_path / "a", tmp_path / "b", by_name=True).parts
    train(tmp_path / "a", keep=[(1, at.first.number)])
    train(tmp_path / "b", change, keep=[(1, at.second.number)])
    page = tmp_path / "page.html"
    assert main([str(tmp_path / "a"), str(tmp_path / "b"), "--by-name", "--html", str(page)]) == 1
    text = page.read_text()
    assert "1 of 8 values differ" in text and "[0, 0]" in text and 'class="bit"' in text


def test_batches_and_steps_that_are_said(tmp_path):
    for name, last in (("a", 5.0), ("b", 6.0)):
        data = torch.arange(6.0).index_fill(0, torch.tensor([5]), last)
        torch.manual_seed(0)  # of which the loader draws
        with trace_hashes(tmp_path / name) as trace:
            for batch in torch.utils.data.DataLoader(data, batch_size=2):
                batch.sum()
                trace.step()
    found = compare(tmp_path / "a", tmp_path / "b").parts.record
    assert found.step == 2 and found.key.kind == "op" and found.key.name == "stack"


def compile_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward)
    return model


@pytest.mark.parametrize("compiled", [torch.compile, compile_forward])
def test_compiled_and_eager_are_compared_by_what_has_a_name(compiled, tmp_path):
    train(tmp_path / "a")
    train(tmp_path / "b", model=compiled(net()))
    out = compare(tmp_path / "a", tmp_path / "b", by_name=True)
    assert out.equal and out.compared > 30


def test_collective_hooks_are_told_once_results_are_there():
    told: list[tuple[int, str, list[float]]] = []

    def hook(name: str, outputs: Any) -> None:
        told.append((dist.get_rank(), name, outputs[0].tolist()))

    def rank(hooked: bool) -> None:
        x = torch.ones(2) * (1 + dist.get_rank())
        work = dist.all_reduce(x, async_op=True)
        assert not hooked or (dist.get_rank(), "all_reduce", [3.0, 3.0]) not in told
        work.wait()
        work.wait()
        assert work.is_completed()
        dist.broadcast(x * (1 + dist.get_rank()), src=1)

    with register_collective_hook(hook):
        dist.simulate(2, rank, True)
    dist.simulate(2, rank, False)
    every = [(r, *said) for r in range(2) for said in (("all_reduce", [3.0] * 2), ("broadcast", [6.0] * 2))]
    assert sorted(told) == every


def test_planted_faults_are_named_on_ranks_and_clean_pairs_are_equal(tmp_path):
    assert planted_faults.campaign(8, 3, tmp_path) == []
    assert planted_faults.false_alarms(2, tmp_path) == 0


@pytest.mark.parity
def test_pytorch_writes_the_same_files(tmp_path):
    """A training run on real PyTorch agrees in all that has a name, within a tolerance."""
    root = Path(__file__).parents[3]
    shutil.copy(root / "tools/trace_pytorch.py", tmp_path)
    shutil.copy(root / "python/warptape/tools/trace/trace_file.py", tmp_path)  # they stand alone
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    out = subprocess.run(
        [sys.executable, str(tmp_path / "trace_pytorch.py"), str(tmp_path / "theirs"), str(program)],
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    with trace_hashes(tmp_path / "ours", statistics=True):
        exec(PROGRAM, {"torch": torch})
    found = compare(tmp_path / "theirs", tmp_path / "ours", rtol=1e-4, by_name=True)
    assert found.equal and found.compared > 40, found
    assert read_file(tmp_path / "theirs" / "rank0.trace").complete
    assert not compare(tmp_path / "theirs", tmp_path / "ours", rtol=1e-12, by_name=True).equal


PROGRAM = """
import sys
if "torch" not in globals():
    import torch
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(3):
    x = torch.arange(8.0).view(2, 4) / 8 - step
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
