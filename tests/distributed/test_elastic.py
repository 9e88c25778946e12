"""Nodes that join, leave, die and come back while a job runs: launchers on one machine, as nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import warptape.distributed as dist
from launched import LAUNCHER, SECRET, Hosts, Job, Nodes, environ, launch, started, until
from time_limits import seconds

# A rank says who it is and waits until the test makes the file `end`.
SCRIPT = """
import json, os, sys, time
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_MAX_RESTARTS", "WARPTAPE_ATTEMPT", "MASTER_PORT")
sys.stdout.write(json.dumps([os.environ[name] for name in names]) + chr(10))
sys.stdout.flush()
folder = os.path.dirname(__file__)
while not os.path.exists(folder + "/end"):
    time.sleep(0.02)
    if os.environ["RANK"] == "0" and os.path.exists(folder + "/fail"):
        os.remove(folder + "/fail")
        sys.exit(5)
"""


class Elastic(Nodes):
    """A job of `nnodes` nodes whose ranks wait for `end`."""

    def __init__(self, folder: Path, nnodes: str, *flags: str) -> None:
        conf = (
            "--rdzv-conf=join_timeout=20,last_call_timeout=0.5,keep_alive_interval=1,keep_alive_max_attempt=2"
        )
        super().__init__(f"--nnodes={nnodes}", "--rdzv-backend=c10d", conf, *flags)
        self.folder = folder
        (folder / "script.py").write_text(SCRIPT)

    def node(self, *flags: str) -> Job:
        """One more node; the first listens when this returns."""
        job = self.start(*flags, self.folder / "script.py")
        until(self.listening)
        return job

    def end(self) -> None:
        (self.folder / "end").touch()


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest):
    result = Elastic(tmp_path, *request.param)
    with result.stack:
        yield result
    assert not result.listening()


def of(*arguments: str):
    return pytest.mark.parametrize("job", [arguments], indirect=True)


def says(node: Job) -> dict[str, str]:
    """What the node's next rank says it is."""
    line = node.process.stdout.readline()
    assert line, node.finish()
    names = ("rank", "world", "local", "node", "nodes", "restarts", "most", "attempt", "port")
    return dict(zip(names, json.loads(line), strict=True))


def place(node: Job, world: int) -> tuple[int, int]:
    """(rank, restarts) of the node's next rank in a world of this size: nodes of which one came late make a
    smaller one first."""
    while (said := says(node))["world"] != str(world):
        pass
    return int(said["rank"]), int(said["restarts"])


def places(*nodes: Job) -> list[tuple[int, int]]:
    """(rank, restarts) of one rank each when all of these nodes are there, sorted."""
    return sorted(place(node, len(nodes)) for node in nodes)


def well(*nodes: Job, codes: tuple[int, ...] = ()) -> list[str]:
    """The nodes' standard errors, ended with these codes (0 each) and nothing left."""
    results = [node.finish() for node in nodes]
    assert tuple(code for code, _, _ in results) == (codes or (0,) * len(nodes)), results
    assert [node.left() for node in nodes] == [[]] * len(nodes)
    return [err for _, _, err in results]


@of("1:3", "--max-restarts=2")
def test_a_node_joins_and_one_leaves(job: Elastic) -> None:
    """Neither is a failure: the count of restarts stays."""
    first = job.node("--nproc-per-node=2")
    alone = [says(first), says(first)]
    assert [(said["world"], said["attempt"], said["most"]) for said in alone] == [("2", "0", "2")] * 2
    second = job.node()
    both = [says(first), says(first), says(second)]
    assert sorted(said["rank"] for said in both) == ["0", "1", "2"]
    assert {(said["world"], said["nodes"], said["restarts"], said["attempt"]) for said in both} == {
        ("3", "2", "0", "1")
    }
    assert both[2]["node"] == "1" and both[2]["local"] == "0"
    assert len({said["port"] for said in both}) == 1
    os.kill(second.pid, signal.SIGTERM)
    assert places(first, first) == [(0, 0), (1, 0)]
    job.end()
    error, _ = well(first, second, codes=(0, 143))
    assert "joins" in error and "leaves" in error and "start 2: 1 nodes, 2 ranks" in error


@of("2:3", "--max-restarts=2")
def test_a_killed_node_is_left_out_and_comes_back(job: Elastic) -> None:
    nodes = [job.node() for _ in range(3)]
    assert places(*nodes) == [(0, 0), (1, 0), (2, 0)]
    os.kill(nodes[1].pid, signal.SIGKILL)
    left = [nodes[0], nodes[2]]
    assert places(*left) == [(0, 1), (1, 1)]
    back = job.node()
    assert places(*left, back) == [(0, 1), (1, 1), (2, 1)]
    job.end()
    error, other, _ = well(*left, back)
    assert "is gone; restarting (1 of 2)" in error and "is gone; restarting (1 of 2)" in other


