"""Versions on disk and in processes: loading, switching, rolling back, restarting, and what goes wrong."""

import asyncio
import json
import os
import shutil

import kserve_server
import numpy as np
import pytest
import serve_faults_kserve as faults
import warptape as wt
from kserve_server import SIZE, add_version
from time_limits import seconds
from warptape.export import export, save
from warptape.serve.kserve_codec import InferRequest
from warptape.serve.models import ModelNotFoundError, Models, ModelUnavailableError
from warptape.serve.repository import STATE, Repository, RepositoryError, difference
from warptape.serve.rollout import RolloutError, RolloutState
from warptape.serve.workers import WorkerError

QUICK = {"rollout": {"steps": [50, 100], "hold_seconds": 1.0, "watch_seconds": 60, "min_requests": 5}}


def run(work):
    return asyncio.run(asyncio.wait_for(work, seconds(120)))


async def answer(models, version=None):
    """The version that answers, and by which factor."""
    x = np.ones((1, SIZE), np.float32)
    async with models.lease("m", version) as v:
        return v.number, (await v.infer(InferRequest({"x": x})))["y"][0, 0].item()


async def until(condition):
    for _ in range(int(seconds(60) * 50)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come")


def switch_of(models, name="m"):
    return models._models[name].switch


async def started(repository, **options):
    models = Models(repository, **{"control": "explicit", "load": ["*"], **options})
    await models.start()
    return models


def test_a_version_takes_over_and_a_restart_comes_back_to_it(tmp_path):
    async def work():
        add_version(tmp_path, "m", 1, 1.0, QUICK)
        models = await started(tmp_path)
        assert await answer(models) == (1, 1.0) and models.ready()
        add_version(tmp_path, "m", 2, 2.0)
        assert await models.load("m") == 2
        seen = {(await answer(models)) for _ in range(20)}
        assert seen == {(1, 1.0), (2, 2.0)}  # half and half
        with pytest.raises(RolloutError, match="version 2 is taking over"):
            await models.load("m", 3)
        await until(lambda: switch_of(models).current == 2)
        assert await answer(models) == (2, 2.0)
        assert await answer(models, 1) == (1, 1.0)  # kept, loaded
        add_version(tmp_path, "m", 3, 3.0)
        await models.load("m")
        await until(lambda: switch_of(models).current == 3)
        await until(lambda: not models._closing)
        with pytest.raises(ModelNotFoundError, match="no version"):
            await answer(models, 1)
        before = switch_of(models)
        await models.close()

        again = await started(tmp_path, load=())
        assert switch_of(again) == before == RolloutState(current=3, previous=2)
        assert await again.rollback("m") == 2 and await answer(again) == (2, 2.0)
        assert json.loads((tmp_path / STATE).read_text())["models"]["m"]["current"] == 2
        with pytest.raises(RolloutError, match="no previous"):
            await again.rollback("m")
        await again.close()

    run(work())


def test_polling_finds_versions_and_leaves_refused_ones(tmp_path):
    async def work():
        add_version(tmp_path, "m", 1, 1.0, {"rollout": {"steps": [100], "hold_seconds": 0}})
        models = await started(tmp_path, control="poll", poll_seconds=0.05)
        add_version(tmp_path, "m", 2, 2.0)
        await until(lambda: switch_of(models).current == 2)
        folder = add_version(tmp_path, "m", 3, 3.0, wrong=True)
        await until(lambda: 3 in switch_of(models).refused)
        assert "samples.safetensors: sample 0, output y: off by" in switch_of(models).refused[3]
        index = {r["version"]: r for r in models.index()}
        assert index["3"]["state"] == "UNAVAILABLE" and "samples.safetensors" in index["3"]["reason"]
        assert index["2"]["state"] == "READY" and await answer(models) == (2, 2.0)
        shutil.rmtree(folder)
        add_version(tmp_path, "m", 3, 3.0)  # its files changed: it gets another chance
        await until(lambda: switch_of(models).current == 3)
        await models.close()

    run(work())


def test_corrupt_versions_leave_the_old_one_serving(tmp_path):
    async def work():
        add_version(tmp_path, "m", 1, 1.0, QUICK)
        models = await started(tmp_path)
        file = add_version(tmp_path, "m", 2, 2.0) / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-5] ^= 1
        file.write_bytes(data)
        with pytest.raises(WorkerError, match=r"2/model.safetensors"):
            await models.load("m")
        file.write_bytes(data[:100])
        with pytest.raises(WorkerError, match=r"2/model.safetensors"):
            await models.load("m")
        file.unlink()
        with pytest.raises(RepositoryError, match=r"m/2: no model in it; expected model.safetensors"):
            await models.load("m")
        (tmp_path / "m" / "config.json").write_text('{"max_batch_sise": 4}')
        with pytest.raises(RepositoryError, match=r"m/config.json: max_batch_sise is no key"):
            await models.load("m")
        assert await answer(models) == (1, 1.0)
        await models.close()
        # A first start with a corrupt newest version takes the one before.
        (tmp_path / STATE).unlink()
        (tmp_path / "m" / "config.json").unlink()
        models = await started(tmp_path)
        assert await answer(models) == (1, 1.0) and "no model in it" in switch_of(models).refused[2]
        await models.close()

    run(work())


