"""Which rank am I: tables of environments, then what real launchers give."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launched import SECRET, free_port, lines, started
from warptape.distributed._environment import (
    MissingRank,
    find,
    first_host,
    tasks_per_node,
)

OURS = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1234",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "WARPTAPE_ATTEMPT": "3",
    "TORCHELASTIC_RUN_ID": "none",
    "WARPTAPE_JOB": "abc",
}
TORCHRUN = {k: v for k, v in OURS.items() if k != "WARPTAPE_JOB"} | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_MCA_ess_base_jobid": "733347841",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x2)",
    "SLURM_STEP_NODELIST": "gpu[007-009,12]",
    "WARPTAPE_SECRET": SECRET,
} | {"SLURM_PROCID": "4"}
SRUN_ONE = SRUN | {"SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "6", "SLURM_LOCALID": "4"}
TWO_HOSTS = {"WORLD_SIZE": "4", "RANK": "3", "WARPTAPE_SECRET": SECRET, "MASTER_ADDR": "node1"}
# What an sbatch script finds that does not use srun.
BATCH = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
}

CASES = {
    "nothing": ({}, None),
    "batch script": (BATCH, None),
    "salloc's shell": (SRUN | {"SLURM_STEP_ID": "4294967290"}, None),
    "only an address": ({"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, None),
    "ours": (OURS, ((1, 2, 1, 2), "warptape-run", 3, "unix", None, None, None)),
    "ours, two hosts": (
        OURS | TWO_HOSTS,
        ((3, 4, 1, 2), "warptape-run", 3, "tcp", ("node1", 1234), SECRET, None),
    ),
    "torchrun": (TORCHRUN, ((1, 2, 1, 2), "torchrun", 3, "unix", None, None, None)),
    "torchrun, two hosts": (
        TORCHRUN | TWO_HOSTS,
        ((3, 4, 1, 2), "torchrun", 3, "tcp", (None, None), SECRET, ("node1", 1234)),
    ),
    "torchrun, two hosts, no agent store": (
        TORCHRUN | TWO_HOSTS | {"TORCHELASTIC_USE_AGENT_STORE": "False"},
        ((3, 4, 1, 2), "torchrun", 3, "tcp", ("node1", 1234), SECRET, None),
    ),
    "by hand": (HAND, ((1, 2, 1, 2), "by hand", 0, "unix", None, None, None)),
    "by hand, two hosts": (
        HAND | TWO_HOSTS | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "[fd00::1]"},
        ((3, 4, 1, 2), "by hand", 0, "tcp", ("fd00::1", 1234), SECRET, None),
    ),
    "by hand, two hosts on one": (
        HAND | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WARPTAPE_SECRET": SECRET},
        ((1, 2, 0, 1), "by hand", 0, "tcp", ("localhost", 1234), SECRET, None),
    ),
    "Open MPI": (OMPI, ((3, 4, 3, 4), "Open MPI", 0, "unix", None, None, None)),
    "Open MPI under srun": (SRUN | OMPI, ((3, 4, 3, 4), "Open MPI", 0, "unix", None, None, None)),
    "Open MPI, two hosts": (
        OMPI
        | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        | {"MASTER_ADDR": "node1", "MASTER_PORT": "99", "WARPTAPE_SECRET": SECRET},
        ((3, 4, 1, 2), "Open MPI", 0, "tcp", ("node1", 99), SECRET, None),
    ),
    "Hydra": (HYDRA, ((1, 2, 1, 2), "Hydra", 0, "unix", None, None, None)),
    "srun": (SRUN_ONE, ((4, 6, 4, 6), "srun", 0, "unix", None, None, None)),
    "srun with PMI": (
        SRUN_ONE | {"PMI_RANK": "4", "PMI_SIZE": "6"},
        ((4, 6, 4, 6), "srun", 0, "unix", None, None, None),
    ),
    "srun, four hosts": (
        SRUN | {"MASTER_PORT": "99", "SLURM_RESTART_COUNT": "2"},
        ((4, 6, 0, 1), "srun", 2, "tcp", ("gpu007", 99), SECRET, None),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_table(name: str) -> None:
    given, expected = CASES[name]
    found = find(given, ancestor=lambda name: 42)
    if expected is None:
        assert found is None
        return
    ranks, launcher, restart, rendezvous, address, secret, agent_store = expected
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == ranks
    assert (found.launcher, found.restart, found.rendezvous) == (launcher, restart, rendezvous)
    assert (found.host, found.port) == (address or (None, None))
    assert (found.secret, found.agent_store) == (secret, agent_store)
    assert len(found.socket_name(4_000_000_000).encode()) <= 108


BAD = {
    "rank missing": (
        {k: v for k, v in OURS.items() if k != "RANK"},
        "variable RANK is missing",
        "warptape-run",
    ),
    "only a rank": ({"RANK": "0"}, "variable WORLD_SIZE is missing", "warptape-run --nproc-per-node=2"),
    "no port": (HAND | {"MASTER_PORT": ""}, "variable MASTER_PORT is missing", "set RANK"),
    "not a number": (HAND | {"RANK": "one"}, "expected RANK to be a number from 0, got 'one'", ""),
    "negative": (HAND | {"RANK": "-1"}, "expected RANK to be a number from 0, got '-1'", ""),
    "rank too large": (HAND | {"RANK": "2"}, "expected RANK to be less than WORLD_SIZE (2), got 2", ""),
    "local world too large": (OURS | {"LOCAL_WORLD_SIZE": "3"}, "to be at most WORLD_SIZE (2)", ""),
    "port too large": (HAND | {"MASTER_PORT": "65536"}, "from 1 to 65535, got 65536", ""),
    "where is everybody": (
        HAND | {"MASTER_ADDR": "node1"},
        "LOCAL_RANK and LOCAL_WORLD_SIZE is missing",
        "127.0.0.1",
    ),
    "torchrun without a secret": (
        TORCHRUN | TWO_HOSTS | {"WARPTAPE_SECRET": ""},
        "torchrun: the ranks are on several hosts",
        "secrets.token_hex(32)",
    ),
    "srun with a short secret": (
        SRUN | {"WARPTAPE_SECRET": "short"},
        "has 5 characters, at least 16",
        "token_hex",
    ),
    "mpirun without an address": (
        OMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        "variable MASTER_ADDR is missing",
        "mpirun -x MASTER_ADDR -x MASTER_PORT -x WARPTAPE_SECRET",
    ),
    "Slurm's tasks": (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(y3)"}, "as 2(x3),1, got '2(y3)'", ""),
    "Slurm's node": (SRUN | {"SLURM_NODEID": "4"}, "SLURM_NODEID to be less than 4 nodes, got 4", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_missing_is_named(name: str) -> None:
    given, words, remedy = BAD[name]
    with pytest.raises(MissingRank) as error:
        find(given)
    assert words in str(error.value)
    assert remedy in str(error.value)
    assert issubclass(MissingRank, ValueError)


def test_jobs_on_one_host_have_different_sockets() -> None:
    jobs = [
        OURS,
        OURS | {"WARPTAPE_JOB": "abd"},
        OURS | {"WARPTAPE_ATTEMPT": "4"},
        TORCHRUN,
        TORCHRUN | {"MASTER_PORT": "1235"},
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "other"},
        TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "4"},
        HAND,
        HAND | {"MASTER_PORT": "1235"},
        OMPI,
        OMPI | {"OMPI_MCA_ess_base_jobid": "733347842"},
        SRUN_ONE,
        SRUN_ONE | {"SLURM_STEP_ID": "1"},
        SRUN_ONE | {"SLURM_JOB_ID": "78"},
        SRUN_ONE | {"SLURM_RESTART_COUNT": "1"},
    ]
    names = [find(job).socket_name(0) for job in jobs]
    names += [find(HYDRA, ancestor=lambda name, pid=pid: pid).socket_name(0) for pid in (7, 8)]
    assert len(set(names)) == len(jobs) + 2


def test_ranks_of_a_job_have_the_same_socket() -> None:
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    own = {"RANK": "0", "LOCAL_RANK": "0"}
    for first, other in ((OURS, own), (TORCHRUN, own), (HAND, {"RANK": "0"}), (OMPI, mpi)):
        mate = find(first | other)
        assert mate.rank != find(first).rank
        assert mate.socket_name(0) == find(first).socket_name(0)


def test_what_the_caller_knows_counts_more() -> None:
    assert find(OURS, rank=1, world_size=2).launcher == "warptape-run"  # says the same
    found = find(OURS, rank=2, world_size=3)
    assert (found.launcher, found.rank, found.world_size, found.local_rank) == ("by hand", 2, 3, 2)
    assert find(OURS, rank=-1, world_size=-1).rank == 1  # torch's "not given"
    assert find({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "5"}, rank=0, world_size=1).rank == 0


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[3-5,9],m", "n3"),
        ("a[01]b[2-3]-ib,c", "a01b2-ib"),
        ("n[12,3]", "n12"),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_tasks_per_node() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("8") == [8]


# -- the real launchers

SCRIPT = """
import json, sys
from dataclasses import asdict
from warptape.distributed import _environment, _torch_store
found = _environment.find()
address = None
if found.agent_store:
    if found.rank == 0:
        _torch_store.publish_address(found, 4321)
    address = _torch_store.find_address(found, 20)
