"""State dicts of models and optimizers, objects with states, and one rank alone, as in PyTorch's guides."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
from checkpoint_layouts import simulate
from warptape import nn, optim
from warptape.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from warptape.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from warptape.distributed.checkpoint.stateful import Stateful
from warptape.distributed.fsdp import fully_shard
from warptape.distributed.tensor import Shard, distribute_tensor
from warptape.nn.parallel import DistributedDataParallel

CheckpointException = dcp.CheckpointException


def net() -> nn.Module:
    """Rows of 3 and 5 leave ranks with less than others, or nothing."""
    wt.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 5, bias=False))


def wrap(kind: str, model: nn.Module) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    return model


def step(model: Any, optimizer: Any, seed: int) -> None:
    x = wt.randn(6, 4, generator=wt.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


class App:
    """The AppState of PyTorch's guide."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer, self.epoch = model, optimizer, 3

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        self.epoch = state["epoch"]


def whole(model: Any, optimizer: Any) -> dict[str, Any]:
    from warptape.distributed.checkpoint.state_dict import StateDictOptions

    options = StateDictOptions(full_state_dict=True)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    flat = {f"model.{k}": v for k, v in model_state.items()}
    for name, state in optimizer_state["state"].items():
        flat |= {f"optim.{name}.{k}": v for k, v in state.items()}
    return {k: v.clone().tolist() for k, v in flat.items()}


def save(app: App, form: str, path: Any, asynchronous: bool) -> None:
    state = {"app": app} if form == "stateful" else app.state_dict()
    if asynchronous:
        dcp.async_save(state, checkpoint_id=path).result()
    else:
        dcp.save(state, checkpoint_id=path)


def load(app: App, form: str, path: Any) -> None:
    if form == "stateful":
        dcp.load({"app": app}, checkpoint_id=path)
        return
    state = app.state_dict()
    dcp.load(state, checkpoint_id=path)
    app.load_state_dict(state)


@pytest.mark.parametrize("form", ["stateful", "state dicts"])
@pytest.mark.parametrize(
    "source, target",
    [
        (("plain", 1), ("fsdp", 4)),
        (("fsdp", 4), ("fsdp", 2)),
        (("fsdp", 2), ("ddp", 2)),
        (("ddp", 2), ("plain", 1)),
    ],
    ids=str,
)
def test_a_training_goes_on_in_another_layout(tmp_path: Path, form: str, source: Any, target: Any) -> None:
    """The oracle is one process that did the same steps, for all ranks have the same rows."""

    def begin() -> dict[str, Any]:
        model = wrap(source[0], net())
        app = App(model, optim.AdamW(model.parameters(), lr=0.1))
        for i in range(2):
            step(model, app.optimizer, i)
        save(app, form, tmp_path / "a", asynchronous=source[0] == "fsdp")
        return whole(model, app.optimizer)

    def resume() -> tuple[Any, ...]:
        wt.manual_seed(8)
        fresh = net()
        with wt.no_grad():
            for p in fresh.parameters():
                p.fill_(9)
        model = wrap(target[0], fresh)
        app = App(model, optim.AdamW(model.parameters(), lr=0.5))
        app.epoch = 0
        load(app, form, tmp_path / "a")
        loaded = whole(model, app.optimizer)
        step(model, app.optimizer, 2)
        return loaded, app.epoch, app.optimizer.param_groups[0]["lr"], whole(model, app.optimizer)

    saved = simulate(source[1], begin)
    assert os.path.getsize(tmp_path / "a" / "manifest.json") < 20_000
    plain = net()
    optimizer = optim.AdamW(plain.parameters(), lr=0.1)
    for i in range(3):
        step(plain, optimizer, i)
    expected = whole(plain, optimizer)
    for loaded, epoch, lr, after in simulate(target[1], resume):
        assert loaded == saved[0] and epoch == 3 and lr == 0.1
        for name, values in expected.items():
            assert wt.allclose(wt.tensor(after[name]), wt.tensor(values), atol=1e-6), name


def test_a_fresh_optimizer_is_trained_as_if_its_state_had_not_been_asked() -> None:
    for make in (optim.Adam, optim.AdamW, optim.RAdam, lambda p: optim.SGD(p, momentum=0.9)):
        ends = []
        for asked in (False, True):
            model = net()
            optimizer = make(model.parameters())
            if asked:
                state = get_optimizer_state_dict(model, optimizer)["state"]
                assert set(state) == {name for name, _ in model.named_parameters()}
            step(model, optimizer, 0)
            ends.append([p.tolist() for p in model.parameters()])
        assert ends[0] == ends[1]


