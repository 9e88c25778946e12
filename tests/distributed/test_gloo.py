"""The gloo plugin: the same table as shared memory, faults of real processes, launchers as hosts."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import collective_table
import pytest
import warptape.distributed as dist
from launched import CAUGHT, LAUNCHER, SECRET, Hosts, Job, free_port, launch, started, until

pytestmark = pytest.mark.skipif(
    not dist.is_gloo_available(), reason="built without gloo (apt-get install libgloo-dev)"
)
GLOO = {"WARPTAPE_GLOO": "1", "OMP_NUM_THREADS": "1"}
PREAMBLE = """
import os, signal, sys, threading, time
from datetime import timedelta
import warptape as wt
import warptape.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
rank, ranks = dist.get_rank(), dist.get_world_size()
assert dist.get_default_group()._backend_name(False) == "gloo"
signal.signal(signal.SIGTERM, lambda *_: None)  # the launcher's, when a rank died
dist.barrier()

def say(*words):  # in one write: the launcher's python -u makes print write in pieces, and lines of ranks mix
    sys.stdout.write(" ".join(map(str, words)) + chr(10))
"""


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "job.py"
    path.write_text(PREAMBLE + CAUGHT + body)
    return path


def run(tmp_path: Path, body: str, ranks: int = 2) -> list[str]:
    """The errors by rank, as "rank took SECONDS text"."""
    _, out, err = launch("--nproc-per-node", ranks, script(tmp_path, body), **GLOO)
    found = sorted(line for line in out.splitlines() if " took " in line or "no error" in line)
    assert found, err
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_table(ranks: int) -> None:
    code, out, err = launch("--nproc-per-node", ranks, Path(collective_table.__file__), **GLOO)
    assert code == 0, err
    assert f"{len(collective_table.CHECKS)} checks on {ranks} ranks" in out


MISMATCHES = {
    "op": (
        "dist.all_reduce(wt.ones(3)) if rank else dist.broadcast(wt.ones(3), 0)",
        ["rank 0: broadcast(float32[3], root 0)", "rank 1: all_reduce(float32[3], sum)"],
    ),
    "shape": (
        "dist.all_reduce(wt.ones(2, 3) if rank else wt.ones(3, 2))",
        ["float32[3, 2]", "float32[2, 3]"],
    ),
    "size": ("dist.all_reduce(wt.ones(100_000 if rank else 3))", ["float32[100000]", "float32[3]"]),
    "dtype": ("dist.all_reduce(wt.ones(3).int() if rank else wt.ones(3))", ["float32[3]", "int32[3]"]),
    "root": ("dist.broadcast(wt.ones(3), rank)", ["root 0", "root 1"]),
    "splits": (
        "dist.all_to_all([wt.empty(2), wt.empty(3)], [wt.ones(2), wt.ones(2)])",
        ["sends 8 bytes to rank", "which expects 12"],
    ),
}


def test_mismatch_is_named_on_every_rank(tmp_path: Path) -> None:
    body = "".join(f"caught(lambda: {call})\n" for call, _ in MISMATCHES.values())
    found = run(tmp_path, body + "t = wt.ones(1)\ndist.all_reduce(t)\nassert t.item() == ranks\n")
    assert len(found) == 2 * len(MISMATCHES) and not any("no error" in line for line in found)
    for name, (_, texts) in MISMATCHES.items():
        assert sum(all(text in line for text in texts) for line in found) == 2, (name, found)


def test_receive_that_does_not_fit(tmp_path: Path) -> None:
    body = "caught(lambda: dist.recv(wt.empty(5), 1) if rank == 0 else dist.send(wt.ones(300_000), 0))"
    for line in run(tmp_path, body):
        assert "sends 1200000 bytes of float32" in line


@pytest.mark.parametrize(
    "call",
    [
        "dist.all_reduce(wt.ones(100_000))",
        "dist.recv(wt.empty(3), 1)",
        "dist.recv(wt.empty(3))",
        "dist.send(wt.ones(10_000_000), 1)",
    ],
)
def test_killed_rank_is_named(tmp_path: Path, call: str) -> None:
    body = f"""
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
caught(lambda: {call})
"""
    found = run(tmp_path, body, ranks=3 if "all_reduce" in call else 2)
    for line in found:
        assert "rank 1 (process" in line and "has died" in line, found
        assert float(line.split()[2]) < 5, found


def test_late_rank_is_named(tmp_path: Path) -> None:
    body = """
if rank == 1:
    time.sleep(3)
caught(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1)) if rank == 0 else dist.barrier())
"""
    found = run(tmp_path, body, ranks=3)
    assert len(found) == 3
    for line in found:
        assert "timed out waiting for rank 1; rank 1 (process" in line, found
        assert "was last in call 1, barrier" in line, found


def test_rank_that_left_is_named(tmp_path: Path) -> None:
    body = """
if rank == 1:
    dist.destroy_process_group()
else:
    caught(lambda: dist.all_reduce(wt.ones(3)))