@of("1:2")
def test_a_lost_node_needs_a_restart_that_is_left(job: Elastic) -> None:
    nodes = [job.node() for _ in range(2)]
    places(*nodes)
    os.kill(nodes[1].pid, signal.SIGKILL)
    (error,) = well(nodes[0], codes=(1,))
    assert "the launcher of node 1" in error and "is gone" in error


@of("2:3", "--max-restarts=5")
def test_too_few_nodes_wait_and_then_give_up(job: Elastic) -> None:
    guest = job.start("--rdzv-conf=is_host=false", job.folder / "script.py")
    job.knocked()  # so that the short limit is not over when they first meet
    host = job.node("--rdzv-conf=join_timeout=1.5,last_call_timeout=0.2")
    places(host, guest)
    os.kill(guest.pid, signal.SIGTERM)
    error, _ = well(host, guest, codes=(2, 143))
    assert "1 of 2 nodes were left, and no more came, within 1.5 s" in error


@of("2:3", "--max-restarts=5")
def test_too_few_nodes_wait_for_one_that_comes(job: Elastic) -> None:
    nodes = [job.node() for _ in range(2)]
    places(*nodes)
    os.kill(nodes[1].pid, signal.SIGTERM)
    well(nodes[1], codes=(143,))
    time.sleep(1)  # twice the last call: it does not start alone
    nodes[1] = job.node()
    assert places(*nodes) == [(0, 0), (1, 0)]
    job.end()
    well(*nodes)


@of("1:3", "--max-restarts=5")
def test_without_node_0_the_job_ends(job: Elastic) -> None:
    nodes = [job.node() for _ in range(3)]
    places(*nodes)
    os.kill(nodes[0].pid, signal.SIGKILL)
    for error in well(*nodes[1:], codes=(1, 1)):
        assert f"the launcher of node 0 at 127.0.0.1:{job.port} is gone" in error
        assert "Start it again on all nodes" in error


@of("1:3", "--max-restarts=5")
def test_a_signal_at_node_0_ends_all(job: Elastic) -> None:
    nodes = [job.node() for _ in range(2)]
    places(*nodes)
    os.kill(nodes[0].pid, signal.SIGTERM)
    well(*nodes, codes=(143, 143))


@of("1:2", "--max-restarts=1")
def test_one_too_many_takes_the_place_of_a_lost_one(job: Elastic) -> None:
    nodes = [job.node() for _ in range(2)]
    assert places(*nodes) == [(0, 0), (1, 0)]
    spare = job.node()
    assert "the job has its 2 nodes; this one waits for a place" in spare.process.stderr.readline()
    os.kill(nodes[1].pid, signal.SIGKILL)
    assert places(nodes[0], spare) == [(0, 1), (1, 1)]
    job.end()
    well(nodes[0], spare)


@of("2", "--max-restarts=1")
def test_a_fixed_number_waits_for_a_new_node(job: Elastic) -> None:
    nodes = [job.node() for _ in range(2)]
    places(*nodes)
    os.kill(nodes[1].pid, signal.SIGKILL)
    nodes[1] = job.node()
    assert places(*nodes) == [(0, 1), (1, 1)]
    job.end()
    well(*nodes)


@of("1:2", "--max-restarts=1")
def test_a_failure_and_then_a_join(job: Elastic) -> None:
    first = job.node()
    assert places(first) == [(0, 0)]
    (job.folder / "fail").touch()
    assert places(first) == [(0, 1)]
    second = job.node()
    assert places(first, second) == [(0, 1), (1, 1)]
    (job.folder / "fail").touch()
    for error in well(first, second, codes=(5, 5)):
        assert "rank 0 failed first: exit code 5" in error


@of("1:3", "--max-restarts=1")
def test_a_range_must_be_the_same_on_all(job: Elastic) -> None:
    first = job.node()
    places(first)
    (error,) = well(job.node("--nnodes=1:2"), codes=(1,))
    assert "node 0 has nnodes '1:3', this node '1:2'" in error
    job.end()
    well(first)


TYPED = """
import sys
from warptape.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError
from warptape.distributed.run import get_args_parser, run
try:
    run(get_args_parser().parse_args(sys.argv[1:]))
except (RendezvousConnectionError, RendezvousTimeoutError) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("conf", "name"),
    [("is_host=true", "RendezvousTimeoutError"), ("is_host=false", "RendezvousConnectionError")],
)
def test_from_python_the_errors_have_types(conf: str, name: str) -> None:
    job = Nodes("--nnodes=2:3", "--rdzv-backend=c10d", f"--rdzv-conf=join_timeout=0.5,{conf}")
    command = [sys.executable, "-c", TYPED, *job.flags, __file__]
    with started(command, WARPTAPE_SECRET=SECRET) as program:
        code, out, err = program.finish()
    assert (code, out) == (0, f"{name}\n"), err


def test_variables_are_defaults() -> None:
    """As Kubeflow's operator sets them for an elastic job."""
    pet = {"RDZV_BACKEND": "c10d", "RDZV_ENDPOINT": "127.0.0.1:1", "NNODES": "2:3", "MAX_RESTARTS": "4"}
    pet |= {"RDZV_ID": "job", "RDZV_CONF": "join_timeout=0.3,keep_alive_interval=2", "NPROC_PER_NODE": "2"}
    variables = {f"PET_{name}": value for name, value in pet.items()}
    code, _, err = launch(__file__, WARPTAPE_SECRET=SECRET, **variables)
    # Port 1: nobody answers, and only who may bind it becomes node 0.
    assert code == 2 and ("within 0.3 s" in err or "of 2 nodes came" in err), err