def test_states_of_many_forms_are_saved_by_tensor(tmp_path: Path) -> None:
    model = net()
    optimizer = optim.AdamW(model.parameters())
    step(model, optimizer, 0)
    big = wt.arange(100_000.0)
    state = {
        "optimizer": optimizer.state_dict(),  # its keys are numbers
        "list": [big, {"a.b": big + 1, "n": 3}, (big + 2, None)],
        "nested": {"x.y": {"z": big + 3}},
        "complex": wt.tensor([1 + 2j], dtype=wt.complex128),
        "generator": wt.Generator().manual_seed(5),
    }
    dcp.save(state, checkpoint_id=tmp_path / "a")
    assert os.path.getsize(tmp_path / "a" / "manifest.json") < 20_000
    other = optim.AdamW(net().parameters())
    empty = {
        "optimizer": other.state_dict(),
        "list": None,
        "nested": {"x.y": {"z": wt.zeros(100_000)}},
        "complex": wt.zeros(1, dtype=wt.complex128),
        "generator": wt.Generator(),
    }
    dcp.load(empty, checkpoint_id=tmp_path / "a")
    other.load_state_dict(empty["optimizer"])
    for a, b in zip(
        optimizer.state_dict()["state"].values(), other.state_dict()["state"].values(), strict=True
    ):
        assert all(wt.equal(a[key], b[key]) for key in a)
    first, second, third = empty["list"]
    assert wt.equal(first, big) and wt.equal(second["a.b"], big + 1) and second["n"] == 3
    assert isinstance(third, tuple) and wt.equal(third[0], big + 2) and third[1] is None
    assert wt.equal(empty["nested"]["x.y"]["z"], big + 3) and empty["complex"].tolist() == [1 + 2j]
    assert empty["generator"].initial_seed() == 5


