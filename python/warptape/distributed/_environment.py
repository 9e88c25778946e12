"""Who am I: the rank, the world and the rendezvous, read from what a launcher put into the environment.

Every function is one of a mapping, so that the tests are tables.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_MIN_SECRET = 16  # characters
_INTERACTIVE_STEP = "4294967290"  # the shell that salloc opens is a step, too


@dataclass(frozen=True)
class Environment:
    """One rank's place in its job.

    rendezvous: "unix": all ranks are on this host and meet at the abstract socket `socket_name`; "tcp": they
    meet at host:port and prove `secret`. With `agent_store` (torchrun over several hosts) host and port are
    None: rank 0 picks a port and publishes it in the agent's store, see `_torch_store`.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: str  # "warptape-run", "torchrun", "srun", "Open MPI", "Hydra" or "by hand"
    job: str  # on this host, and with "tcp" on all hosts, no other job has this name
    restart: int = 0
    rendezvous: str = "unix"
    host: str | None = None
    port: int | None = None
    secret: str | None = None
    agent_store: tuple[str, int] | None = None
    flight_dir: str | None = None

    def socket_name(self, uid: int | None = None) -> str:
        """The abstract Unix socket (it starts with a zero byte) where the ranks of one host meet."""
        return f"\0warptape/{os.getuid() if uid is None else uid}/{self.job}/{self.restart}"


class MissingRank(ValueError):
    """The environment does not say, or not well enough, which rank this process is."""


HOW_TO_START = (
    "start the script with `warptape-run --nproc-per-node=2 script.py` (or torchrun, srun, mpirun), or set "
    "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
)
HOW_TO_MAKE_A_SECRET = (
    'run `python -c "import secrets; print(secrets.token_hex(32))"` once and set WARPTAPE_SECRET to what it '
    "prints, the same for all ranks and for nobody else"
)


def find(
    environ: Mapping[str, str] = os.environ,
    rank: int | None = None,
    world_size: int | None = None,
    ancestor: Callable[[str], int | None] | None = None,
) -> Environment | None:
    """This process's place in the job that a launcher started; None if nothing tells of one.

    `rank` and `world_size` are what the caller knows already (a spawned process): they count more than a
    launcher's that differ. `ancestor` finds the process id of the nearest ancestor with a name.
    Raises MissingRank (a ValueError) that names the missing or wrong variable.
    """
    for known, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is not None and value >= 0 and environ.get(known) != str(value):
            environ = {k: v for k, v in environ.items() if k not in _LAUNCHERS_OWN} | {known: str(value)}
    reader = _Reader(environ)
    if "WARPTAPE_JOB" in environ:
        return _warptape_run(reader)
    if "TORCHELASTIC_RUN_ID" in environ:
        return _torchrun(reader)
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _by_hand(reader)
    if "OMPI_COMM_WORLD_RANK" in environ:
        return _open_mpi(reader)
    if "PMI_RANK" in environ and "MPI_LOCALRANKID" in environ:
        return _hydra(reader, ancestor or _ancestor)
    if "SLURM_STEP_NUM_TASKS" in environ and environ.get("SLURM_STEP_ID") != _INTERACTIVE_STEP:
        return _srun(reader)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _by_hand(reader)
    return None


