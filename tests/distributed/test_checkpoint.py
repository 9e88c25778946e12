"""Checkpoints between layouts, resumed runs, and what is refused."""

from __future__ import annotations

import copy
import json
import subprocess
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import warptape as wt
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
import warptape.nn.functional as F
from checkpoint_layouts import LAYOUTS, V, build, compare, each, fill, make, ranks_of, simulate, trainer
from launched import LAUNCHER, environ
from warptape import nn, optim

CheckpointException = dcp.CheckpointException


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of each layout."""
    folder = tmp_path_factory.mktemp("layouts")

    def write(layout: str) -> int:
        wt.manual_seed(1)
        what, modules, optimizer = make(layout)
        held = each(what, modules, optimizer, fill)
        optimizer.param_groups[0]["lr"] = 0.75
        dcp.save({"model": what, "optimizer": optimizer, "step": 7}, checkpoint_id=folder / layout)
        return held

    for layout in LAYOUTS:
        assert min(simulate(ranks_of(layout), lambda layout=layout: write(layout))) > 0
    return folder


@pytest.mark.parametrize("into", LAYOUTS)
@pytest.mark.parametrize("source", LAYOUTS)
def test_any_layout_loads_any_other(saved, source, into):
    def read() -> tuple[int, int, float]:
        wt.manual_seed(2)
        what, modules, optimizer = make(into)
        state = {"model": what, "optimizer": optimizer, "step": 0}
        dcp.load(state, checkpoint_id=saved / source)
        return each(what, modules, optimizer, compare), state["step"], optimizer.param_groups[0]["lr"]

    for compared, step, lr in simulate(ranks_of(into), read):
        assert compared >= 10
        assert (step, lr) == (7, 0.75)


def test_replicas_are_written_once_and_by_all(saved):
    sizes = {
        layout: {p.name: p.stat().st_size for p in (saved / layout).glob("*.safetensors")}
        for layout in LAYOUTS
    }
    data = {}
    for layout, files in sizes.items():
        assert len(files) == ranks_of(layout)
        manifest = json.loads((saved / layout / "manifest.json").read_text())
        data[layout] = sum(files.values()) - sum(f["header"] for f in manifest["files"].values())
        assert max(files.values()) < 2.2 * min(files.values())
    assert len(set(data.values())) == 1


def test_the_library_reads_our_shards(saved):
    whole = {}
    for path in (saved / "one").glob("*.safetensors"):
        with safetensors.safe_open(path, "np") as file:
            whole = {n: file.get_tensor(n) for n in file.keys() if "gate" not in n}  # noqa: SIM118
    model = nn.Sequential(*build())
    dcp.load({"model": model}, checkpoint_id=saved / "tp4")
    for name, tensor in model.state_dict().items():
        if "gate" not in name and name != "3.weight":
            assert np.array_equal(whole[f"model.{name}"], tensor.numpy())
    for path in (saved / "tp4").glob("*.safetensors"):
        assert safetensors.numpy.load(path.read_bytes()) if "gate" not in path.read_text("latin1") else True


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return self.layers(x)


def training(kind: str) -> tuple[dict[str, Any], Any]:
    """A state, and a function that takes a step and returns the loss."""
    wt.manual_seed(3)
    model = Regressor()
    if kind == "sgd":
        optimizer: Any = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
    scheduler = (
        optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        if kind == "adamw"
        else optim.lr_scheduler.MultiStepLR(optimizer, [3, 7])
    )
    data = wt.Generator().manual_seed(9)
    parallel = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    state = {
        "model": parallel,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "random": {"default": wt.default_generator, "data": data},
        "step": 0,
    }

    def step() -> float:
        x = wt.randn(8, 6, generator=data)
        optimizer.zero_grad()
        loss = F.mse_loss(parallel(x), x[:, :3])
        loss.backward()
        optimizer.step()
        scheduler.step()
        state["step"] += 1
        return loss.item()

    return state, step


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, kind, ranks):
    def rank() -> None:
        state, step = training(kind)
        for _ in range(4):
            step()
        future = dcp.async_save(state, checkpoint_id=tmp_path / "at4")
        losses = [step() for _ in range(6)]  # the thread writes what was, not what is
        future.result()
        again, step_again = training(kind)
        dcp.load(again, checkpoint_id=tmp_path / "at4")
        assert again["step"] == 4
        assert [step_again() for _ in range(6)] == losses
        for a, b in zip(state["model"].parameters(), again["model"].parameters()):
            assert wt.equal(a.detach(), b.detach())

    simulate(ranks, rank) if ranks > 1 else rank()


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "one"])
def test_a_resumed_run_of_a_split_model_is_the_uninterrupted_one(tmp_path, layout):
    def start() -> tuple[dict[str, Any], Any, Any]:
        wt.manual_seed(5)
        what, modules, optimizer = make(layout)
        data = wt.Generator().manual_seed(6)
        random = wt.default_generator
        state = {"model": what, "optimizer": optimizer, "random": random, "data": data}
        step = trainer(layout, what, optimizer)
        return state, lambda: step(wt.randint(V, (4, 6), generator=data)), modules[0]

    def rank() -> int:
        state, step, model = start()
        step(), step()
        future = dcp.async_save(state, checkpoint_id=tmp_path / "at2")
        losses = [step() for _ in range(3)]
        future.result()
        again, step_again, model_again = start()
        dcp.load(again, checkpoint_id=tmp_path / "at2")
        assert [step_again() for _ in range(3)] == losses
        for a, b in zip(model.parameters(), model_again.parameters()):
            assert wt.equal(a.detach(), b.detach())
        return sum(map(len, losses))

    assert sum(simulate(ranks_of(layout), rank)) >= 3


def test_each_rank_keeps_its_own_where_it_says_so(tmp_path):
    def rank() -> None:
        me = dist.get_rank()
        mine = wt.Generator().manual_seed(me)
        with pytest.raises(CheckpointException, match="PerRank"):
            dcp.save({"random": mine}, checkpoint_id=tmp_path / "a")
        dcp.save({"random": dcp.PerRank(mine), "n": dcp.PerRank(me)}, checkpoint_id=tmp_path / "a")
        after = wt.rand(3, generator=mine)
        state = {"random": dcp.PerRank(wt.Generator()), "n": dcp.PerRank(-1)}
        dcp.load(state, checkpoint_id=tmp_path / "a")
        assert wt.equal(wt.rand(3, generator=state["random"].value), after)
        assert state["n"].value == me

    simulate(2, rank)
    with pytest.raises(CheckpointException, match="for 1 ranks; it was saved from 2"):
        dcp.load({"n": dcp.PerRank(0)}, checkpoint_id=tmp_path / "a")


def test_parts_given_as_wholes_are_refused(tmp_path):
    def rank() -> None:
        what, _, _ = make("tp2")
        fill(what[0].weight, wt.full_like(what[0].weight, dist.get_rank()))
        parts = {name: getattr(p, "to_local", p.detach)() for name, p in what.state_dict().items()}
        for state in ({"model": parts}, {"model": OrderedDict(parts)}, {"model": [parts]}):
            with pytest.raises(CheckpointException, match="is not the same on rank 1"):
                dcp.save(state, checkpoint_id=tmp_path / "a")

    simulate(2, rank)
    assert not list(tmp_path.iterdir())


def test_state_dicts_under_names_are_saved_by_tensor(tmp_path):
    """A module's state dict is an OrderedDict; its sharded tensors differ by rank."""

    def rank() -> None:
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
        for p in model.parameters():
            fill(p, wt.arange(p.numel(), dtype=p.dtype).reshape(p.shape))
        wt.distributed.fsdp.fully_shard(model)
        dcp.save({"model": model.state_dict(), "n": 3}, checkpoint_id=tmp_path / "a")
        whole = model[0].weight.full_tensor().clone()
        with wt.no_grad():
            for p in model.parameters():
                p.zero_()
        state = {"model": model.state_dict(), "n": 0}
        dcp.load(state, checkpoint_id=tmp_path / "a")
        model.load_state_dict(state["model"])
        assert state["n"] == 3 and wt.equal(model[0].weight.full_tensor(), whole)

    simulate(2, rank)


