"""How worker processes of a DataLoader end: killed, with their parent, by Ctrl-C, dropped."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import warptape as wt
from launched import LAUNCHER, started, until
from time_limits import seconds
from warptape.utils.data import DataLoader, Dataset, IterableDataset

HEAD = """
import os, signal, sys, threading, time
import warptape as wt
from warptape.utils.data import DataLoader, Dataset

signal.signal(signal.SIGINT, signal.default_int_handler)  # what started the tests may ignore it

class Slow(Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, i):
        if i == STOP:
            time.sleep(600)
        return wt.full((30_000,), float(i))

def say(text):
    sys.stdout.write(text + chr(10))
    sys.stdout.flush()

if __name__ == "__main__":
    loader = DataLoader(Slow(), 2, num_workers=2, multiprocessing_context=METHOD)
"""


@pytest.fixture
def script(tmp_path):
    """Makes a program of `body`, in a file where spawned processes find its classes."""

    def make(body: str, method: str = "fork", stop: int = -1) -> list[str]:
        path = tmp_path / "program.py"
        path.write_text(_program(body, method, stop))
        return [sys.executable, str(path)]

    return make


def _program(body: str, method: str, stop: int) -> str:
    text = HEAD.replace("METHOD", repr(method)).replace("STOP", str(stop))
    return text + "".join(f"    {line}\n" for line in body.strip().split("\n"))


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            pass
    return found


def workers_of(pid: int) -> list[int]:
    return [p for p in children(pid) if "warptape-data" in _name(p)]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


class Numbers(Dataset):
    def __init__(self, act=None, n=100):
        self.act, self.n = act, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.act is not None:
            self.act(i)
        return i, os.getpid()


def at(index, act):
    return lambda i: act() if i == index else None


# ---- killed ----


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGXCPU"])
def test_a_killed_worker_is_an_error_at_once(name):
    number = getattr(signal, name)
    loader = DataLoader(Numbers(at(21, lambda: os.kill(os.getpid(), number))), 2, num_workers=2)
    batches = iter(loader)
    pid = next(batches)[1][0].item()
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: ") as caught:
        list(batches)
    assert signal.strsignal(number) in str(caught.value)
    with pytest.raises(RuntimeError, match="is killed by signal"):
        next(batches)
    until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_worker_killed_while_this_process_waits_or_computes():
    batches = iter(DataLoader(Numbers(at(2, lambda: time.sleep(600))), 2, num_workers=2, prefetch_factor=1))
    first, victim = next(batches)[1][0].item(), batches._workers[1].process.pid
    os.kill(victim, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"\(pid {victim}\) is killed by signal: Killed"):
        next(batches)
    assert time.monotonic() - start < seconds(0.5) and first != victim
    batches = iter(DataLoader(Numbers(), 2, num_workers=2))
    next(batches)
    victim = batches._workers[0].process.pid
    os.kill(victim, signal.SIGKILL)
    batches._workers[0].process.join()
    # The next batch is here already; it is not waited until those of the dead worker are missed.
    with pytest.raises(RuntimeError, match=rf"\(pid {victim}\) is killed by signal: Killed"):
        next(batches)


def test_a_worker_that_exits():
    loader = DataLoader(Numbers(at(5, lambda: sys.exit(3))), 2, num_workers=2, persistent_workers=True)
    with pytest.raises(RuntimeError, match=r"worker \(pid \d+\) exited unexpectedly with exit code 3"):
        list(loader)
    loader.dataset.act = None
    assert len(list(loader)) == 50  # with new workers


def test_a_worker_killed_though_others_hold_its_socket():
    """A process that the worker started inherits everything, and lives on."""

    def fork_and_die():
        if os.fork() == 0:
            time.sleep(seconds(5))
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    start = time.monotonic()
    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        list(DataLoader(Numbers(at(3, fork_and_die)), 2, num_workers=1))
    assert time.monotonic() - start < seconds(4)


# ---- dropped ----


def test_a_dropped_iterator_ends_its_workers():
    for persistent in (False, True):
        loader = DataLoader(Numbers(), 2, num_workers=2, persistent_workers=persistent)
        batches = iter(loader)
        next(batches)
        pids = [w.process.pid for w in batches._workers]
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
        del batches, loader
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    for _ in zip(range(2), DataLoader(Numbers(), 2, num_workers=2)):
        pass


def test_a_forked_child_that_drops_a_copy_leaves_the_workers_alone():
    batches = iter(DataLoader(Numbers(), 2, num_workers=1))
    next(batches)
    pid = os.fork()
    if pid == 0:
        del batches
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(batches)) == 49


def test_workers_of_a_stream_end_one_by_one():
    class Stream(IterableDataset):
        def __iter__(self):
            w = wt.utils.data.get_worker_info()
            return iter([(w.id, os.getpid())] * (2 if w.id == 0 else 20))

    batches = iter(DataLoader(Stream(), None, num_workers=2))
    got = [next(batches) for _ in range(10)]
    first = next(pid for number, pid in got if number == 0)
    until(lambda: not workers_alive(first))
    assert len(list(batches)) == 12


def workers_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- with the parent ----


def names_of_memory(job) -> list[str]:
    """Files under /dev/shm that the job has mapped: they would stay behind."""
    found = []
    for pid in job.left():
        with suppress(OSError):
            found += re.findall("/dev/shm/.*", Path(f"/proc/{pid}/maps").read_text())
    return found


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("stop", [-1, 9])  # the workers wait for tasks, or are in a sample
def test_kill_of_the_main_process_leaves_nothing(script, method, stop):
    with started(
        script("it = iter(loader)\nx = next(it)\nsay('ready')\ntime.sleep(600)", method, stop)
    ) as job:
        assert job.process.stdout.readline() == "ready\n"
        assert len(job.left()) > 2 and not names_of_memory(job)
        os.kill(job.pid, signal.SIGKILL)
        until(lambda: not job.left())


def test_kill_of_a_process_whose_thread_loads_leaves_nothing(script):
    """The kernel's signal would come when the thread ends; what the process holds does not."""
    body = (
        "t = threading.Thread(target=lambda: loader.__dict__.update(it=iter(loader)))\nt.start()\nt.join()\n"
    )
    with started(script(body + "say(str(next(loader.it).shape))\ntime.sleep(600)")) as job:
        assert job.process.stdout.readline() == "torch.Size([2, 30000])\n"
        os.kill(job.pid, signal.SIGKILL)
        until(lambda: not job.left())