@pytest.mark.parametrize("conf", ["last_call_timeout=soon", "keep_alive_interval=0", "join_timeout=-1"])
def test_wrong_times_are_refused(conf: str) -> None:
    code, _, err = launch("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-conf={conf}", "x.py")
    assert code == 2 and f"--rdzv-conf: {conf.partition('=')[0]}: expected a number from" in err


EXAMPLE = Path(__file__).parents[2] / "examples/cluster/elastic.py"


class Training:
    """The example on nodes, compared with one undisturbed process."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.arguments = [EXAMPLE, f"--steps={steps}", "--save-every=5"]
        self.checkpoints = folder / "run"
        alone = [*LAUNCHER, *map(str, self.arguments), f"--checkpoints={folder}/alone"]
        done = subprocess.run(alone, capture_output=True, text=True, env=environ(), timeout=seconds(60))
        assert done.returncode == 0, done.stderr
        self.expected = json.loads(done.stdout.splitlines()[-1])
        self.arguments += ["--pause=0.1", f"--checkpoints={self.checkpoints}"]

    def goes_on(self, host: Job, ranks: int) -> int:
        """Wait for a start of so many ranks, and its next checkpoint; the step from which it went on."""
        while not (line := host.process.stdout.readline()).endswith(f"with {ranks} ranks\n"):
            assert line, host.finish()
        step = int(line.split()[4])
        until(lambda: any(int(path.name[5:]) > step for path in self.checkpoints.glob("step-*")), 60)
        return step

    def ends_well(self, *nodes: Job) -> None:
        """The nodes end, with the parameters of one process to rounding."""
        results = [node.finish(120) for node in nodes]
        said = "\n".join(f"-- exit code {code}\n{out}{err}" for code, out, err in results)
        assert [code for code, _, _ in results] == [0] * len(nodes), said
        found = json.loads(results[0][1].splitlines()[-1])
        assert found["steps"] == self.expected["steps"]
        assert abs(found["parameters"] - self.expected["parameters"]) < 1e-9


def test_a_training_goes_on_through_it_all(tmp_path: Path) -> None:
    """A join, a kill -9 and a node that comes back."""
    training = Training(tmp_path, steps=120)
    conf = "--rdzv-conf=last_call_timeout=0.3"
    job = Nodes("--nnodes=1:3", "--rdzv-backend=c10d", "--max-restarts=1", conf)
    with job.stack:
        nodes = [job.start(*training.arguments)]
        assert training.goes_on(nodes[0], 1) == 0
        nodes.append(job.start(*training.arguments))
        assert training.goes_on(nodes[0], 2) >= 5
        nodes.append(job.start(*training.arguments))
        training.goes_on(nodes[0], 3)
        os.kill(nodes[1].pid, signal.SIGKILL)
        training.goes_on(nodes[0], 2)
        nodes[1] = job.start(*training.arguments)
        assert training.goes_on(nodes[0], 3) >= 20
        training.ends_well(*nodes)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="built without gloo (apt-get install libgloo-dev)")
def test_four_hosts_of_which_one_loses_its_network(hosts: Hosts, tmp_path: Path) -> None:
    """No packet says that it is gone: the keep-alive notices, on both sides. Then a launcher is killed."""
    training = Training(tmp_path, steps=150)
    conf = "--rdzv-conf=last_call_timeout=0.5,keep_alive_interval=1,keep_alive_max_attempt=2"
    flags = ["--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400", "--max-restarts=2"]
    command = [*LAUNCHER, *flags, conf, *map(str, training.arguments)]
    with ExitStack() as stack:

        def node(number: int) -> Job:
            on_host = ["ip", "netns", "exec", hosts.names[number], *command]
            return stack.enter_context(started(on_host, WARPTAPE_SECRET=SECRET, OMP_NUM_THREADS="1"))

        nodes = [node(number) for number in range(4)]
        training.goes_on(nodes[0], 4)
        hosts.link(2, "down")
        assert training.goes_on(nodes[0], 3) >= 5
        code, _, err = nodes[2].finish()
        assert (code, "the launcher of node 0 at 10.77.0.1:29400 is gone" in err) == (1, True), err
        hosts.link(2, "up")
        nodes[2] = node(2)
        training.goes_on(nodes[0], 4)
        os.kill(nodes.pop().pid, signal.SIGKILL)
        assert training.goes_on(nodes[0], 3) >= 15
        training.ends_well(*nodes)
        until(lambda: all(each.left() == [] for each in nodes))
