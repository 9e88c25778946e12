"""The MPI plugin: ranks that mpirun started, which send by MPI what the others send by shared memory."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import collective_table
import pytest
import warptape.distributed as dist
from launched import CAUGHT, LAUNCHER, launch, started, until

HAS_MPI = dist.is_mpi_available()
MPIRUN = shutil.which("mpirun")
needs_mpi = pytest.mark.skipif(not HAS_MPI or MPIRUN is None, reason="no MPI plugin, or no mpirun")
# Open MPI's, and harmless to others: tests run as root in containers, on fewer processors than ranks.
FREE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMP_NUM_THREADS": "1",
}
PREAMBLE = """
import os, signal, sys, time
from datetime import timedelta
import warptape as wt
import warptape.distributed as dist

dist.init_process_group("mpi", timeout=timedelta(seconds=20))
rank, ranks = dist.get_rank(), dist.get_world_size()
assert dist.get_default_group()._backend_name(False) == "mpi" and dist.get_backend() == "mpi"
dist.barrier()

def say(*words):  # in one write, so that lines of ranks do not mix
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

def after_all():  # mpirun ends the others when one leaves a group that failed
    time.sleep(2)
"""


def mpirun(tmp_path: Path, body: str, ranks: int = 2, limit: float = 60) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a script under mpirun; nothing of it may be left."""
    path = tmp_path / "job.py"
    path.write_text(PREAMBLE + CAUGHT + body)
    return start(ranks, path, limit=limit)


def start(ranks: int, *arguments: object, limit: float = 60) -> tuple[int, str, str]:
    assert MPIRUN is not None
    command = [MPIRUN, "-n", str(ranks), sys.executable, *map(str, arguments)]
    with started(command, **FREE) as job:
        result = job.finish(limit)
        until(lambda: job.left() == [])
        return result


def errors(tmp_path: Path, body: str, ranks: int = 2) -> list[str]:
    """The errors by rank, as "rank took SECONDS text"."""
    _, out, err = mpirun(tmp_path, body, ranks)
    found = sorted(line for line in out.splitlines() if " took " in line or "no error" in line)
    assert found, err
    return found


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_table(tmp_path: Path, ranks: int) -> None:
    """All collectives, groups, sends and receives, asynchronous work and objects."""
    body = """
import collective_table as table
for name, check in table.CHECKS.items():
    check()
    dist.barrier()
dist.destroy_process_group()
say(rank, "did", len(table.CHECKS))
"""
    path = f"sys.path.insert(0, {os.path.dirname(collective_table.__file__)!r})\n"
    code, out, err = mpirun(tmp_path, path + body, ranks, limit=120)
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"{r} did {len(collective_table.CHECKS)}" for r in range(ranks)]


@needs_mpi
def test_groups_that_share_ranks(tmp_path: Path) -> None:
    """A group is made while a collective of another is under way, and again after it was destroyed."""
    body = """
for turn in range(3):
    t = wt.ones(200_000)
    work = dist.all_reduce(t, async_op=True)
    left, right = dist.new_group([0, 1]), dist.new_group([2, 1])
    work.wait()
    assert (t == 3).all()
    for group, members in ((left, (0, 1)), (right, (1, 2))):
        t = wt.tensor([float(rank)])
        dist.all_reduce(t, group=group)
        assert t.item() == (sum(members) if rank in members else rank), t
    for group in (left, right):
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
dist.destroy_process_group()
dist.init_process_group("mpi")  # MPI itself begins once
t = wt.ones(1)
dist.all_reduce(t)
say("sum", t.item())
"""
    code, out, err = mpirun(tmp_path, body, 3)
    assert code == 0, err
    assert out.splitlines() == ["sum 3.0"] * 3


@needs_mpi
def test_receives_match_in_order(tmp_path: Path) -> None:
    """Whatever order they are waited for in; a large send is matched by a rank that is in a collective."""
    body = """
if rank == 0:
    dist.send(wt.full((3,), 1.0), 1, tag=5)
    dist.send(wt.full((400_000,), 2.0), 1, tag=5)
    dist.send(wt.full((2,), 3.0), 1, tag=0)
    dist.barrier()
else:
    first, second, third = wt.empty(3), wt.empty(400_000), wt.empty(2)
    works = [dist.irecv(first, tag=5), dist.irecv(second, 0, tag=5), dist.irecv(third, 0)]
    dist.barrier()
    for work in reversed(works):
        work.wait()
    assert (first == 1).all() and (second == 2).all() and (third == 3).all()
    try:
        dist.send(first, 0, tag=-1)
    except ValueError as error:
        say("tag:", error)
dist.destroy_process_group()
"""
    code, out, err = mpirun(tmp_path, body)
    assert code == 0, err
    assert "tag: send: expected a tag from 0 to" in out


MISMATCHES = {
    "op": (
        "dist.all_reduce(wt.ones(3)) if rank else dist.broadcast(wt.ones(3), 0)",
        ["rank 0: broadcast(float32[3], root 0)", "rank 1: all_reduce(float32[3], sum)"],
    ),
    "shape": (
        "dist.all_reduce(wt.ones(2, 3) if rank else wt.ones(3, 2))",
        ["float32[3, 2]", "float32[2, 3]"],
    ),
    "dtype": ("dist.all_reduce(wt.ones(3).int() if rank else wt.ones(3))", ["float32[3]", "int32[3]"]),
    "splits": (
        "dist.all_to_all([wt.empty(2), wt.empty(3)], [wt.ones(2), wt.ones(2)])",
        ["sends 8 bytes to rank", "which expects 12"],
    ),
}


