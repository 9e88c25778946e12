"""examples/cluster: the stream's position, a run that goes on, the batch script, and the graph on Ray."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pyarrow = pytest.importorskip("pyarrow")
FOLDER = Path(__file__).parents[2] / "examples/cluster"


@pytest.fixture(autouse=True)
def folder_of_the_example(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def write(folder, files=4, rows=50, group=20):
    """Shards whose label is the row's number, so that each can be told from all others."""
    import pyarrow.parquet as parquet

    folder.mkdir(parents=True)
    for i in range(files):
        labels = np.arange(i * rows, (i + 1) * rows)
        pixels = np.random.default_rng(i).random((rows, 64), np.float32)
        table = pyarrow.table({"pixels": list(pixels), "label": labels})
        parquet.write_table(table, folder / f"{i}.parquet", row_group_size=group)


def stream(folder, rank=0, world=1):
    from shards import ParquetStream

    return ParquetStream(folder, 8, rank, world, seed=3)


def labels(s, epoch=0, batch=0):
    s.epoch, s.start = epoch, batch
    return [y.tolist() for _, y in s]


def test_ranks_read_each_row_at_most_once_and_epochs_differ(tmp_path):
    write(tmp_path / "data")
    streams = [stream(tmp_path / "data", rank, 3) for rank in range(3)]
    batches = [labels(s) for s in streams]
    assert {len(b) for b in batches} == {len(streams[0])}
    seen = [y for b in batches for each in b for y in each]
    assert len(seen) == len(set(seen)) == 3 * 8 * len(streams[0])
    alone = [y for each in labels(stream(tmp_path / "data")) for y in each]
    assert sorted(alone) == list(range(200))
    assert labels(stream(tmp_path / "data"), epoch=1) != labels(stream(tmp_path / "data"))


@pytest.mark.parametrize("batch", [1, 5, 13, 24, 25])
def test_the_rest_is_what_an_undisturbed_reader_gets(tmp_path, batch):
    from shards import loader

    write(tmp_path / "data")
    whole = labels(stream(tmp_path / "data"), epoch=2)
    assert labels(stream(tmp_path / "data"), 2, batch) == whole[batch:]
    assert [y.tolist() for _, y in loader(stream(tmp_path / "data"), 2, batch)] == whole[batch:]


def test_wrong_folders_and_too_many_ranks(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run prepare\.py first"):
        stream(tmp_path)
    write(tmp_path / "data", files=1)
    with pytest.raises(ValueError, match="3 row groups are too few for 4 ranks"):
        stream(tmp_path / "data", 0, 4)


def train(tmp_path, name, *more, ranks=2):
    data = [
        "--data",
        str(tmp_path / "digits"),
        "--checkpoints",
        str(tmp_path / name),
        "--epochs=2",
        "--batch-size=16",
    ]
    command = [sys.executable, "-m", "warptape.distributed.run", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*command, str(FOLDER / "train.py"), *data, *more], capture_output=True, text=True, timeout=120
    )


def digits(tmp_path):
    import pyarrow.parquet as parquet

    random = np.random.default_rng(0)
    for part in ("train", "test"):
        (tmp_path / "digits" / part).mkdir(parents=True)
        for i in range(4):
            table = pyarrow.table(
                {"pixels": list(random.random((60, 64), np.float32)), "label": random.integers(0, 10, 60)}
            )
            parquet.write_table(table, tmp_path / "digits" / part / f"{i}.parquet", row_group_size=20)


def test_a_run_that_was_ended_goes_on_to_the_same_parameters(tmp_path):
    """The last line has the sum of all parameters; the interrupted run stopped between two checkpoints."""
    digits(tmp_path)
    whole = train(tmp_path, "whole")
    assert whole.returncode == 0, whole.stderr
    ended = train(tmp_path, "ended", "--save-every=7", "--fail-at=19")
    assert ended.returncode == 17
    resumed = train(tmp_path, "ended", "--save-every=7")
    assert "goes on at epoch 0, batch 14" in resumed.stdout
    assert json.loads(resumed.stdout.splitlines()[-1]) == json.loads(whole.stdout.splitlines()[-1])
    wrong = train(tmp_path, "wrong", "--batch-size=15")
    assert wrong.returncode != 0
    assert "--batch-size 15 does not divide by 2 ranks" in wrong.stderr


def test_the_batch_script_is_a_script_and_starts_the_program(tmp_path):
    """A stand-in for srun runs one task with Slurm's environment."""
    digits(tmp_path)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/srun"
    stub.write_text(
        '#!/bin/sh\nSLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_STEP_ID=0 exec "$@" --epochs=1\n'
    )
    stub.chmod(0o755)
    (tmp_path / "bin/python").symlink_to(sys.executable)
    environment = os.environ | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SHARED": str(tmp_path),
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *sys.path[1:]])),
    }
    script = ["bash", str(FOLDER / "slurm.sh")]
    done = subprocess.run(
        script, env=environment, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["steps"] > 0
    assert (tmp_path / "run-7/model.pt").exists()
    environment.pop("SHARED")
    done = subprocess.run(
        script, env=environment, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "set SHARED to a folder" in done.stderr


def test_ray_starts_the_ranks_again_and_the_graph_runs_what_is_missing(tmp_path):
    """Runs only where ray is installed."""
    pytest.importorskip("ray")
    pytest.importorskip("sklearn")
    command = [sys.executable, str(FOLDER / "dag.py"), "--work", str(tmp_path / "job")]
    first = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert first.returncode == 0, first.stderr[-2000:]
    log = tmp_path / "job/log"
    assert sorted(log.read_text().split()) == ["compress", "evaluate", "prepare", "publish", "train"]
    for stage in ("compress", "publish"):
        (tmp_path / "job" / stage).rename(tmp_path / stage)
    log.unlink()
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    assert log.read_text().split() == ["compress", "publish"]
    launch = [sys.executable, str(FOLDER / "launch_ray.py"), "--retries=1", "--"]
    data = ["--data", str(tmp_path / "job/prepare/digits"), "--checkpoints", str(tmp_path / "run")]
    done = subprocess.run(
        [*launch, *data, "--epochs=1", "--save-every=20", "--fail-at=20"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "goes on at epoch 0, batch 20" in done.stdout, done.stderr[-2000:]
