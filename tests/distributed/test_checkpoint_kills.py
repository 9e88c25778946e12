"""SIGKILL of one of two ranks that save, at any moment: a whole checkpoint stays, as new as was told."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import warptape as wt
import warptape.distributed.checkpoint as dcp
from launched import LAUNCHER, started, until
from warptape import nn

# Goes on from what is there, and saves again and again, by turns at once and in the background. Each rank
# writes a share of the model, and a line to `said` before and after each save.
SCRIPT = """
import os, sys
from pathlib import Path
sys.path[:0] = {tests!r}
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
import test_checkpoint_kills as t

dist.init_process_group()
folder, rank = Path({folder!r}), dist.get_rank()
state = t.state_of(0) | {{"own": dcp.PerRank(0)}}
begun = any(folder.glob("*run*"))
dist.barrier()  # or a rank saves before the other has looked
if begun:
    dcp.load(state, checkpoint_id=folder / "run")
    assert t.versions(state) == {{state["version"]}} == {{state["own"].value}}
said = open(folder / f"said-{{rank}}-{{os.getpid()}}", "w", buffering=1)
for version in range(state["version"] + 1, 1_000_000):
    said.write(f"saving {{version}}\\n")
    state = t.state_of(version) | {{"own": dcp.PerRank(version)}}
    if version % 2:
        dcp.save(state, checkpoint_id=folder / "run")
    else:
        dcp.async_save(state, checkpoint_id=folder / "run").result()
    said.write(f"saved {{version}}\\n")
"""


def state_of(version: int) -> dict[str, object]:
    model = nn.Sequential(*[nn.Linear(200, 200) for _ in range(6)])
    with wt.no_grad():
        for p in model.parameters():
            p.fill_(version)
    return {"model": model, "version": version}


def versions(state: dict[str, object]) -> set[float]:
    """All values of the model."""
    model = state["model"]
    assert isinstance(model, nn.Module)
    return {value for p in model.parameters() for value in (p.min().item(), p.max().item())}


def test_a_killed_rank_leaves_a_whole_checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    script, kills = tmp_path / "train.py", request.config.getoption("--kills")
    script.write_text(
        SCRIPT.format(tests=[str(Path(__file__).parents[i]) for i in (0, 1)], folder=str(tmp_path))
    )
    moment, told, amid = random.Random(0), 0, 0
    for kill in range(kills):
        with started([*LAUNCHER, "--nproc-per-node=2", str(script)]) as job:
            lines = 2 * moment.randrange(1, 6)
            far = lambda lines=lines: all(len(texts) >= lines for texts in said(tmp_path))
            until(lambda job=job, far=far: job.process.poll() is not None or far(), 100)
            assert job.process.poll() is None, job.finish()
            time.sleep(moment.uniform(0, 0.05))
            victim = next(tmp_path.glob(f"said-{kill % 2}-*"))
            os.kill(int(victim.name.rpartition("-")[2]), signal.SIGKILL)
            code, _, err = job.finish()
            assert code, err  # of the rank that ended first, or of the other, which missed it
            until(lambda job=job: not job.left(), 60)  # a killed process ends after its call to the disk
        amid += "saved" not in victim.read_text().splitlines()[-1]
        told = max(int(line.split()[1]) for texts in said(tmp_path) for line in texts if "saved" in line)
        for path in tmp_path.glob("said-*"):
            path.unlink()
        state = state_of(-1)
        dcp.load(state, checkpoint_id=tmp_path / "run")
        assert versions(state) == {state["version"]}
        assert state["version"] in (told, told + 1)
    assert amid > kills // 4, "the kills missed the saves"
    dcp.save(state_of(told), checkpoint_id=tmp_path / "run")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "train.py"]  # what the kills left is gone


def said(folder: Path) -> list[list[str]]:
    """What each rank wrote, without a last line that is not whole; as many as ranks."""
    found = [path.read_text().rpartition("\n")[0].splitlines() for path in folder.glob("said-*")]
    return found + [[]] * (2 - len(found))