def test_a_full_disk_stops_the_switch_and_not_the_server(tmp_path, monkeypatch):
    async def work():
        add_version(tmp_path, "m", 1, 1.0, QUICK)
        models = await started(tmp_path)
        add_version(tmp_path, "m", 2, 2.0)
        real = Repository.write_state
        full = {"m": True}

        def write(self, switches):
            if full["m"]:
                monkeypatch.setattr("warptape.serve.repository.replace_file", _no_space)
            else:
                monkeypatch.undo()
                monkeypatch.setattr(Repository, "write_state", write)
            real(self, switches)

        monkeypatch.setattr(Repository, "write_state", write)
        with pytest.raises(RepositoryError, match=r"state.json: cannot be written .*No space left"):
            await models.load("m")
        assert await answer(models) == (1, 1.0) and switch_of(models) == RolloutState(current=1)
        full["m"] = False
        await models.load("m")
        await until(lambda: switch_of(models).current == 2)
        full["m"] = True
        assert await models.rollback("m") == 1  # at once, whatever the disk does
        assert await answer(models) == (1, 1.0)
        assert json.loads((tmp_path / STATE).read_text())["models"]["m"]["current"] == 2
        full["m"] = False  # it is written as soon as there is room
        await until(lambda: json.loads((tmp_path / STATE).read_text())["models"]["m"]["current"] == 1)
        await models.close()

    run(work())


def _no_space(path, pieces):
    raise OSError(28, "No space left on device", path)


def test_errors_roll_back_by_themselves(tmp_path):
    async def work():
        add_version(tmp_path, "m", 1, 1.0, QUICK)
        models = await started(tmp_path)
        add_version(tmp_path, "m", 2, 2.0)
        await models.load("m")
        bad = models._models["m"].versions[2]

        async def fail(*_):
            raise WorkerError("m: broken")

        bad.infer = fail  # type: ignore[method-assign]
        failed = 0
        for _ in range(12):
            try:
                await answer(models)
            except WorkerError:
                failed += 1
        assert failed >= 5
        await until(lambda: 2 in switch_of(models).refused)
        assert "requests failed" in switch_of(models).refused[2]
        assert [await answer(models) for _ in range(10)] == [(1, 1.0)] * 10
        await models.close()

    run(work())


def test_a_server_whose_models_are_all_broken_is_not_ready(tmp_path):
    async def work():
        (add_version(tmp_path, "m", 1, 1.0) / "model.safetensors").write_bytes(b"broken")
        models = await started(tmp_path)
        assert not models.ready() and models.names() == []
        add_version(tmp_path, "other", 1, 1.0)
        await models.load("other")
        assert models.ready() and not models.ready("m")
        await models.close()
        empty = await started(tmp_path / "m" / "1")
        assert empty.ready()  # nothing was asked for
        await empty.close()

    run(work())


def test_what_lies_outside_is_refused(tmp_path):
    outside = tmp_path / "outside"
    add_version(outside, "m", 1, 1.0)
    repository = tmp_path / "repository"
    (repository / "m" / "1").mkdir(parents=True)
    os.symlink(outside / "m" / "1" / "model.safetensors", repository / "m" / "1" / "model.safetensors")
    os.symlink(outside / "m", repository / "linked")
    r = Repository(repository)
    with pytest.raises(RepositoryError, match=r"m/1/model.safetensors: leads out of the repository"):
        r.find(r.config("m"), 1)
    with pytest.raises(RepositoryError, match="linked: leads out of the repository"):
        r.versions("linked")
    for name in ("..", "../outside/m", "m/../m", "/etc", "", "a" * 200, ".hidden"):
        with pytest.raises(RepositoryError, match="is no model's name"):
            r.folder(name)


def test_a_state_file_that_cannot_be_read(tmp_path):
    for text in ("{", '{"format": 2, "models": {}}', '{"format": 1, "models": {"m": {}}}', "[]"):
        (tmp_path / STATE).write_text(text)
        with pytest.raises(RepositoryError, match=r"state.json: which versions served cannot be read"):
            Repository(tmp_path).read_state()


def test_unloaded_models_stay_unloaded(tmp_path):
    async def work():
        add_version(tmp_path, "m", 1, 1.0)
        models = await started(tmp_path, control="poll", poll_seconds=0.05)
        await models.unload("m")
        with pytest.raises(ModelNotFoundError):
            await answer(models)
        await asyncio.sleep(0.3)
        assert models.names() == []
        await models.close()
        again = await started(tmp_path)
        assert again.names() == []
        assert await again.load("m") == 1 and await answer(again) == (1, 1.0)
        await again.close()

    run(work())


