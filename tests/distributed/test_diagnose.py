"""`python -m warptape.distributed.diagnose`: from records written by hand, and from jobs that really hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launched import LAUNCHER, environ, launch, started, until
from warptape.distributed.diagnose import main, ranks_text

NOW = 1_700_000_000.0


def call(op="all_reduce", sequence=1, *, root=0, tag=0, state="completed", group="world", since=5.0, **more):
    peer = "any rank" if root < 0 else f"rank {root}"
    operands = {
        "all_reduce": "float32[4], sum",
        "broadcast": f"float32[4], root {root}",
        "reduce": f"float32[4], sum, root {root}",
        "send": f"float32[4], to {peer}, tag {tag}",
        "recv": f"float32[4], from {peer}, tag {tag}",
    }
    fields = {
        "id": 0,
        "sequence": sequence,
        "group": group,
        "call": f"{op}({operands.get(op, 'float32[4]')})",
        "op": op,
        "root": root,
        "tag": tag,
        "state": state,
        "site": f"train.py:{sequence} in step",
        "queued": NOW - since,
        "ended": 0.0 if state == "started" else NOW - since + (3.0 if state == "failed" else 0.01),
    }
    return {**fields, **more}


class Records:
    """Dumps of a job in a folder."""

    def __init__(self, folder: Path, capsys) -> None:
        self.folder, self.capsys = folder, capsys

    def write(self, rank, calls, size=3, groups=None, job="job", name=None, first_id=1, **more):
        entries = [{**each, "id": i} for i, each in enumerate(calls, first_id)]
        dump = {
            "version": 2,
            "restart": 0,
            "rank": rank,
            "world_size": size,
            "job": job,
            "pid": 100 + rank,
            "time": NOW,
            "reason": "SIGUSR2",
            "failure": "",
            "groups": {"world": list(range(size)), **(groups or {})},
            "entries": entries,
            **more,
        }
        path = self.folder / (name or f"flight_{job}_rank{rank}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dump))
        return path

    def diagnose(self, *paths):
        """(exit code, what it said)"""
        code = main([str(p) for p in paths or [self.folder]])
        out = self.capsys.readouterr()
        return code, out.out + out.err


@pytest.fixture
def records(tmp_path, capsys):
    return Records(tmp_path / "flights", capsys)


def test_ranks_are_listed_shortly():
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([4, 1, 2, 7, 8, 0]) == "ranks 0-2, 4, 7, 8"


def test_names_who_did_not_come_and_where_it_was(records):
    waits = call("broadcast", 2, state="started", root=1)
    records.write(0, [call(), waits])
    records.write(1, [call(), waits])
    records.write(2, [call(since=7.01)])
    code, text = records.diagnose()
    assert code == 0
    assert "group world: call 2 was not made by rank 2\n" in text
    assert "ranks 0, 1 wait in broadcast(float32[4], root 1) at train.py:2 in step\n  for 5.0 s" in text
    assert (
        "rank 2 is in no call since 7.0 s; its last was all_reduce(float32[4], sum) at train.py:1 in step"
        in text
    )
    assert text.endswith("=> all wait for rank 2\n")


def test_a_rank_without_a_record_is_named(records):
    records.write(0, [call(state="failed")], failure="all_reduce ...: rank 2 (process 7) has died\nmore")
    records.write(1, [call(state="failed")])
    code, text = records.diagnose()
    assert code == 0
    assert "no dump of rank 2\n" in text and "reported: all_reduce ...: rank 2 (process 7) has died\n" in text
    assert "rank 2 left no dump: it has died" in text and text.endswith("=> all wait for rank 2\n")


@pytest.mark.parametrize("said", ["broadcast(float32[4], root 0)", "all_reduce(int64[4], sum)"])
def test_a_call_that_differs(records, said):
    for rank in range(3):
        other = {"call": said} if rank == 1 else {}
        records.write(rank, [call(), call(sequence=2, state="failed", **other)])
    code, text = records.diagnose()
    assert code == 0
    assert "group world: call 2 is not the same on all ranks\n" in text
    assert (
        f"  rank 1: {said} at train.py:2" in text and "  ranks 0, 2: all_reduce(float32[4], sum) at" in text
    )
    assert text.endswith("=> look at rank 1\n")


def test_roots_that_differ_between_two_ranks_blame_both(records):
    for rank in range(2):
        records.write(rank, [call("reduce", root=rank, state="failed")], size=2)
    code, text = records.diagnose()
    assert code == 0 and "root 0" in text and "root 1" in text and text.endswith("=> look at ranks 0, 1\n")


def test_a_call_left_out_or_too_many(records):
    a, b, c = (call(op, state="started") for op in ("all_reduce", "broadcast", "all_gather"))
    number = lambda calls: [{**each, "sequence": i} for i, each in enumerate(calls, 1)]
    records.write(0, number([a, b, c]))
    records.write(1, number([a, b, c]))
    records.write(2, number([a, c]))
    assert "rank 2 seems to have left out broadcast(" in records.diagnose()[1]
    records.write(2, number([{**b, "call": "broadcast(float32[7], root 0)"}, a, b]))
    assert "rank 2 seems to have made one call more: broadcast(float32[7]" in records.diagnose()[1]


def test_the_chain_leads_to_whom_nobody_waits_behind(records):
    """0 waits for 1 in one group, 1 for 2 in another; 2 waits for none."""
    groups = {"a": [0, 1], "b": [1, 2]}
    records.write(0, [call(group="a", state="started", since=9)], groups=groups)
    records.write(1, [call("broadcast", group="b", state="started", since=5)], groups=groups)
    records.write(2, [], groups=groups)
    code, text = records.diagnose()
    assert code == 0 and text.endswith("=> all wait for rank 2\n")
    assert text.index("group b: call 1 was not made by rank 2") < text.index("group a: call 1 was not made")
    assert "rank 2 has made no call" in text and "rank 1 waits in broadcast(float32[4], root 0)" in text


def test_a_circle_has_no_culprit_but_is_found(records):
    groups = {"a": [0, 1], "b": [0, 1]}
    records.write(0, [call(group="a", state="started")], size=2, groups=groups)
    records.write(1, [call(group="b", state="started")], size=2, groups=groups)
    code, text = records.diagnose()
    assert code == 0 and "=> deadlock: ranks 0, 1 wait for each other" in text


def test_send_and_receive_without_the_other_side(records):
    at = {"sequence": 0, "state": "queued", "ended": 0.0}
    done = {"sequence": 0, "state": "completed"}
    records.write(0, [call("send", root=1, **done), call("send", root=1, **done)])
    records.write(
        1, [call("recv", root=0, **done), call("recv", root=-1, **done), call("recv", root=2, tag=5, **at)]
    )
    records.write(2, [call("send", root=1, tag=4, **at)])
    code, text = records.diagnose()
    assert code == 0
    assert "the send of rank 2 for a recv of rank 1 is not there" in text
    assert "rank 1 waits in recv(float32[4], from rank 2, tag 5)" in text
    assert "the recv of rank 1 for a send of rank 2 is not there" in text
    records.write(2, [call("send", root=1, tag=5, **at)])
    code, text = records.diagnose()
    assert code == 1, text


def test_a_job_at_work_is_left_alone(records):
    records.write(0, [call(), call(sequence=2, state="started", since=0.2)])
    records.write(1, [call()])
    records.write(2, [call(), call(sequence=2), call(sequence=3, state="started", since=0.1)])
    assert records.diagnose()[0] == 1
    records.write(2, [call()])
    code, text = records.diagnose()
    assert code == 1 and "the job may be running normally" in text


def test_records_that_begin_late_are_compared_where_they_overlap(records):
    old = [call(sequence=s) for s in range(1, 5)]
    last = call(sequence=5, state="started")
    records.write(0, [*old[2:], last], first_id=2003)
    records.write(1, [*old[3:], last], first_id=2004)
    records.write(2, old, first_id=2001)
    code, text = records.diagnose()
    assert code == 0 and "call 5 was not made by rank 2" in text


def test_the_last_restart_and_the_newest_of_each_rank_count(records):
    records.write(0, [call(state="started")], name="old/flight_job_rank0.json", time=NOW - 60)
    records.write(1, [], name="old/flight_job_rank1.json", time=NOW + 60)
    for rank in range(3):
        records.write(rank, [call()], restart=1)
    assert records.diagnose()[0] == 1


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "not JSON, or cut off"),
        ("[" * 100_000, "not JSON, or cut off"),
        ("[]", "expected a field 'version' of type int"),
        ('{"version": 9}', "a flight record of version 9; this reads version 2"),
        ('{"version": 2}', "not a flight record: expected a field"),
        ("\xff\xfe", "not text"),
    ],
    ids=["cut off", "deep", "list", "version", "fields", "bytes"],
)
def test_files_that_are_no_records(records, tmp_path, text, said):
    file = tmp_path / "x.json"
    file.write_bytes(text.encode("latin-1"))
    code, told = records.diagnose(file)
    assert code == 2 and said in told and str(file) in told and "\n" not in told.strip()


def test_entries_that_are_none(records):
    for broken in ({"state": "lost"}, {"call": ["4"]}, {"op": 3}):
        code, text = records.diagnose(records.write(0, [{**call(), **broken}]))
        assert code == 2 and "not a flight record" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"world_size": 10**9},
        {"world_size": 0},
        {"rank": 3},
        {"rank": -1},
        {"pid": 2**64},
        {"time": float("nan")},
        {"time": float("inf")},
        {"time": 10**400},
        {"groups": {"world": 3}},
        {"groups": {"world": [0, 1, 10**9]}},
        {"groups": {"world": [0, 1, True]}},
        {"groups": {"world": [0, 1, 1]}},
    ],
    ids=repr,
)
def test_fields_that_no_rank_writes(records, fields):
    path = records.write(0, [call()])
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    code, text = records.diagnose(path)
    assert code == 2 and "not a flight record" in text and text.count("\n") == 1


def test_what_is_no_file_or_too_large(records, tmp_path):
    os.mkfifo(tmp_path / "flight_pipe.json")
    code, text = records.diagnose(tmp_path / "flight_pipe.json")
    assert code == 2 and "not a file" in text
    with open(tmp_path / "flight_large.json", "wb") as file:
        file.truncate(1 << 40)
    code, text = records.diagnose(tmp_path / "flight_large.json")
    assert code == 2 and "bytes" in text


def test_many_calls_of_a_large_job_take_no_time(records):
    calls = [call("recv", 0, root=i, tag=i, state="started") for i in range(1, 5000)]
    records.write(0, calls, size=100_000)
    begin = time.monotonic()
    assert records.diagnose()[0] == 0
    assert time.monotonic() - begin < 20


def test_nothing_to_read(records, tmp_path):
    code, text = records.diagnose(tmp_path)
    assert code == 2 and "no flight_*.json in this folder" in text
    code, text = records.diagnose(tmp_path / "absent.json")
    assert code == 2 and "No such file" in text
    records.write(0, [], job="one")
    records.write(0, [], job="two")
    code, text = records.diagnose()
    assert code == 2 and "dumps of 2 jobs (one of 3 ranks; two of 3 ranks)" in text


def test_what_a_record_says_cannot_move_the_cursor(records):
    records.write(0, [call(state="started", site="\x1b[2J here")])
    code, text = records.diagnose()
    assert code == 0 and "\x1b" not in text and "?[2J here" in text


JOB = """
import os, sys, time
import warptape as wt
from warptape import distributed as dist
from datetime import timedelta
dist.init_process_group()
rank, x = dist.get_rank(), wt.ones(4)
pairs = [dist.new_group([0, 1]) for _ in range(2)]
dist.all_reduce(x)
for group in (dist.get_default_group(), *pairs):
    group._set_timeout(timedelta(seconds=0.8))
{body}
"""


def job(tmp_path: Path, body: str) -> tuple[int, str, str]:
    """Runs it on two ranks; the launcher's exit code and stderr, and what `diagnose` then says."""
    flights = tmp_path / "flights"
    flights.mkdir()
    path = tmp_path / "job.py"
    path.write_text(JOB.format(body=body))
    code, _, err = launch("--nproc-per-node=2", path, WARPTAPE_FLIGHT_DIR=str(flights))
    diagnose = [sys.executable, "-m", "warptape.distributed.diagnose", str(flights)]
    told = subprocess.run(diagnose, env=environ(), capture_output=True, text=True, timeout=60)
    assert told.stderr == "" and told.returncode == 0
    return code, err, told.stdout


