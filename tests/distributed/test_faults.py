"""What a job of real processes does when something goes wrong: an error that names it, on every rank that is
left, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import LAUNCHER, free_port, launch, started, until
from time_limits import seconds

PREAMBLE = r"""
import os, signal, sys, time
from datetime import timedelta
import warptape as wt
import warptape.distributed as dist

def say(*what):
    sys.stdout.write(" ".join(map(str, (dist.get_rank(), *what))) + "\n")
    sys.stdout.flush()

open(os.path.dirname(__file__) + "/job." + os.environ["WARPTAPE_JOB"], "w").close()
dist.init_process_group(timeout=timedelta(seconds=20))
rank, ranks = dist.get_rank(), dist.get_world_size()
dist.barrier()
"""

# A rank that shall see the error must not end of the launcher's SIGTERM when another died: all ranks know to
# ignore it before one dies.
UNMOVED = """
signal.signal(signal.SIGTERM, lambda *_: None)
dist.barrier()
"""


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "job.py"
    path.write_text(PREAMBLE + body)
    return path


def shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "warptape" in name}


def sockets_of(folder: Path) -> list[str]:
    """Names of the sockets at which ranks meet, of the jobs whose scripts lie in the folder."""
    jobs = [f"/{path.name.removeprefix('job.')}/" for path in folder.glob("job.*") if path.name != "job.py"]
    names = [line.split("@")[1] for line in Path("/proc/net/unix").read_text().splitlines() if "@" in line]
    return [name for name in names if any(job in f"{name}/" for job in jobs)]


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    files = shared_memory_files()
    yield
    assert shared_memory_files() <= files
    until(lambda: sockets_of(tmp_path) == [])


def test_killed_rank_is_named(tmp_path: Path) -> None:
    """The launcher would end the others as well; they have caught the error before it comes to that."""
    body = f"""{UNMOVED}
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
try:
    dist.all_reduce(wt.ones(100_000))
except dist.DistBackendError as error:
    say("seconds", round(time.monotonic() - start, 2), error)
"""
    code, out, _ = launch("--nproc-per-node", 3, script(tmp_path, body))
    assert code != 0
    named = [line for line in out.splitlines() if "rank 1 (process" in line and "has died" in line]
    assert len(named) == 2, out
    assert all(float(line.split()[2]) < 1.0 for line in named), out


@pytest.mark.parametrize("call", ["dist.recv(wt.empty(3), 1)", "dist.send(wt.ones(10_000_000), 1)"])
def test_killed_partner_is_named(tmp_path: Path, call: str) -> None:
    body = f"""{UNMOVED}
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    {call}
except dist.DistBackendError as error:
    say(error)
"""
    _, out, _ = launch("--nproc-per-node", 2, script(tmp_path, body))
    assert "has died" in out and "rank 1 (process" in out


def test_rank_that_raises_is_shown_first(tmp_path: Path) -> None:
    body = """
if rank == 1:
    raise ValueError("the loss is not a number")
dist.barrier()
"""
    code, _, err = launch("--nproc-per-node", 2, script(tmp_path, body))
    assert code != 0
    assert "ValueError: the loss is not a number" in err


def test_stopped_rank_is_named(tmp_path: Path) -> None:
    body = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    dist.all_reduce(wt.ones(3)) if rank == 1 else dist.monitored_barrier(timeout=timedelta(seconds=1))
except dist.DistBackendError as error:
    say(error)
    sys.exit(3)
"""
    code, out, _ = launch("--nproc-per-node", 2, script(tmp_path, body), WARPTAPE_FLIGHT_DIR=str(tmp_path))
    assert code != 0
    assert "timed out waiting for rank 1" in out and ", stopped)" in out, out


def test_a_receive_from_any_rank_goes_on_while_one_may_still_send(tmp_path: Path) -> None:
    body = """
if rank:
    time.sleep(2 * (rank - 1))  # rank 1 has left long before rank 2 sends
    dist.send(wt.ones(2), 0)
    dist.destroy_process_group()
    sys.exit(0)
say("from", dist.recv(wt.empty(2)))
say("from", dist.recv(wt.empty(2)))
try:
    dist.recv(wt.empty(2))
except dist.DistBackendError as error:
    say(error)
"""
    code, out, err = launch("--nproc-per-node", 3, script(tmp_path, body))
    assert code == 0, err
    assert "from 1" in out and "from 2" in out and "from any rank" in out and "has left the group" in out, out


def test_rank_that_left_is_named(tmp_path: Path) -> None:
    body = """
if rank == 1:
    dist.destroy_process_group()
    sys.exit(0)
try:
    dist.barrier()
except dist.DistBackendError as error:
    say(error)
"""
    code, out, err = launch("--nproc-per-node", 2, script(tmp_path, body))
    assert code == 0, err
    assert "rank 1 has left the group" in out


def test_missing_rank_is_named_at_rendezvous(tmp_path: Path) -> None:
    path = tmp_path / "alone.py"
    path.write_text("""
from datetime import timedelta
import warptape.distributed as dist
try:
    dist.init_process_group(timeout=timedelta(seconds=1))
except dist.DistStoreError as error:
    print(error)
""")
    env = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    import sys

    with started([sys.executable, str(path)], **env) as job:
        _, out, err = job.finish()
    assert "rank 0 waited 1 s for ranks 1, 2 of 3 to join" in out, err


