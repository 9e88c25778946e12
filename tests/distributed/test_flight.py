"""The flight record: when it is written, by whom, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import warptape as wt
from launched import LAUNCHER, launch, started, until
from time_limits import seconds
from warptape import distributed as dist
from warptape._C import _distributed as _C


def dumps_in(folder: Path) -> dict[int, dict]:
    return {d["rank"]: d for d in (json.loads(f.read_text()) for f in folder.glob("flight_*.json"))}


def test_keeps_the_last_2000_calls(tmp_path, monkeypatch):
    monkeypatch.setenv("WARPTAPE_FLIGHT_DIR", str(tmp_path))

    def body():
        for _ in range(2100):
            dist.barrier()
        return _C._dump_flight_record("for a test")

    (name,) = dist.simulate(1, body)
    dump = json.loads(Path(name).read_text())
    assert dump["reason"] == "for a test" and dump["failure"] == ""
    assert [e["sequence"] for e in dump["entries"]] == list(range(101, 2101))
    assert [e["id"] for e in dump["entries"]] == list(range(101, 2101))


def test_a_shared_folder(tmp_path, monkeypatch):
    """Links that somebody else put where the record is written lead to nothing that is overwritten."""
    monkeypatch.setenv("WARPTAPE_FLIGHT_DIR", str(tmp_path))
    precious = tmp_path / "precious"
    precious.write_text("kept")

    def body():
        name = Path(_C._dump_flight_record("first"))
        for planted in (name, name.with_name(name.name + ".partial")):
            planted.unlink(missing_ok=True)
            planted.symlink_to(precious)
        assert _C._dump_flight_record("second") == str(name)
        return name

    (name,) = dist.simulate(1, body)
    assert precious.read_text() == "kept"
    assert not name.is_symlink() and json.loads(name.read_text())["reason"] == "second"
    assert name.stat().st_mode & 0o777 == 0o600


def test_says_who_did_what_where():
    def body():
        pair = dist.new_group([0, 1])
        dist.all_reduce(wt.ones(2, 3, dtype=wt.int64), dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            dist.send(wt.ones(4), 1, group=pair, tag=7)
        else:
            dist.recv(wt.zeros(4), group=pair, tag=7)
            time.sleep(0.02)
        mine = wt.zeros(5)
        dist.reduce_scatter(mine, [wt.ones(5)] * 2, group=pair)
        rank = dist.get_rank()
        dist.all_to_all([wt.empty(rank), wt.empty(rank)], [wt.ones(0), wt.ones(1)], group=pair)
        dist.barrier(pair)
        return _C._dump_flight_record("")

    before = time.time()
    names = dist.simulate(2, body)
    first, second = (json.loads(Path(name).read_text()) for name in names)
    assert first["groups"] == {"world": [0, 1], "group1": [0, 1]}
    assert (first["rank"], second["rank"], first["world_size"], first["pid"]) == (0, 1, 2, os.getpid())
    fields = ("group", "sequence", "op", "root", "tag", "call", "state")
    assert [tuple(e[f] for f in fields) for e in first["entries"]] == [
        ("world", 1, "all_reduce", 0, 0, "all_reduce(int64[2, 3], max)", "completed"),
        ("group1", 0, "send", 1, 7, "send(float32[4], to rank 1, tag 7)", "completed"),
        ("group1", 1, "reduce_scatter", 0, 0, "reduce_scatter(float32[5], sum)", "completed"),
        ("group1", 2, "all_to_all", 0, 0, "all_to_all(float32)", "completed"),
        ("group1", 3, "barrier", 0, 0, "barrier()", "completed"),
    ]
    assert [e["call"] for e in second["entries"]] == [
        "all_reduce(int64[2, 3], max)",
        "recv(float32[4], from any rank, tag 7)",
        "reduce_scatter(float32[5], sum)",
        "all_to_all(float32)",
        "barrier()",
    ]
    assert [e["root"] for e in second["entries"]] == [0, -1, 0, 0, 0]  # -1: from any rank
    for entry in first["entries"] + second["entries"]:
        assert __file__ in entry["site"] and entry["site"].endswith(" in body")
        assert before <= entry["queued"] <= entry["ended"] <= time.time()


def test_every_rank_dumps_when_one_is_late(tmp_path):
    """Those that wait, each once, and, asked by one of them, the late one."""
    texts: dict[int, list[str]] = {}

    def body():
        dist.barrier()
        if dist.get_rank() == 1:
            # Two time limits of the others, on a machine that has other work.
            until(lambda: [len(each) for each in texts.values()] == [2, 2] and dumps_in(tmp_path).get(1), 60)
            return
        for _ in range(2):
            with pytest.raises(dist.DistBackendError) as caught:
                dist.all_reduce(wt.ones(3))
            texts.setdefault(dist.get_rank(), []).append(str(caught.value))

    dist.simulate(3, body, timeout=timedelta(seconds=seconds(3)))
    for rank in (0, 2):
        assert all(
            text.endswith(f"\nflight record: {tmp_path}/flight_store_rank{rank}.json") for text in texts[rank]
        )
        assert "timed out waiting for rank 1" in texts[rank][0]
    found = dumps_in(tmp_path)
    assert sorted(found) == [0, 1, 2]
    assert [e["state"] for e in found[1]["entries"]] == ["completed"]
    assert [e["op"] for e in found[0]["entries"]][:2] == ["barrier", "all_reduce"]
    assert found[0]["entries"][1]["state"] == "failed" and "timed out" in found[0]["failure"]
    assert not list(tmp_path.glob("*.partial"))


def test_a_receive_that_is_late_dumps(tmp_path):
    def body():
        if dist.get_rank() == 1:
            until(lambda: sorted(dumps_in(tmp_path)) == [0, 1])
        else:
            with pytest.raises(dist.DistBackendError, match=r"timed out(.|\n)*flight record: "):
                dist.recv(wt.zeros(3), 1)

    dist.simulate(2, body, timeout=timedelta(seconds=0.5))


def test_a_world_that_was_left_does_not_dump(tmp_path):
    kept = []  # as an uncollected cycle would
    dist.simulate(4, lambda: kept.append(dist.get_default_group()))
    test_every_rank_dumps_when_one_is_late(tmp_path)


def test_nothing_is_written_for_what_its_error_explains(tmp_path):
    def differ():
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            dist.all_reduce(wt.ones(2 + dist.get_rank()))

    def raise_one():
        if dist.get_rank() == 1:
            raise KeyError("here")
        dist.barrier()

    dist.simulate(2, differ)
    with pytest.raises(dist.RankFailed, match="rank 1 of 2 raised KeyError"):
        dist.simulate(2, raise_one)
    assert list(tmp_path.iterdir()) == []


WAITING = """
import os, signal, sys, time
import warptape as wt
from warptape import distributed as dist
from datetime import timedelta
{before}
dist.init_process_group()
dist.all_reduce(wt.ones(2))
dist.get_default_group()._set_timeout(timedelta(seconds={limit}))
os.write(1, b"%d\\n" % os.getpid())  # in one piece
if dist.get_rank() == 1:
    time.sleep(60)
