"""The ranks of one node: started, watched, stopped and buried together."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from ...multiprocessing.lifetime import die_with_parent
from .arguments import Config
from .errors import ProcessFailure
from .guard import Guard
from .loop import Loop
from .output import Output, RunFolder

# How long a stopped worker's helpers may take to clean up after themselves (multiprocessing's resource
# tracker unlinks shared memory) before they are killed.
_HELPERS_PATIENCE = 0.3
_DIED = re.compile(r"rank \d+ \(process (\d{1,10})\) has died")  # as collectives say it


@dataclass(frozen=True)
class Start:
    """What all nodes agree on before a start: the same on each but for `node`.

    Args:
        attempt, restarts: numbers of this start, and of restarts so far.
        node: of this launcher.
        processes: ranks of each node.
        job: its name.
        master_addr, master_port: where ranks meet.
        secret: of the job.
    """

    attempt: int  # starts before this one
    restarts: int  # of these, after failures
    node: int
    processes: list[int]  # ranks on each node
    job: str
    master_addr: str
    master_port: int
    secret: str = ""  # of the workers; empty on one node

    @property
    def first_rank(self) -> int:
        """The rank of this node's first worker."""
        return sum(self.processes[: self.node])


def worker_environment(config: Config, start: Start, local_rank: int) -> dict[str, str]:
    """The variables a worker gets besides the launcher's own: torchrun's, and warptape's.

    Args:
        config: of the command line.
        start: what the nodes agreed on.
        local_rank: on this host.
    """
    rank, world = start.first_rank + local_rank, sum(start.processes)
    result = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": config.nproc,
        "GROUP_RANK": start.node,
        "GROUP_WORLD_SIZE": len(start.processes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": config.role,
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": start.master_port,
        "TORCHELASTIC_RESTART_COUNT": start.restarts,
        "TORCHELASTIC_MAX_RESTARTS": config.max_restarts,
        "TORCHELASTIC_RUN_ID": config.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "WARPTAPE_JOB": start.job,
        "WARPTAPE_ATTEMPT": start.attempt,
    }
    if start.secret:
        result["WARPTAPE_SECRET"] = start.secret
    if config.nproc > 1 and "OMP_NUM_THREADS" not in os.environ:
        result["OMP_NUM_THREADS"] = 1  # ranks share the processors
    return {name: str(value) for name, value in result.items()}