def test_what_was_wrong_is_read_again_when_it_is_mended(tmp_path):
    """A config, and a version that could not be loaded: while the server runs, and between two runs."""

    async def work():
        add_version(tmp_path, "m", 1, 1.0, {"parameters": {"threads": [1]}})
        folder = add_version(tmp_path, "n", 1, 1.0, wrong=True)
        poll = {"control": "poll", "poll_seconds": 0.05}
        models = await started(tmp_path, **poll)
        assert models.names() == [] and "threads must be a" in models.index()[0]["reason"]
        await models.close()
        again = await started(tmp_path, **poll)  # as it was
        assert again.names() == [] and "samples" in again.index()[1]["reason"]
        await again.close()
        (tmp_path / "m" / "config.json").write_text('{"parameters": {"threads": 1}}')
        shutil.rmtree(folder)
        add_version(tmp_path, "n", 1, 1.0)
        models = await started(tmp_path, **poll)
        assert models.names() == ["m", "n"] and not switch_of(models, "n").refused
        (tmp_path / "m" / "config.json").write_text("{")
        await until(lambda: models.describe()[0]["error"])
        assert await answer(models) == (1, 1.0)  # goes on
        (tmp_path / "m" / "config.json").write_text("{}")
        await until(lambda: not models.describe()[0]["error"])
        # By its parameters alone a version could not be loaded.
        add_version(tmp_path, "p", 1, 1.0, {"parameters": {"no_such": 1}})
        await until(lambda: "p" in models._models and switch_of(models, "p").refused)
        (tmp_path / "p" / "config.json").write_text("{}")
        await until(lambda: "p" in models.names())
        await models.unload("p")
        await models.close()
        models = await started(tmp_path, **poll)
        assert models.names() == ["m", "n"]  # it was unloaded by request
        await models.close()

    run(work())


def test_samples_within_tolerance():
    a = np.array([1.0, 100.0], np.float32)
    assert difference(a, a + 0.05, 1e-3) is None
    assert "off by 0.2" in difference(a, a + 0.2, 1e-3)
    assert "expected" in difference(a, a[:1], 1e-3) and "expected" in difference(
        a, a.astype(np.float64), 1e-3
    )
    nan = np.array([np.nan, 1.0], np.float32)
    assert difference(nan, nan, 1e-3) is None and "NaN" in difference(nan, np.ones(2, np.float32), 1e-3)
    assert difference(np.array([1, 2]), np.array([1, 3]), 1.0) == "other values than stored"


def test_programs_take_their_parameters(tmp_path):
    """optimize: false keeps every bit of the exported program; what is unknown is refused."""
    wt.manual_seed(0)
    conv = wt.nn.Sequential(wt.nn.Conv2d(3, 8, 3), wt.nn.BatchNorm2d(8), wt.nn.ReLU()).eval()
    conv[1].running_var.fill_(0.3)
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    x = wt.rand(2, 3, 8, 8)
    save(export(conv, (x,)), folder / "model.safetensors")
    expected = conv(x).detach().numpy()

    async def answered(parameters):
        (tmp_path / "m" / "config.json").write_text(json.dumps({"parameters": parameters}))
        models = await started(tmp_path)
        try:
            async with models.lease("m") as v:
                return (await v.infer(InferRequest({"input_0": x.numpy()})))["output_0"]
        finally:
            await models.close()

    assert np.array_equal(run(answered({"optimize": {"string_value": "false"}, "threads": "1"})), expected)
    assert np.allclose(run(answered({})), expected, atol=1e-5)
    for wrong in ({"optimize": "perhaps"}, {"treads": 1}):
        (tmp_path / STATE).unlink()
        with pytest.raises(ModelUnavailableError, match=r"optimize must be|unknown parameters treads"):
            run(answered(wrong))


# ---- the fault runs, shortened ----


def test_switches_under_load(tmp_path):
    report = faults.switches(tmp_path, count=3)
    assert report["failed"] == 0 and report["wrong"] == 0 and report["answered"] > 20
    assert report["switches"] == 3 and report["versions with metrics"] == 2


def test_mutated_requests(tmp_path):
    add_version(tmp_path, "scale", 1, 2.0, {"max_batch_size": 16, "dynamic_batching": {}})
    with kserve_server.Running(tmp_path) as running:
        report = faults.mutated(running, 1500)
    assert report["server errors"] == [] and report["answered"] == 1500 and report["good after"]


def test_the_checker_finds_a_wrong_version_and_a_500(tmp_path):
    """A version whose answers are another's, and a handler that fails, are found."""
    add_version(tmp_path, "scale", 1, 3.0)
    with kserve_server.Running(tmp_path) as running:
        assert not faults.good(running.port, "scale", factor=2.0)
        assert faults.good(running.port, "scale", factor=3.0)
        running.metrics.of = None  # what every infer calls
        report = faults.mutated(running, 200)
    assert report["server errors"]