def test_plain_data_and_tensors_come_back(tmp_path):
    data = {
        "a": [1, (2.5, float("inf"), None)],
        "b": b"\0\xff",
        "c": True,
        "text": "ä",
        "n": 2**80,
        "z": -0.0,
    }
    tensor = wt.arange(6).reshape(2, 3).t()
    dcp.save({**data, "t": tensor, "e": wt.zeros(0, 3), "s": wt.tensor(2.5)}, checkpoint_id=tmp_path / "a")
    back: dict[str, Any] = dict.fromkeys(data)
    back |= {"t": wt.zeros(3, 2, dtype=wt.int64), "e": wt.zeros(0, 3), "s": wt.zeros(())}
    dcp.load(back, checkpoint_id=tmp_path / "a")
    assert {k: back[k] for k in data} == data
    assert str(back["z"]) == "-0.0"
    assert wt.equal(back["t"], tensor)
    assert back["s"].item() == 2.5
    with pytest.raises(CheckpointException, match="TypeError"):
        dcp.save({"f": object()}, checkpoint_id=tmp_path / "a")


# ------------------------------------------------------------------------------- another model's


@pytest.mark.parametrize("layout", ["one", "tp2", "pp2"])
def test_another_models_checkpoint_is_refused_on_every_rank(saved, layout):
    """Also where only one rank's part is another, and nothing is changed."""
    wide, longer, shorter = build(), build(), build()
    wide[2].up, wide[2].down = nn.Linear(8, 64), nn.Linear(64, 8)
    longer[2].more = nn.Linear(8, 8)
    del shorter[2].norm

    def rank(model: Any) -> str:
        what, modules, optimizer = make(layout, model)
        before = [t.clone() for t in modules[0].state_dict().values()]
        with pytest.raises(CheckpointException) as caught:
            dcp.load({"model": what, "optimizer": optimizer}, checkpoint_id=saved / "tp4")
        for a, b in zip(before, modules[0].state_dict().values()):
            assert wt.equal(a, b)
        return str(caught.value)

    n = ranks_of(layout)
    for model, named in (
        (wide, "model.2.up.weight is [32, 8] there and [64, 8] here"),
        (longer, "model.2.more.weight is missing there"),
        (shorter, "nothing here is called model.2.norm.weight"),
    ):
        for text in simulate(n, lambda model=model: rank(copy.deepcopy(model))):
            assert named in text