def test_two_ranks_of_one_number(tmp_path: Path) -> None:
    path = tmp_path / "twin.py"
    path.write_text(f"""
from datetime import timedelta
import warptape.distributed as dist
try:
    dist.init_process_group(
        init_method="file://{tmp_path}/meet", rank=0, world_size=2, timeout=timedelta(seconds=100)
    )
except dist.DistStoreError as error:
    print(error)
    raise SystemExit(1)  # the launcher then ends the other, which waits for a rank 1
""")
    _, out, err = launch("--nproc-per-node", 2, path)
    assert "a process with rank 0 has joined already" in out, out + err


@pytest.mark.parametrize("method", ["tcp", "file"])
def test_other_meeting_points(tmp_path: Path, method: str) -> None:
    url = f"tcp://127.0.0.1:{free_port()}" if method == "tcp" else f"file://{tmp_path}/meet"
    path = tmp_path / "meet.py"
    path.write_text(f"""
import os
import warptape as wt, warptape.distributed as dist
dist.init_process_group("gloo", init_method="{url}", rank=int(os.environ["RANK"]), world_size=2)
t = wt.ones(3)
dist.all_reduce(t)
print(t.tolist(), flush=True)
dist.destroy_process_group()
""")
    code, out, err = launch("--nproc-per-node", 2, path)
    assert code == 0, err
    assert out.count("[2.0, 2.0, 2.0]") == 2
    assert not (tmp_path / "meet").exists()


def test_joins_again_after_leaving(tmp_path: Path) -> None:
    body = """
for i in range(5):
    dist.destroy_process_group()
    dist.init_process_group()
    t = wt.ones(2)
    dist.all_reduce(t)
    assert t.tolist() == [2, 2]
"""
    code, _, err = launch("--nproc-per-node", 2, script(tmp_path, body))
    assert code == 0, err


def test_memory_limit_at_the_start(tmp_path: Path) -> None:
    """The rank whose address space is too small says so, and so do the others."""
    path = tmp_path / "limited.py"
    path.write_text("""
import os, resource
from datetime import timedelta
import warptape.distributed as dist
if os.environ["RANK"] == os.environ["LIMITED"]:
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + 25_000_000,) * 2)
try:
    dist.init_process_group(timeout=timedelta(seconds=10))
    print("joined", flush=True)
except Exception as error:
    os.write(1, f"{os.environ['RANK']} {type(error).__name__} {error}\\n".encode())
""")
    for limited in ("0", "1"):
        _, out, err = launch("--nproc-per-node", 8, path, LIMITED=limited)
        said = [line for line in out.splitlines() if "shared memory" in line]
        assert len(said) == 8 and "joined" not in out, out + err
        assert f"{limited} OutOfMemoryError" in out, out + err


def test_interrupt_ends_a_collective(tmp_path: Path) -> None:
    body = f"""{UNMOVED}
if rank == 0:
    say("ready", os.getpid())
    try:
        dist.barrier()
    except KeyboardInterrupt:
        say("interrupted", time.monotonic())
    sys.exit(0)
time.sleep(2)
try:
    dist.barrier()
except dist.DistBackendError as error:
    say(error)
"""
    import time

    with started([*LAUNCHER, "--nproc-per-node", "2", str(script(tmp_path, body))]) as job:
        assert job.process.stdout is not None
        ready = job.process.stdout.readline().split()
        time.sleep(0.3)  # until it waits
        sent = time.monotonic()
        os.kill(int(ready[2]), signal.SIGINT)
        _, out, err = job.finish()
    at = next(float(line.split()[2]) for line in out.splitlines() if "interrupted" in line)
    assert at - sent < seconds(0.2)
    assert "rank 0 was interrupted" in out, out + err


def test_two_jobs_do_not_meet(tmp_path: Path) -> None:
    path = script(
        tmp_path, "dist.barrier(); time.sleep(0.5); sys.stdout.write(f'{ranks}\\n'); dist.barrier()"
    )
    with (
        started([*LAUNCHER, "--nproc-per-node", "2", str(path)]) as one,
        started([*LAUNCHER, "--nproc-per-node", "3", str(path)]) as other,
    ):
        results = [one.finish(), other.finish()]
    assert [code for code, _, _ in results] == [0, 0], results
    assert results[0][1].split() == ["2", "2"] and results[1][1].split() == ["3", "3", "3"]


def test_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    body = """
say("ready", os.getpid())
while True:
    dist.all_reduce(wt.ones(300_000))
"""
    with started([*LAUNCHER, "--nproc-per-node", "3", str(script(tmp_path, body))]) as job:
        assert job.process.stdout is not None
        for _ in range(3):
            job.process.stdout.readline()
        assert sockets_of(tmp_path)
        os.kill(job.pid, signal.SIGKILL)
        assert until(lambda: job.left() == []) < seconds(1.0)
        assert until(lambda: sockets_of(tmp_path) == []) < seconds(1.0)


def test_garbage_at_the_meeting_point(tmp_path: Path) -> None:
    """A stranger of the same user that connects and says nonsense, or nothing, changes nothing."""
    body = """
if rank == 0:
    say("ready")
    time.sleep(1)
group = dist.new_group([0, 1])
dist.barrier(group)
say("well")
"""
    with started([*LAUNCHER, "--nproc-per-node", "2", str(script(tmp_path, body))]) as job:
        assert job.process.stdout is not None
        job.process.stdout.readline()
        names = set(sockets_of(tmp_path))
        strangers = []
        for name in names:
            for data in (b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 5000, b""):
                stranger = socket.socket(socket.AF_UNIX)
                stranger.connect("\0" + name)
                if data:
                    stranger.sendall(data)
                strangers.append(stranger)
        code, out, err = job.finish()
        for stranger in strangers:
            stranger.close()
    assert strangers and code == 0, err
    assert out.count("well") == 2