"""
    found = run(tmp_path, body, ranks=3)
    assert len(found) == 2 and all("rank 1 has left the group" in line for line in found), found


def test_the_exception_that_a_rank_left_after_is_named(tmp_path: Path) -> None:
    body = """
if rank == 1:
    try:
        raise ValueError("no data")
    except ValueError:
        dist.destroy_process_group()
else:
    caught(lambda: dist.all_reduce(wt.ones(3)))
"""
    found = run(tmp_path, body, ranks=3)
    assert len(found) == 2, found
    assert all("rank 1 has left the group after ValueError: no data" in line for line in found), found


def test_abort_reaches_who_waits_for_others(tmp_path: Path) -> None:
    """Rank 1 aborts while rank 0 waits for rank 2, which computes."""
    body = """
if rank == 1:
    time.sleep(0.5)
    dist.abort_process_group()
    time.sleep(2)
elif rank == 0:
    caught(lambda: dist.recv(wt.empty(3), 2))
else:
    time.sleep(2)
    caught(lambda: dist.send(wt.ones(3), 0))
"""
    found = run(tmp_path, body, ranks=3)
    assert len(found) == 2 and all("rank 1 aborted the group" in line for line in found)
    assert float(found[0].split()[2]) < 1.5, found


def test_buffered_send_is_delivered_by_who_leaves(tmp_path: Path) -> None:
    body = """
if rank == 1:
    dist.send(wt.full((60_000,), 7.0), 0)
    dist.destroy_process_group()
else:
    time.sleep(1)
    t = wt.empty(60_000)
    dist.recv(t, 1)
    say(0, "took", t.sum().item())
"""
    assert run(tmp_path, body) == ["0 took 420000.0"]


def node(number: int, endpoint: str, *arguments: object, nodes: int = 2) -> list[str]:
    flags = [f"--nnodes={nodes}", f"--node-rank={number}", f"--rdzv-endpoint={endpoint}"]
    return [*LAUNCHER, *flags, *map(str, arguments)]


def test_two_launchers() -> None:
    """What stands between them is loopback; that they are one host is not seen for WARPTAPE_GLOO."""
    table = Path(collective_table.__file__)
    endpoint = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(started(node(n, endpoint, table), WARPTAPE_SECRET=SECRET, **GLOO))
            for n in (0, 1)
        ]
        results = [job.finish(60) for job in jobs]
    assert [code for code, _, _ in results] == [0, 0], results
    assert f"{len(collective_table.CHECKS)} checks on 2 ranks" in results[0][1]


def on_hosts(stack: ExitStack, hosts: list[str], *arguments: object) -> list[Job]:
    """A launcher on each host."""
    return [
        stack.enter_context(
            started(
                ["ip", "netns", "exec", name, *node(n, "10.77.0.1:29500", *arguments, nodes=len(hosts))],
                WARPTAPE_SECRET=SECRET,
                OMP_NUM_THREADS="1",
            )
        )
        for n, name in enumerate(hosts)
    ]


@pytest.mark.parametrize("count", [2, 4])
def test_network_namespaces(hosts: Hosts, count: int) -> None:
    """Chosen without being asked for: shared memory does not reach from one host to the other."""
    table = Path(collective_table.__file__)
    with ExitStack() as stack:
        jobs = on_hosts(stack, hosts.names[:count], f"--nproc-per-node={4 // count}", table)
        results = [job.finish(120) for job in jobs]
        until(lambda: all(job.left() == [] for job in jobs))
    assert [code for code, _, _ in results] == [0] * count, results
    assert f"{len(collective_table.CHECKS)} checks on 4 ranks" in results[0][1]


TRAINING = """
import os, sys
import warptape as wt
import warptape.distributed as dist
from warptape import nn

dist.init_process_group()
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
wt.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 3, dtype=wt.float64))
optimizer = wt.optim.SGD(model.parameters(), lr=0.1)
x, y = wt.randn(16, 8, dtype=wt.float64), wt.randn(16, 3, dtype=wt.float64)
mine = slice(rank * 16 // dist.get_world_size(), (rank + 1) * 16 // dist.get_world_size())
for step in range(10):
    if step == 5 and rank == 2 and attempt == 0 and "--lose" in sys.argv:
        os._exit(9)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
    optimizer.step()
if rank == 0:
    print(attempt, model.module.weight.sum().item(), flush=True)
dist.destroy_process_group()
"""


def test_a_training_on_four_hosts_survives_the_loss_of_a_rank(hosts: Hosts, tmp_path: Path) -> None:
    """All launchers start again together; the result is that of one process."""
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    alone = subprocess.run([*LAUNCHER, str(path)], capture_output=True, text=True, timeout=60)
    with ExitStack() as stack:
        jobs = on_hosts(stack, hosts.names, "--max-restarts=1", path, "--lose")
        results = [job.finish(120) for job in jobs]
        until(lambda: all(job.left() == [] for job in jobs))
    assert [code for code, _, _ in results] == [0] * 4, results
    attempt, total = results[0][1].split()
    assert attempt == "1"
    assert abs(float(total) - float(alone.stdout.split()[1])) < 1e-12