def test_what_is_not_asked_for_is_not_read(saved):
    model = build()
    dcp.load({"model": model}, checkpoint_id=saved / "pp2")  # without the optimizer
    with pytest.raises(CheckpointException, match="no model of the state has"):
        dcp.load({"optimizer": optim.SGD(model.parameters(), lr=0.1)}, checkpoint_id=saved / "pp2")
    with pytest.raises(CheckpointException, match="no checkpoint is there"):
        dcp.load({"model": model}, checkpoint_id=saved / "nothing")
    with pytest.raises(CheckpointException, match="expected a dict"):
        dcp.load(model, checkpoint_id=saved / "pp2")


def test_what_is_no_checkpoint_is_not_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointException, match="is no checkpoint"):
        dcp.save({"step": 1}, checkpoint_id=tmp_path / "home")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "x"


# ----------------------------------------------------------------------------------- what is kept


def test_the_last_and_the_best_are_kept(tmp_path):
    kept = dcp.Checkpoints(tmp_path / "run", keep_last=2, keep_best=2)
    weight = wt.zeros(3)
    assert kept.load({"w": weight}) is None
    for step, metric in enumerate([5.0, 1.0, 4.0, float("nan"), 2.0, 3.0, 9.0]):
        weight.fill_(step)
        kept.save({"w": weight}, step, metric)
    kept.wait()
    assert list(kept.steps()) == [1, 4, 5, 6]
    assert kept.best() == 1
    assert kept.load({"w": weight}, kept.best()) == 1
    assert weight.tolist() == [1.0] * 3
    assert dcp.Checkpoints(tmp_path / "run").load({"w": weight}) == 6
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [f"step-{n:09d}" for n in (1, 4, 5, 6)]


def test_processes_save_and_load(tmp_path):
    """Under the launcher: the background threads meet over the store."""
    script = tmp_path / "job.py"
    script.write_text(PROCESSES)
    command = [*LAUNCHER, "--nproc-per-node=2", str(script), str(tmp_path / "run")]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same") == 2
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [f"step-{n:09d}" for n in (2, 3, 4)]


PROCESSES = """
import sys
import warptape as wt, warptape.distributed as dist, warptape.distributed.checkpoint as dcp
from warptape import nn, optim
from warptape.parallel import parallelize_module
from warptape.parallel.tensor import ColwiseParallel, RowwiseParallel
dist.init_process_group()
mesh = dist.init_device_mesh("cpu", (2,))
def make(seed):
    wt.manual_seed(seed)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), mesh, plan)
    return {"model": model, "optimizer": optim.Adam(model.parameters()), "random": wt.default_generator}
state, kept = make(0), dcp.Checkpoints(sys.argv[1], keep_last=3)
def step(state):
    state["optimizer"].zero_grad()
    loss = state["model"](wt.rand(3, 4)).square().mean()
    loss.backward()
    state["optimizer"].step()
    return loss.item()
for at in range(5):
    step(state)
    kept.save(state, at)
losses = [step(state) for _ in range(3)]
again = make(1)
assert kept.load(again) == 4
assert [step(again) for _ in range(3)] == losses
print("the same")
dist.destroy_process_group()
"""


def test_rank_0_may_end_right_after_a_save(tmp_path):
    """It serves the store, from which a slow rank still reads that the save is done."""
    script = tmp_path / "job.py"
    script.write_text(SLOW_READER)
    command = [*LAUNCHER, "--nproc-per-node=3", str(script), str(tmp_path / "run")]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["slow"] * 2


SLOW_READER = """
import sys, time
import warptape as wt, warptape.distributed as dist, warptape.distributed.checkpoint as dcp
from warptape.distributed import state as _state
dist.init_process_group()
class Slow:
    def __init__(self, store):
        self.store = store
    def __getattr__(self, name):
        return getattr(self.store, name)
    def get(self, key):
        if key.endswith("/end"):
            time.sleep(0.5)
            sys.stdout.write("slow" + chr(10))
        return self.store.get(key)
if dist.get_rank():
    _state.state().store = Slow(_state.state().store)
dcp.save({"w": wt.ones(3)}, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""


def test_ranks_load_the_same_step(tmp_path):
    def rank() -> int | None:
        kept = dcp.Checkpoints(tmp_path / "run", keep_last=1)
        for step in range(3):
            kept.save({"step": step}, step, wait=step == 1)
        state = {"step": None}
        assert kept.load(state) == state["step"]
        return state["step"]

    assert simulate(2, rank) == [2, 2]
    assert [p.name for p in Path(tmp_path / "run").iterdir()] == ["step-000000002"]