def test_a_rank_that_skips_a_call(tmp_path):
    body = "if rank == 0:\n    dist.broadcast(x, 0)\ntime.sleep(30)"
    code, err, told = job(tmp_path, body)
    assert code == 1 and "timed out waiting for rank 1" in err
    assert "group world: call 2 was not made by rank 1" in told
    assert f"rank 0 waits in broadcast(float32[4], root 0) at {tmp_path}/job.py:13 in <module>" in told
    assert f"its last was all_reduce(float32[4], sum) at {tmp_path}/job.py:9 in <module>" in told
    assert told.endswith("=> all wait for rank 1\n")


def test_groups_called_in_another_order(tmp_path):
    body = "for pair in pairs if rank == 0 else pairs[::-1]:\n    dist.all_reduce(x, group=pair)"
    _, err, told = job(tmp_path, body)
    assert "timed out" in err
    assert "group group1: call 1 was not made by rank 1" in told
    assert "group group2: call 1 was not made by rank 0" in told
    assert "=> deadlock: ranks 0, 1 wait for each other" in told


def test_a_stopped_rank(tmp_path):
    """It writes nothing; the others do, and say so."""
    flights = tmp_path / "flights"
    flights.mkdir()
    path = tmp_path / "job.py"
    body = 'os.write(1, b"%d %d\\n" % (rank, os.getpid()))\nwhile True:\n    dist.all_reduce(x)'
    path.write_text(JOB.format(body=body))
    with started([*LAUNCHER, "--nproc-per-node=2", str(path)], WARPTAPE_FLIGHT_DIR=str(flights)) as run:
        pids = dict(map(int, run.process.stdout.readline().split()) for _ in range(2))
        time.sleep(0.1)
        os.kill(pids[1], signal.SIGSTOP)
        until(lambda: list(flights.glob("*.json")))
        until(lambda: not Path(f"/proc/{pids[0]}/status").exists() or run.process.poll() is not None, 10)
    diagnose = [sys.executable, "-m", "warptape.distributed.diagnose", *map(str, flights.glob("*.json"))]
    told = subprocess.run(diagnose, env=environ(), capture_output=True, text=True, timeout=60)
    assert told.returncode == 0
    assert f"rank 1 (process {pids[1]}, stopped) was last in call" in told.stdout
    assert "no dump of rank 1" in told.stdout and told.stdout.endswith("=> all wait for rank 1\n")