dist.broadcast(wt.ones(3), 0)
"""


def script(folder: Path, limit: float = 60, before: str = "") -> Path:
    path = folder / "waiting.py"
    path.write_text(WAITING.format(limit=limit, before=before))
    return path


def test_sigusr2_to_the_launcher_dumps_every_rank_and_ends_none(tmp_path):
    flights = tmp_path / "flights"
    flights.mkdir()
    command = [*LAUNCHER, "--nproc-per-node=2", str(script(tmp_path))]
    with started(command, WARPTAPE_FLIGHT_DIR=str(flights)) as job:
        pids = [int(job.process.stdout.readline()) for _ in range(2)]
        until(lambda: len(job.left()) >= 3)
        for _ in range(2):
            for file in flights.iterdir():
                file.unlink()
            time.sleep(0.2)
            os.kill(job.pid, signal.SIGUSR2)
            until(lambda: len(list(flights.glob("*.json"))) == 2)
        found = dumps_in(flights)
        assert sorted(found[r]["pid"] for r in range(2)) == sorted(pids)
        assert {d["reason"] for d in found.values()} == {"SIGUSR2"}
        assert [(e["op"], e["state"]) for e in found[0]["entries"]] == [
            ("all_reduce", "completed"),
            ("broadcast", "started"),
        ]
        assert [(e["op"], e["state"]) for e in found[1]["entries"]] == [("all_reduce", "completed")]
        assert job.process.poll() is None and len(set(pids) & set(job.left())) == 2


def test_a_late_process_is_asked_for_its_dump(tmp_path):
    code, _, err = launch("--nproc-per-node=2", "--log-dir", tmp_path / "logs", script(tmp_path, limit=1))
    assert code == 1 and "timed out waiting for rank 1" in err and "flight record: " in err
    (folder,) = {file.parent for file in (tmp_path / "logs").rglob("flight_*.json")}
    found = dumps_in(folder)
    assert sorted(found) == [0, 1]
    assert (found[1]["reason"], found[1]["failure"]) == ("SIGUSR2", "")


def test_a_program_that_has_its_own_sigusr2_is_left_alone(tmp_path):
    own = "signal.signal(signal.SIGUSR2, lambda *_: print('own handler', flush=True))"
    code, out, err = launch("--nproc-per-node=2", script(tmp_path, limit=1, before=own))
    assert code == 1 and "timed out waiting for rank 1" in err
    assert "own handler" not in out
    assert sorted(dumps_in(tmp_path)) == [0]


@pytest.mark.parametrize("folder", [True, False], ids=["with a folder", "without"])
def test_death_is_dumped_where_a_folder_was_named(tmp_path, folder):
    """The error says who died; there is a record for who wants to know more."""
    flights = tmp_path / "flights"
    flights.mkdir()
    die = (
        "if os.environ['RANK'] == '1': time.sleep = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher would be quicker"
    )
    named = {"WARPTAPE_FLIGHT_DIR": str(flights)} if folder else {}
    start = time.monotonic()
    code, _, _ = launch("--nproc-per-node=2", script(tmp_path, before=die), **named)
    assert code != 0 and time.monotonic() - start < seconds(20)
    assert sorted(dumps_in(flights)) == ([0] if folder else [])
    assert not list(tmp_path.glob("flight_*"))
    if folder:
        assert "has died" in dumps_in(flights)[0]["failure"]


BROKEN = """
import sys
import warptape as wt
from warptape import distributed as dist