class Flat(optim.AdamW, Stateful):
    """An optimizer that says of itself what its state is, by names of its own."""

    def state_dict(self) -> dict[str, Any]:
        held = super().state_dict()["state"]
        return {f"state.{i}.{key}": value for i, each in held.items() for key, value in each.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        told = super().state_dict()
        for name, value in state_dict.items():
            _, i, key = name.split(".")
            told["state"][int(i)][key] = value
        super().load_state_dict(told)


def test_an_optimizer_that_is_stateful_is_asked_for_its_state(tmp_path: Path) -> None:
    """Without a model beside it, as torchtitan's container of optimizers."""

    def body() -> bool:
        made = []
        for seed in (1, 2):
            model = wrap("fsdp", net())
            optimizer = Flat(model.parameters(), lr=1e-2)
            step(model, optimizer, seed)
            made.append((model, optimizer))
        dcp.save({"optimizer": made[0][1]}, checkpoint_id=tmp_path / "a")
        dcp.load({"optimizer": made[1][1]}, checkpoint_id=tmp_path / "a")
        states = [optimizer.state_dict() for _, optimizer in made]
        assert states[0].keys() == states[1].keys()
        return all(wt.equal(states[0][name], states[1][name]) for name in states[0])

    assert simulate(2, body) == [True, True]


def test_two_things_of_one_name_are_refused(tmp_path: Path) -> None:
    state = {"a.b": wt.ones(1), "a": {"b": wt.zeros(1)}}
    with pytest.raises(CheckpointException, match="two things of the state"):
        dcp.save(state, checkpoint_id=tmp_path / "a")


def test_objects_whose_state_grew_come_back_whole(tmp_path: Path) -> None:
    class Average:
        def __init__(self) -> None:
            self.state: dict[str, Any] = {"steps": 0, "shadow": {}}

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    before, after = Average(), Average()
    before.state = {"steps": 4, "shadow": {"0.weight": wt.ones(3)}, "history": [wt.zeros(2)]}
    dcp.save({"ema": before}, checkpoint_id=tmp_path / "a")
    dcp.load({"ema": after}, checkpoint_id=tmp_path / "a")
    assert after.state["steps"] == 4 and after.state["shadow"]["0.weight"].tolist() == [1, 1, 1]
    assert after.state["history"][0].tolist() == [0, 0]


def test_buffers_may_differ_between_copies(tmp_path: Path) -> None:
    def rank() -> list[float]:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        ddp = DistributedDataParallel(model)
        model[1].running_mean.fill_(dist.get_rank() + 1.0)
        app = App(ddp, optim.SGD(ddp.parameters(), lr=0.1))
        dcp.save({"app": app}, checkpoint_id=tmp_path / "a")
        dcp.load({"app": app}, checkpoint_id=tmp_path / "a")
        return model[1].running_mean.tolist()

    assert simulate(2, rank) == [[1.0] * 4] * 2


def test_without_the_others(tmp_path: Path) -> None:
    def rank() -> list[Any]:
        me = dist.get_rank()
        path = tmp_path / str(me)
        if me == 1:  # the other makes no call at all
            dcp.save({"a": wt.ones(2) * me}, checkpoint_id=path, no_dist=True)
            dcp.async_save({"a": wt.ones(2) * me}, checkpoint_id=path, no_dist=True).result()
            state = {"a": wt.zeros(2)}
            dcp.load(state, checkpoint_id=path, no_dist=True)
            dcp_to_torch_save(path, tmp_path / "file.pt")
            torch_save_to_dcp(tmp_path / "file.pt", tmp_path / "again")
            dcp.load(state, checkpoint_id=tmp_path / "again", no_dist=True)
            return state["a"].tolist()
        return []

    assert simulate(2, rank) == [[], [1.0, 1.0]]


def test_of_a_group(tmp_path: Path) -> None:
    def rank() -> Any:
        group = dist.new_group([1, 2])
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            return None
        mesh = dist.DeviceMesh.from_group(group, "cpu")
        whole = wt.arange(6.0).reshape(3, 2)
        state = {"parts": distribute_tensor(whole, mesh, [Shard(0)]), "copies": wt.ones(2)}
        dcp.save(state, checkpoint_id=tmp_path / "a", process_group=group)
        with wt.no_grad():
            state["parts"].to_local().zero_(), state["copies"].zero_()
        dcp.load(state, checkpoint_id=tmp_path / "a", process_group=group)
        return wt.equal(state["parts"].full_tensor(), whole) and state["copies"].tolist() == [1, 1]

    assert simulate(3, rank) == [None, True, True]


def test_one_file_has_the_nested_dict(tmp_path: Path) -> None:
    model = net()
    dcp.save({"model": model.state_dict(), "app": App(model, optim.AdamW(model.parameters()))},
             checkpoint_id=tmp_path / "a")  # fmt: skip
    dcp_to_torch_save(tmp_path / "a", tmp_path / "f.pt")
    state = wt.load(tmp_path / "f.pt")
    assert wt.equal(state["model"]["0.weight"], model[0].weight)
    assert wt.equal(state["app"]["model"]["2.weight"], model[2].weight)
    assert state["app"]["optim"]["param_groups"][0]["params"][0] == "0.weight" and state["app"]["epoch"] == 3


@pytest.mark.parametrize("write", ["save", "async_save"])
def test_an_object_that_fails_on_one_rank_fails_on_all(tmp_path: Path, write: str) -> None:
    class Fails:
        def state_dict(self) -> dict[str, Any]:
            if dist.get_rank() == 1:
                raise OSError("no state today")
            return {"w": wt.ones(2)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    def rank() -> str:
        dcp.save({"a": wt.ones(2)}, checkpoint_id=tmp_path / "a")
        with pytest.raises(CheckpointException) as caught:
            getattr(dcp, write)({"a": Fails()}, checkpoint_id=tmp_path / "a")
        state = {"a": wt.zeros(2)}
        dcp.load(state, checkpoint_id=tmp_path / "a")
        assert state["a"].tolist() == [1, 1]
        with pytest.raises(CheckpointException, match="rank 1: OSError"):
            dcp.load({"a": Fails()}, checkpoint_id=tmp_path / "a")
        return str(caught.value)

    for text in simulate(2, rank):
        assert "rank 1: OSError: no state today" in text


def finished(call: Callable[[], Any]) -> str:
    try:
        future = call()
        if future is not None:
            future.result()
    except CheckpointException as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("write", ["save", "async_save"])
def test_a_writer_of_safetensors_that_fails_leaves_the_files_before(
    tmp_path: Path, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warptape.distributed.checkpoint import hf_storage

    files = {"a": 1, "b": 2}

    def rank() -> tuple[str, list[float]]:
        def begin(value: float) -> Any:
            state = {"a": wt.ones(3) * value, "b": wt.ones(3) * value}
            writer = dcp.HuggingFaceStorageWriter(tmp_path, fqn_to_index_mapping=files)
            return getattr(dcp, write)(state, storage_writer=writer)

        assert finished(lambda: begin(1)) == "no error"
        dist.barrier()
        if dist.get_rank() == 0:
            real = hf_storage.save_file

            def full(tensors: Any, path: Any, **more: Any) -> None:
                if "00002-of" in str(path):
                    raise OSError("no space left")
                real(tensors, path, **more)

            monkeypatch.setattr(hf_storage, "save_file", full)
        dist.barrier()
        error = finished(lambda: begin(2))
        dist.barrier()
        state = {"a": wt.zeros(3), "b": wt.zeros(3)}
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(tmp_path))
        if dist.get_rank() == 1:
            state["b"] = wt.zeros(4)
        text = finished(lambda: dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(tmp_path)))
        assert "rank 1: tensor b is [3] there and [4] here" in text
        return error, state["a"].tolist()

    for error, values in simulate(2, rank):
        assert "rank 0: OSError: no space left" in error and values == [1, 1, 1]
    assert not list(tmp_path.glob(".*"))