@pytest.mark.parametrize(
    "body",
    ["for x in loader:\n    say('ready')", "it = iter(loader)\nnext(it)\nsay('ready')\ntime.sleep(600)"],
)
@pytest.mark.parametrize("whole", [True, False])
def test_ctrl_c_ends_all(script, body, whole):
    with started(script(body, stop=200)) as job:
        assert job.process.stdout.readline() == "ready\n"
        until(lambda: len(workers_of(job.pid)) == 2)
        # To the terminal's processes, or to the main process alone.
        (os.killpg if whole else os.kill)(job.pid, signal.SIGINT)
        code, _, err = job.finish(20)
        assert code == -signal.SIGINT and err.count("Traceback") == 1, err
        assert not job.left()


def test_ctrl_c_in_a_notebook_ends_the_workers(script):
    """A notebook survives and keeps the traceback, which keeps the iterator."""
    body = """
from code import InteractiveConsole
console = InteractiveConsole(dict(loader=loader, say=say))
console.showtraceback = lambda: setattr(sys, "last", sys.exc_info())
console.runcode("for x in loader:\\n    say('ready')")
say("interrupted " + sys.last[0].__name__)
time.sleep(600)
"""
    with started(script(body, stop=40)) as job:
        assert job.process.stdout.readline() == "ready\n"
        until(lambda: len(workers_of(job.pid)) == 2)
        os.kill(job.pid, signal.SIGINT)
        until(lambda: not workers_of(job.pid))
        assert "interrupted KeyboardInterrupt\n" in iter(job.process.stdout.readline, "")