dist.init_process_group("shm")
rank = dist.get_rank()
if sys.argv[1] == "differs":
    dist.all_reduce(wt.ones(3 + rank))
elif sys.argv[1] == "raises":
    if rank == 1:
        raise ValueError("no such data")
    dist.all_reduce(wt.ones(3))
else:
    try:
        if rank == 1:
            if sys.argv[1] == "leaves":
                sys.exit(0)
            raise ValueError("no such data")
        dist.all_reduce(wt.ones(3))
    finally:
        dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["differs", "raises", "raises and leaves", "leaves"])
def test_what_a_job_that_broke_says(tmp_path: Path, how: str) -> None:
    script, logs = tmp_path / "script.py", tmp_path / "logs"
    script.write_text(BROKEN)
    code, _, errors = launch("--nproc-per-node=2", f"--log-dir={logs}", script, how)
    why = subprocess.run(
        [sys.executable, "-m", "warptape.distributed.diagnose", str(logs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert code == 1 and why.returncode == 0, (errors, why.stderr)
    if how == "differs":
        assert "call 1 is not the same on all ranks" in why.stdout
    else:
        left = " (destroy_process_group)" if how == "leaves" else " after ValueError: no such data"
        assert f"rank 1 has left the group{left}" in errors
        assert f"rank 1 left no dump: it has left the group{left}\n" in why.stdout
    if how == "raises":
        # Told again where rank 1 was stopped while it ended, for it may not have shown its traceback by then.
        told = errors.count('raise ValueError("no such data")')
        assert told == 1 or (told == 2 and "rank 1 failed first: killed by SIGTERM" in errors), errors
