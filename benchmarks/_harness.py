"""Runs the same work in warptape and in PyTorch by turns, and says how their times compare.

Each library lives in a worker process of its own: the threads of one cannot slow the other, and nothing is
measured in a process that has imported both. The parent lets the workers take turns, so that both see the
same machine. A worker reads requests, one JSON object a line, on stdin and answers on stdout:

    {"prepare": ROW, "threads": N}  ->  {"ok": true}
    {"time": CALLS}                 ->  {"seconds": S}          one warm-up call, then CALLS calls
    {"peak": CALLS}                 ->  {"bytes": B}            warptape: the most that tensors held
    {"flops": true}                 ->  {"flops": F}            warptape: of products in one call
    {"result": true}                ->  {"result": VALUE}       what the row wants compared, or null
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _roofline import count_flops

HERE = Path(__file__).resolve().parent
LIBRARIES = ("warptape", "torch")
# Long enough for a library's spinning threads to fall asleep before the other library's turn.
PAUSE_SECONDS = 0.02
BOOTSTRAP_SAMPLES = 2000


class RowFailedError(Exception):
    """A worker could not run a row; the message holds the library and its error."""


# ------------------------------------------------------------------------- the worker's side


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives `import warptape...` PyTorch's modules, so that one source runs on both libraries."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name.split(".")[0] == "warptape" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return importlib.import_module("torch" + spec.name[len("warptape") :])

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def load_library(name: str) -> Any:
    """Import a library; after torch, `import warptape` in this process means torch.

    An inference runtime takes its number of threads where a model is loaded: its `threads` holds it.
    """
    if name == "torch":
        sys.meta_path.insert(0, StandIn())
    library = importlib.import_module(name)
    if hasattr(library, "set_num_threads"):
        return library
    runtime = types.SimpleNamespace(name=name, module=library, threads=1)
    runtime.set_num_threads = lambda threads: setattr(runtime, "threads", threads)
    return runtime


def seconds_of(work: Any, calls: int) -> float:
    """Time of that many calls, garbage collection kept out."""
    work()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - start
    finally:
        gc.enable()


def peak_of(lib: Any, work: Any, calls: int) -> int:
    """The most bytes that tensors held in that many calls, with those that they held before."""
    work()
    gc.collect()
    lib._C._reset_peak_memory()
    for _ in range(calls):
        work()
    return int(lib._C._memory_stats()["peak_allocated_bytes"])


def serve(library: str, module: str) -> None:
    """Answer requests for the rows of a module until stdin ends. Whatever else is printed goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    lib = load_library(library)
    rows = {row.name: row for row in importlib.import_module(module).ROWS}
    work: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "prepare" in request:
                work = None
                lib.set_num_threads(request["threads"])
                work = rows[request["prepare"]].build(lib)
                answer = {"ok": True}
            elif "time" in request:
                answer = {"seconds": seconds_of(work, request["time"])}
            elif "flops" in request:
                answer = {"flops": count_flops(lib, work)}
            elif "peak" in request:
                answer = {"bytes": peak_of(lib, work, request["peak"])}
            else:
                answer = {"result": work.result() if hasattr(work, "result") else None}
        except Exception as error:  # the parent reports it beside the row
            answer = {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        print(json.dumps(answer), file=answers, flush=True)


# ------------------------------------------------------------------------- the parent's side


class Worker:
    """A process that holds one library, of another Python where one is given."""

    def __init__(self, library: str, module: str = "_cpu_rows", python: str = sys.executable) -> None:
        self.library = library
        self.process = subprocess.Popen(
            [python, str(HERE / "_harness.py"), library, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RowFailedError(f"{self.library}: the process ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RowFailedError(f"{self.library}: {answer['error']}")
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Measured:
    """One row's times: seconds per unit of work, one entry per round, both libraries round by round."""

    name: str
    seconds: dict[str, list[float]]
    results: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    share: float | None = None  # of the machine's limit that warptape reaches: see _roofline.py

    def medians(self) -> dict[str, float]:
        return {library: float(np.median(times)) for library, times in self.seconds.items()}

    def log_ratios(self, samples: int) -> np.ndarray:
        """The logarithm of the ratio of medians, then that of resampled rounds: [1 + samples]."""
        ours, peers = (np.asarray(self.seconds[library]) for library in LIBRARIES)
        # Rounds are drawn as pairs: what loads the machine in a round loads both.
        drawn = np.random.default_rng(0).integers(len(ours), size=(samples, len(ours)))
        drawn = np.vstack([np.arange(len(ours)), drawn])
        return np.log(np.median(ours[drawn], axis=1)) - np.log(np.median(peers[drawn], axis=1))


def ratio_and_bound(rows: list[Measured]) -> tuple[float, float]:
    """Geometric mean of the rows' ratios time(warptape) / time(PyTorch), upper 95 % bound by bootstrap."""
    logs = np.mean([row.log_ratios(BOOTSTRAP_SAMPLES) for row in rows], axis=0)
    return float(np.exp(logs[0])), float(np.exp(np.quantile(logs[1:], 0.95)))


def measure(
    row: Any, workers: dict[str, Worker], rounds: int, round_seconds: float, threads: int
) -> Measured:
    """Let the workers do the row's work by turns; a failure is kept in the result."""
    measured = Measured(row.name, {library: [] for library in workers})
    try:
        for worker in workers.values():
            worker.ask(prepare=row.name, threads=threads if row.threaded else 1)
        calls, peer = row.calls, list(workers.values())[-1]
        if calls is None:  # as many as fill the time at the peer's speed
            for calls in (1, 10, 100, 1000, 10000):
                spent = peer.ask(time=calls)["seconds"]
                if spent > round_seconds / 10:
                    break
            calls = max(1, round(calls * round_seconds / spent))
        for number in range(rounds):
            for library in workers if number % 2 else reversed(workers):
                time.sleep(PAUSE_SECONDS)
                spent = workers[library].ask(time=calls)["seconds"]
                measured.seconds[library].append(spent / calls / row.units)
        measured.results = {library: worker.ask(result=True)["result"] for library, worker in workers.items()}
    except RowFailedError as error:
        measured.error = str(error)
    return measured


IMPORT_PROGRAM = "import time; s = time.perf_counter(); import {}; print(time.perf_counter() - s)"


def measure_import(name: str, rounds: int) -> Measured:
    """Time of the import statement in fresh interpreters, after an unmeasured one that loads the files."""
    measured = Measured(name, {library: [] for library in LIBRARIES})
    for number in range(rounds + 1):
        for library in LIBRARIES:
            command = [sys.executable, "-c", IMPORT_PROGRAM.format(library)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                measured.error = f"{library}: {done.stderr.strip().splitlines()[-1]}"
                return measured
            if number:
                measured.seconds[library].append(float(done.stdout))
    return measured


def machine() -> dict[str, Any]:
    """What a reader needs to know of the machine: processor, cores, instruction sets that matter, load."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    sets = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "processor": info.get("model name", "unknown"),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": [name for name in sets if name in info.get("flags", "").split()],
        "load_average": os.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    """Versions of Python and both libraries, and the commit of this checkout ('+' where it has changes)."""
    from importlib.metadata import version

    def git(*arguments: str) -> str:
        if shutil.which("git") is None:
            return ""
        done = subprocess.run(
            ["git", "-C", str(HERE), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "../csrc", "../kernels", "../python")
    program = "import warptape; print(warptape.__version__)"
    ours = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "warptape": ours.stdout.strip() or "cannot be imported",
        "torch": version("torch") if importlib.util.find_spec("torch") else "not installed",
        "commit": (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+" if changed else ""),
    }


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    serve(*sys.argv[1:])