class Worker:
    """One rank's process, leader of a session and process group of its own.

    Args:
        command: with its arguments.
        environ: all of its variables.
        rank, local_rank: in the job and on this host.
        output: where its streams go.
        ignored: signals that it starts with ignored.
    """

    def __init__(
        self,
        command: list[str],
        environ: dict[str, str],
        rank: int,
        local_rank: int,
        output: Output,
        ignored: Collection[int],
    ):
        self.rank, self.local_rank, self.output = rank, local_rank, output
        self.exitcode: int | None = None
        self.ended = 0.0
        launcher = os.getpid()

        def prepare() -> None:
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)
            die_with_parent(launcher)

        self._process = subprocess.Popen(
            command,
            env=environ,
            stdout=output.stdout,
            stderr=output.stderr,
            start_new_session=True,
            preexec_fn=prepare,
        )
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def look(self) -> None:
        """Records the exit code if the process ended.

        The process stays a zombie, so that the number of its group is not used again.
        """
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None and self.exitcode is None:
            self.exitcode = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            self.ended = time.time()

    def signal_group(self, number: int) -> None:
        """Send a signal to the worker and all that it started.

        Args:
            number: of the signal.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def signal_alone(self, number: int) -> None:
        """Send a signal to the worker only.

        Args:
            number: of the signal.
        """
        if self.exitcode is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> None:
        """Let go of the process id."""
        self._process.wait()
        os.close(self.pidfd)

    def group_empty(self) -> bool:
        """Whether nothing is left of what the worker started.

        It is to be asked after `reap`.
        """
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


class WorkerGroup:
    """All ranks of this node, for one start.

    Args:
        config: of the command line.
        loop: where events come from.
        guard: kills them if the launcher dies.
        folder: for files.
        start: what the nodes agreed on.
    """

    def __init__(self, config: Config, loop: Loop, guard: Guard, folder: RunFolder, start: Start) -> None:
        self._config, self._loop, self._guard, self._folder, self._start = config, loop, guard, folder, start
        self._workers: list[Worker] = []
        self._stopped_at: float | None = None
        self._sent: set[int] = set()  # signals that stopped the ranks
        # What is passed on and ends nothing, also in a rank that has no handler for it, or not yet.
        self._ignored = {signal.SIGUSR1, signal.SIGUSR2} - set(config.signals)

    def start(self) -> None:
        """Starts every rank of this node.

        Raises:
            OSError: the program cannot be executed.
        """
        for local_rank in range(self._config.nproc):
            rank = self._start.first_rank + local_rank
            output = Output(
                self._config, self._loop, self._folder.rank(self._start.attempt, local_rank), rank, local_rank
            )
            environ = {**os.environ, **worker_environment(self._config, self._start, local_rank)}
            environ["TORCHELASTIC_ERROR_FILE"] = output.error.path
            folder = self._folder.attempt(self._start.attempt)
            if folder:
                environ["WARPTAPE_FLIGHT_DIR"] = folder
            command = [item.replace("${local_rank}", str(local_rank)) for item in self._config.command]
            try:
                worker = Worker(command, environ, rank, local_rank, output, self._ignored)
            except OSError:
                output.close()
                raise
            self._guard.watch(worker.pid)
            self._workers.append(worker)
            output.handed_over()
            self._loop.watch(worker.pidfd, partial(self._look, worker))

    def _look(self, worker: Worker) -> None:
        worker.look()
        if worker.exitcode is not None:
            self._loop.unwatch(worker.pidfd)

    @property
    def ended(self) -> bool:
        """True if no rank runs."""
        return all(worker.exitcode is not None for worker in self._workers)

    @property
    def done(self) -> bool:
        """True if every rank ended with exit code 0."""
        return all(worker.exitcode == 0 for worker in self._workers)

    @property
    def failed(self) -> bool:
        """True if a rank ended otherwise than by exit code 0."""
        return any(worker.exitcode for worker in self._workers)

    def pass_on(self, number: int) -> None:
        """Send a signal to the ranks but not to what they started, which may not expect it.

        Args:
            number: of the signal.
        """
        for worker in self._workers:
            worker.signal_alone(number)

    def stop(self, number: int) -> None:
        """Send signal `number` to all; SIGKILL after the grace period, or when the launcher gets another.

        Args:
            number: of the signal.
        """
        self._stopped_at = time.time()
        self._sent.add(number)
        for worker in self._workers:
            worker.signal_group(number)
            worker.signal_group(signal.SIGCONT)  # a stopped process hears nothing else
        came = len(self._loop.signals)
        self._loop.wait(lambda: self.ended or len(self._loop.signals) > came, self._config.grace)
        if not self.ended:
            self._sent.add(signal.SIGKILL)
            for worker in self._workers:
                worker.signal_group(signal.SIGKILL)
            self._loop.wait(lambda: self.ended)

    def reap(self) -> None:
        """After all ranks ended: end what they left running, close files, free process ids."""
        for worker in self._workers:
            worker.reap()
        end = time.monotonic() + _HELPERS_PATIENCE
        while not all(worker.group_empty() for worker in self._workers) and time.monotonic() < end:
            time.sleep(0.005)
        for worker in self._workers:
            if not worker.group_empty():
                worker.signal_group(signal.SIGKILL)
            self._guard.forget(worker.pid)
            worker.output.close()
        self._workers.clear()

    def failures(self) -> list[ProcessFailure]:
        """What went wrong, without the ranks that ended only because they were told to. Before `bury`."""
        reports = {worker.pid: worker.output.error.read() for worker in self._workers}
        stopped_at = self._stopped_at or float("inf")
        # Whose end the kernel had not told yet, when others already missed them.
        missed = {
            int(pid)
            for report in reports.values()
            if report is not None and report[0] < stopped_at
            for pid in _DIED.findall(report[1])
        }
        result = []
        for worker in self._workers:
            report = reports[worker.pid]
            told = worker.ended >= stopped_at and not (
                (worker.exitcode or 0) < 0 and -(worker.exitcode or 0) not in self._sent
            )
            if not worker.exitcode or (told and report is None and worker.pid not in missed):
                continue
            when, message, trace, follows = report or (worker.ended, "", "", False)
            host = socket.gethostname()
            ids = (worker.rank, worker.local_rank, worker.pid, worker.exitcode, host)
            shown = worker.output.error_shown
            result.append(ProcessFailure(*ids, when, message, trace, shown, follows))
        return result