@needs_mpi
def test_mismatch_is_named_on_every_rank(tmp_path: Path) -> None:
    """And the group goes on: mpirun sees a job that ended well."""
    body = "".join(f"caught(lambda: {call})\n" for call, _ in MISMATCHES.values())
    code, out, err = mpirun(tmp_path, body + "t = wt.ones(1)\ndist.all_reduce(t)\nassert t.item() == ranks\n")
    assert code == 0, err
    found = out.splitlines()
    assert len(found) == 2 * len(MISMATCHES) and not any("no error" in line for line in found)
    for name, (_, texts) in MISMATCHES.items():
        assert sum(all(text in line for text in texts) for line in found) == 2, (name, found)


FAULTS = {
    "a receive that does not fit": (
        "caught(lambda: dist.recv(wt.empty(5), 1) if rank == 0 else dist.send(wt.ones(300_000), 0))",
        2,
        "sends 1200000 bytes of float32",
    ),
    "a rank that is late": (
        "if rank == 1:\n    time.sleep(3)\n"
        "limit = timedelta(seconds=1)\n"
        "caught(lambda: dist.barrier() if rank == 1 else dist.monitored_barrier(timeout=limit))",
        3,
        "timed out waiting for rank 1",
    ),
    "a rank that left": (
        "if rank == 1:\n    dist.destroy_process_group()\n"
        "else:\n    caught(lambda: dist.all_reduce(wt.ones(3)))",
        2,
        "rank 1 has left the group",
    ),
    "an abort": (
        "if rank == 1:\n    time.sleep(0.5)\n    dist.abort_process_group()\n"
        "elif rank == 0:\n    caught(lambda: dist.recv(wt.empty(3), 2))\n"
        "else:\n    time.sleep(2)\n    caught(lambda: dist.send(wt.ones(3), 0))",
        2,
        "rank 1 aborted the group",
    ),
}


@needs_mpi
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named(tmp_path: Path, name: str) -> None:
    body, count, text = FAULTS[name]
    ranks = 2 if "fit" in name else 3
    found = errors(tmp_path, body + "\nafter_all()\n", ranks)
    assert len(found) == count and all(text in line for line in found), found
    assert all(float(line.split()[2]) < 5 for line in found), found


@needs_mpi
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit(3)", "1 / 0"])
def test_a_rank_that_fails_ends_the_job(tmp_path: Path, end: str) -> None:
    body = f"""
if rank == 1:
    {end}
dist.all_reduce(wt.ones(100_000))
say("went on")
"""
    code, out, _ = mpirun(tmp_path, body, 3, limit=30)
    assert code != 0 and "went on" not in out


TRAINING = """
from warptape import nn
if {one}:
    dist.destroy_process_group()
    rank, ranks = 0, 1
wt.manual_seed(0)
model = nn.Linear(8, 3, dtype=wt.float64)
wrapped = model if {one} else nn.parallel.DistributedDataParallel(model)
optimizer = wt.optim.SGD(model.parameters(), lr=0.1)
x, y = wt.randn(24, 8, dtype=wt.float64), wt.randn(24, 3, dtype=wt.float64)
mine = slice(rank * 24 // ranks, (rank + 1) * 24 // ranks)
for _ in range(10):
    optimizer.zero_grad()
    nn.functional.mse_loss(wrapped(x[mine]), y[mine]).backward()
    optimizer.step()
say(model.weight.double().sum().item())
"""


@needs_mpi
def test_training_is_that_of_one_process(tmp_path: Path) -> None:
    _, one, err = mpirun(tmp_path, TRAINING.replace("{one}", "True"), 1)
    assert one, err
    code, out, err = mpirun(tmp_path, TRAINING.replace("{one}", "False"), 3)
    assert code == 0, err
    found = [float(line) for line in out.splitlines()]
    assert len(found) == 3 and found[0] == found[1] == found[2]
    assert abs(found[0] - float(one)) < 1e-12


@needs_mpi
def test_another_launcher_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(PREAMBLE)
    code, _, err = launch("--nproc-per-node", 2, path, **FREE)
    assert code != 0 and "mpi: the job has 2 ranks, but MPI knows of this process alone" in err
    assert "mpirun -n 2 python script.py" in err


@needs_mpi
def test_numbers_that_differ_from_mpis_are_an_error(tmp_path: Path) -> None:
    """RANK says the opposite of what mpirun does."""
    path = tmp_path / "job.py"
    swap = """
import os
mpi = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
os.environ["RANK"] = str(1 - int(mpi))
"""
    path.write_text(swap + PREAMBLE)
    with started(
        [str(MPIRUN), "-n", "2", sys.executable, str(path)],
        **FREE, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511",
    ) as job:  # fmt: skip
        code, _, err = job.finish()
    assert code != 0 and "mpi: this is rank 1 of 2" in err and "but rank 0 of 2 to MPI" in err


@pytest.mark.skipif(HAS_MPI, reason="this build has the plugin")
def test_missing_plugin_is_named() -> None:
    with pytest.raises(dist.DistBackendError, match=r"built without MPI.*WARPTAPE_MPI=ON"):
        dist.init_process_group("mpi", store=dist.HashStore(), rank=0, world_size=1)


def test_no_launcher_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("import warptape.distributed as dist\ndist.init_process_group('mpi')\n")
    with started([LAUNCHER[0], str(path)]) as job:
        code, _, err = job.finish()
    assert code == 1 and "mpirun has not started this process" in err