sys.stdout.write(json.dumps({**asdict(found), 'address': address}) + chr(10))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "script.py").write_text(SCRIPT)
    return str(tmp_path / "script.py")


def tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


def check_pair(ranks: list[dict], launcher: str) -> None:
    ranks = sorted(ranks, key=lambda rank: rank["rank"])
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert [rank["local_rank"] for rank in ranks] == [0, 1]
    assert {rank["launcher"] for rank in ranks} == {launcher}
    assert {rank["rendezvous"] for rank in ranks} == {"unix"}
    assert len({rank["job"] for rank in ranks}) == 1


def test_torchrun_on_one_host(script: str) -> None:
    with started([tool("torchrun"), "--nproc-per-node=2", script]) as job:
        code, out, err = job.finish(60)
    assert code == 0, err
    check_pair(lines(out), "torchrun")


def test_torchrun_as_two_hosts_finds_rank_0_by_the_agents_store(script: str) -> None:
    torchrun, port = tool("torchrun"), free_port()
    flags = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
    commands = [[torchrun, *flags, f"--node-rank={node}", script] for node in range(2)]
    with started(commands[0], WARPTAPE_SECRET=SECRET) as a, started(commands[1], WARPTAPE_SECRET=SECRET) as b:
        results = [job.finish(60) for job in (a, b)]
    assert [code for code, _, _ in results] == [0, 0], results
    ranks = [lines(out)[0] for _, out, _ in results]
    assert [rank["agent_store"] for rank in ranks] == [["127.0.0.1", port]] * 2
    assert [rank["address"] for rank in ranks] == [["127.0.0.1", 4321]] * 2
    assert sorted(rank["rank"] for rank in ranks) == [0, 1]


MPIRUN = {
    "Open MPI": ("mpirun.openmpi", ["--oversubscribe", "--allow-run-as-root"]),
    "Hydra": ("mpirun.mpich", []),
}


@pytest.mark.parametrize("launcher", MPIRUN)
def test_mpirun(script: str, launcher: str) -> None:
    name, flags = MPIRUN[launcher]
    command = [tool(name), *flags, "-n", "2", sys.executable, script]
    with started(command) as one, started(command) as two:
        results = [job.finish(60) for job in (one, two)]
    assert [code for code, _, _ in results] == [0, 0], results
    pairs = [lines(out) for _, out, _ in results]
    for pair in pairs:
        check_pair(pair, launcher)
    assert pairs[0][0]["job"] != pairs[1][0]["job"]


def test_srun(script: str) -> None:
    srun = tool("srun")
    if subprocess.run([tool("sinfo"), "-h", "-t", "idle"], capture_output=True, timeout=30).stdout == b"":
        pytest.skip("srun is installed, but no idle node of a cluster answers")
    with started([srun, "-N1", "-n2", sys.executable, script]) as job:
        code, out, err = job.finish(60)
    assert code == 0, err
    check_pair(lines(out), "srun")