# When the caller names another rank than the launcher gave (it spawned processes itself), the launcher's word
# on the rest is wrong as well.
_LAUNCHERS_OWN = ("WARPTAPE_JOB", "TORCHELASTIC_RUN_ID", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class _Reader:
    """Reads variables and says which is missing or wrong."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def text(self, name: str, launcher: str, remedy: str = "") -> str:
        value = self.environ.get(name, "")
        if not value:
            raise MissingRank(
                f"{launcher}: the environment variable {name} is missing; {remedy or HOW_TO_START}"
            )
        return value

    def number(self, name: str, launcher: str, remedy: str = "") -> int:
        value = self.text(name, launcher, remedy)
        if not re.fullmatch(r"[0-9]{1,9}", value):
            raise MissingRank(f"{launcher}: expected {name} to be a number from 0, got {value!r}")
        return int(value)

    def optional(self, name: str, launcher: str, default: int) -> int:
        return self.number(name, launcher) if self.environ.get(name) else default

    def ranks(self, launcher: str, *names: str) -> tuple[int, int, int, int]:
        """(rank, world size, local rank, local world size) from variables of these names."""
        rank, world, local_rank, local_world = (self.number(name, launcher) for name in names)
        for name, value, of, limit in (
            (names[0], rank, names[1], world),
            (names[2], local_rank, names[3], local_world),
        ):
            if value >= limit:
                raise MissingRank(f"{launcher}: expected {name} to be less than {of} ({limit}), got {value}")
        if local_world > world:
            raise MissingRank(
                f"{launcher}: expected {names[3]} to be at most {names[1]} ({world}), got {local_world}"
            )
        return rank, world, local_rank, local_world

    def secret(self, launcher: str) -> str:
        value = self.environ.get("WARPTAPE_SECRET", "")
        if len(value) < _MIN_SECRET:
            state = (
                f"has {len(value)} characters, at least {_MIN_SECRET} are needed" if value else "is missing"
            )
            raise MissingRank(
                f"{launcher}: the ranks are on several hosts, where anybody may connect, and the environment "
                f"variable WARPTAPE_SECRET {state}; {HOW_TO_MAKE_A_SECRET}"
            )
        return value

    def address(self, launcher: str, remedy: str = "") -> tuple[str, int]:
        host = self.text("MASTER_ADDR", launcher, remedy).strip("[]")
        port = self.number("MASTER_PORT", launcher, remedy)
        if not 0 < port < 65536:
            raise MissingRank(f"{launcher}: expected MASTER_PORT to be a port from 1 to 65535, got {port}")
        return host, port


def _digest(*parts: object) -> str:
    """A short name that no other job has; the name of an abstract socket has 107 bytes."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _warptape_run(reader: _Reader) -> Environment:
    name = "warptape-run"
    ranks = reader.ranks(name, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    job = reader.text("WARPTAPE_JOB", name)
    restart = reader.optional("WARPTAPE_ATTEMPT", name, 0)  # counts those without a failure, too
    flight_dir = reader.environ.get("WARPTAPE_FLIGHT_DIR") or None
    if ranks[1] == ranks[3]:
        return Environment(*ranks, name, job, restart, flight_dir=flight_dir)
    host, port = reader.address(name)
    return Environment(
        *ranks, name, job, restart, "tcp", host, port, reader.secret(name), flight_dir=flight_dir
    )


def _torchrun(reader: _Reader) -> Environment:
    name = "torchrun"
    ranks = reader.ranks(name, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    restart = reader.optional("TORCHELASTIC_RESTART_COUNT", name, 0)
    host, port = reader.address(name)
    # The run id may be the same for all jobs of a user ("none"); the agent's port is one job's only.
    job = "torchrun-" + _digest(reader.text("TORCHELASTIC_RUN_ID", name), host, port)
    if ranks[1] == ranks[3]:
        return Environment(*ranks, name, job, restart)
    secret = reader.secret(name)
    if reader.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return Environment(*ranks, name, job, restart, "tcp", None, None, secret, (host, port))
    return Environment(*ranks, name, job, restart, "tcp", host, port, secret)


def _by_hand(reader: _Reader) -> Environment:
    name = "by hand"
    where = "by hand (init_method env://)"
    reader.number("RANK", where), reader.number("WORLD_SIZE", where)
    host, port = reader.address(where)
    missing = sorted({"LOCAL_RANK", "LOCAL_WORLD_SIZE"} - reader.environ.keys())
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if missing and (host == "localhost" or host.startswith("127.") or host == "::1"):
        names = ("RANK", "WORLD_SIZE")  # whoever is told to meet on the loopback interface is on this host
    elif missing:
        raise MissingRank(
            f"{where}: MASTER_ADDR={host} may be another host, and {' and '.join(missing)} is missing; set "
            "LOCAL_RANK and LOCAL_WORLD_SIZE to this rank's place on its host and the number of ranks there, "
            "or MASTER_ADDR=127.0.0.1 if all ranks are on one host"
        )
    ranks = reader.ranks(where, "RANK", "WORLD_SIZE", *names)
    job = "port-" + _digest(host, port)
    if ranks[1] == ranks[3]:
        return Environment(*ranks, name, job)
    return Environment(*ranks, name, job, 0, "tcp", host, port, reader.secret(where))


def _mpi(
    reader: _Reader, name: str, ranks: tuple[int, int, int, int], job: object, option: str
) -> Environment:
    """mpirun says who is who; over several hosts the user says where to meet."""
    if ranks[1] == ranks[3]:
        return Environment(*ranks, name, f"mpi-{_digest(name, job)}")
    remedy = (
        "the ranks are on several hosts: set MASTER_ADDR to the host of rank 0, MASTER_PORT to a free port "
        f"there, and pass both and WARPTAPE_SECRET on with `mpirun {option}`"
    )
    host, port = reader.address(name, remedy)
    job = f"mpi-{_digest(name, host, port)}"
    return Environment(*ranks, name, job, 0, "tcp", host, port, reader.secret(name))


def _open_mpi(reader: _Reader) -> Environment:
    stem = "OMPI_COMM_WORLD_"
    names = [stem + part for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    ranks = reader.ranks("Open MPI", *names)
    job = reader.environ.get("PMIX_NAMESPACE") or reader.text("OMPI_MCA_ess_base_jobid", "Open MPI")
    return _mpi(reader, "Open MPI", ranks, job, "-x MASTER_ADDR -x MASTER_PORT -x WARPTAPE_SECRET")


def _hydra(reader: _Reader, ancestor: Callable[[str], int | None]) -> Environment:
    """MPICH and its relatives. Nothing in the environment names the job: its proxy on this host does."""
    ranks = reader.ranks("Hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    job = ancestor("hydra_pmi_proxy") or os.getppid()
    return _mpi(reader, "Hydra", ranks, job, "-genvlist MASTER_ADDR,MASTER_PORT,WARPTAPE_SECRET")


def _srun(reader: _Reader) -> Environment:
    name = "srun"
    node = reader.optional("SLURM_NODEID", name, 0)
    tasks = tasks_per_node(reader.text("SLURM_STEP_TASKS_PER_NODE", name))
    if node >= len(tasks):
        raise MissingRank(f"srun: expected SLURM_NODEID to be less than {len(tasks)} nodes, got {node}")
    local = {"local tasks": str(tasks[node])}
    with_local = _Reader({**reader.environ, **local})
    ranks = with_local.ranks(name, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "local tasks")
    step = (reader.text("SLURM_JOB_ID", name), reader.text("SLURM_STEP_ID", name))
    restart = reader.optional("SLURM_RESTART_COUNT", name, 0)
    job = "srun-" + _digest(*step)
    if ranks[1] == ranks[3]:
        return Environment(*ranks, name, job, restart)
    host = reader.environ.get("MASTER_ADDR") or first_host(reader.text("SLURM_STEP_NODELIST", name))
    # Below the ports that the system hands out, and another one for each step.
    port = reader.optional("MASTER_PORT", name, 20000 + int(_digest(*step), 16) % 10000)
    return Environment(*ranks, name, job, restart, "tcp", host.strip("[]"), port, reader.secret(name))


def tasks_per_node(text: str) -> list[int]:
    """Tasks on each node of Slurm's short form: "2(x3),1" is [2, 2, 2, 1]."""
    result: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", item)
        if match is None:
            raise MissingRank(f"srun: expected SLURM_STEP_TASKS_PER_NODE as 2(x3),1, got {text!r}")
        result += [int(match[1])] * int(match[2] or 1)
    return result


def first_host(nodes: str) -> str:
    """The first host of Slurm's short form: of "node[07-12,20],login" node07."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def _ancestor(name: str) -> int | None:
    """The process id of the nearest ancestor whose name (its first 15 bytes) is `name`."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat") as file:
                comm, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:
            return None
        if comm == name[:15]:
            return pid
        pid = int(rest.split()[1])
    return None