def test_sigint_that_the_main_process_handles_leaves_the_pass_alone(script):
    body = """
signal.signal(signal.SIGINT, lambda *_: say("handled"))
for i, x in enumerate(loader):
    if i == 3:
        say("ready")
        sys.stdin.readline()
    if i == 20:
        break
say(str(x[0, 0].item()))
"""
    command = script(body)
    with started(["/bin/sh", "-c", 'sleep 600 | exec "$@"', "sh", *command]) as job:
        assert job.process.stdout.readline() == "ready\n"
        python = next(p for p in job.left() if workers_of(p))
        for pid in [python, *workers_of(python)]:
            os.kill(pid, signal.SIGINT)
        until(lambda: job.process.stdout.readline() == "handled\n")
        for pid in children(job.pid):
            if pid != python:
                os.kill(pid, signal.SIGKILL)
        assert "40.0\n" in iter(job.process.stdout.readline, "")


def test_under_the_launcher(script):
    path = script("for x in loader:\n    say('ready')", stop=200)[1]
    with started([*LAUNCHER, "--nproc-per-node=2", path]) as job:
        until(lambda: sum(len(workers_of(pid)) for pid in job.left()) == 4, 30)
        os.kill(job.pid, signal.SIGINT)
        _, _, err = job.finish(30)
        assert job.left() == [], err
    with started([*LAUNCHER, "--nproc-per-node=1", path]) as job:
        until(lambda: sum(len(workers_of(pid)) for pid in job.left()) == 2, 30)
        os.kill(job.pid, signal.SIGKILL)
        until(lambda: not job.left())


def test_a_script_that_ends_half_way_ends_at_once(script):
    with started(script("it = iter(loader)\nx = next(it)\nsay(str(x.shape))", stop=6)) as job:
        code, out, err = job.finish(20)
        assert (code, err, job.left()) == (0, "", []) and re.match(r"torch.Size\(\[2, 30000\]\)", out)


def test_a_worker_starts_soon():
    """50 ms on a quiet machine."""
    first = []
    for _ in range(5):
        start = time.perf_counter()
        batches = iter(DataLoader(Numbers(), 2, num_workers=1))
        next(batches)
        first.append(time.perf_counter() - start)
        del batches
    assert min(first) < seconds(0.5), first


FEW_FILES = """
import errno, gc, os, resource, sys
import multiprocessing as mp
import warptape as wt
from warptape.utils.data import DataLoader

def files():
    return len(os.listdir("/proc/self/fd"))

def refuse():
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

wanted, fork = "Too many open files", os.fork
if sys.argv[1] == "processes":  # as a limit on them has it
    wanted = "Resource temporarily unavailable"
    forks = iter([fork, refuse] * 20)
    os.fork = lambda: next(forks)()
begin, most = files(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
outcomes = set()
for room in range(20):
    before = files()
    if sys.argv[1] == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, most))
    try:
        for _ in DataLoader([wt.ones(3)] * 4, num_workers=2):
            pass
        outcomes.add("whole")
    except OSError as error:
        assert wanted in str(error), error
        outcomes.add("refused")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    assert not mp.active_children()
    assert files() - before <= 4  # those that multiprocessing's own start leaves open when it fails
    try:
        os.waitpid(-1, os.WNOHANG)
        raise AssertionError("a worker is left")
    except ChildProcessError:
        pass
print(sorted(outcomes))
"""


@pytest.mark.parametrize("few", ["files", "processes"])
def test_a_loader_that_cannot_start_says_why(few: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES, few], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["['refused',", "'whole']"] if few == "files" else ["['refused']"])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_pickled_is_the_error(method: str) -> None:
    loader = DataLoader([1, 2], collate_fn=lambda b: b, num_workers=2, multiprocessing_context=method)
    files = []
    for _ in range(3):  # the first starts what multiprocessing keeps
        with (
            pytest.warns(UserWarning, match="Got pickle error when attempting to start a worker"),
            pytest.raises((AttributeError, pickle.PicklingError), match=r"(?i)can't pickle.*lambda"),
        ):
            next(iter(loader))
        files.append(len(os.listdir("/proc/self/fd")))
    assert files[1] == files[2]
