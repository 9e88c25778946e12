"""Several nodes: launchers on the loopback interface that meet, restart and end together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from launched import SECRET, Nodes, lines, until
from time_limits import seconds

SHOW = """
import json, os, sys, time
names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'GROUP_WORLD_SIZE',
         'MASTER_ADDR', 'MASTER_PORT', 'WARPTAPE_JOB', 'WARPTAPE_SECRET', 'TORCHELASTIC_RESTART_COUNT')
sys.stdout.write(json.dumps({name: os.environ[name] for name in names}) + chr(10))
sys.stdout.flush()
rank, attempt = int(os.environ['RANK']), int(os.environ['TORCHELASTIC_RESTART_COUNT'])
"""


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str = "") -> str:
        (tmp_path / "script.py").write_text(SHOW + text)
        return str(tmp_path / "script.py")

    return write


@pytest.fixture
def nodes():
    result = Nodes("--nnodes=2")
    with result.stack:
        yield result
    assert not result.listening()


def finish(*jobs) -> tuple[list[int], list[str], list[str]]:
    results = [job.finish() for job in jobs]
    assert [job.left() for job in jobs] == [[] for _ in jobs]
    codes, outs, errs = zip(*results)
    return list(codes), list(outs), list(errs)


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_two_nodes_are_one_job(nodes: Nodes, script, backend: str) -> None:
    path = script()
    ranks = [["--node-rank=0"], ["--node-rank=1"]] if backend == "static" else [[], []]
    first = nodes.start(f"--rdzv-backend={backend}", *ranks[0], "--nproc-per-node=2", path)
    until(nodes.listening)  # so that it is the host in order of arrival, too
    codes, outs, errs = finish(first, nodes.start(f"--rdzv-backend={backend}", *ranks[1], path))
    assert codes == [0, 0], errs
    found = sorted(lines(outs[0]) + lines(outs[1]), key=lambda rank: rank["RANK"])
    places = [
        [rank[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")] for rank in found
    ]
    assert places == [["0", "0", "2", "0"], ["1", "1", "2", "0"], ["2", "0", "1", "1"]]
    for name, value in (("WORLD_SIZE", "3"), ("GROUP_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        assert {rank[name] for rank in found} == {value}
    for name in ("MASTER_PORT", "WARPTAPE_JOB", "WARPTAPE_SECRET"):
        assert len({rank[name] for rank in found}) == 1
    assert int(found[0]["MASTER_PORT"]) != nodes.port
    assert found[0]["WARPTAPE_SECRET"] != SECRET
    bytes.fromhex(found[0]["WARPTAPE_SECRET"])


def test_the_guest_may_come_first(nodes: Nodes, script) -> None:
    path = script()
    guest = nodes.start("--node-rank=1", path)
    nodes.knocked()
    codes, _, errs = finish(nodes.start("--node-rank=0", path), guest)
    assert codes == [0, 0], errs


def test_a_failure_restarts_all_nodes(nodes: Nodes, script) -> None:
    path = script("time.sleep(60 if rank == 0 else 0.1) if attempt == 0 else 0\nsys.exit(5 * (attempt == 0))")
    host = nodes.start("--node-rank=0", "--max-restarts=1", path)
    codes, outs, errs = finish(host, nodes.start("--node-rank=1", path))
    assert codes == [0, 0], errs
    for out, err in zip(outs, errs):
        assert [rank["TORCHELASTIC_RESTART_COUNT"] for rank in lines(out)] == ["0", "1"]
        assert "rank 1 failed first: exit code 5" in err


def test_all_nodes_tell_the_cause_and_exit_with_its_code(nodes: Nodes, script) -> None:
    path = script("time.sleep(60 if rank == 0 else 0.1)\nsys.exit(6)")
    codes, _, errs = finish(nodes.start("--node-rank=0", path), nodes.start("--node-rank=1", path))
    assert codes == [6, 6]
    assert all("rank 1 failed first: exit code 6" in err for err in errs)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_lost_launcher_ends_the_job(nodes: Nodes, script, killed: int) -> None:
    path = script("time.sleep(60)")
    jobs = [nodes.start(f"--node-rank={node}", "--max-restarts=3", path) for node in range(2)]
    for job in jobs:
        assert job.process.stdout.readline()
    os.kill(jobs[killed].pid, signal.SIGKILL)
    begin = time.monotonic()
    code, _, err = jobs[1 - killed].finish()
    assert (code, f"the launcher of node {killed}" in err) == (1, True), err
    assert time.monotonic() - begin < seconds(2)
    until(lambda: [job.left() for job in jobs] == [[], []], 1.0)


@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_at_one_node_ends_all(nodes: Nodes, script, signalled: int) -> None:
    path = script("time.sleep(60)")
    jobs = [nodes.start(f"--node-rank={node}", "--max-restarts=3", path) for node in range(2)]
    for job in jobs:
        assert job.process.stdout.readline()
    os.kill(jobs[signalled].pid, signal.SIGTERM)
    codes, _, errs = finish(*jobs)
    assert codes == [143, 143], errs


def test_wrong_secret(nodes: Nodes, script) -> None:
    path = script()
    host = nodes.start("--node-rank=0", path)
    bad = nodes.start("--node-rank=1", path, env={"WARPTAPE_SECRET": SECRET + "!"})
    code, _, err = bad.finish()
    assert (code, "has another secret" in err) == (2, True), err
    codes, _, errs = finish(host, nodes.start("--node-rank=1", path))  # the job goes on without it
    assert codes == [0, 0]
    assert errs[0].count("does not know WARPTAPE_SECRET was refused") == 1


def test_garbage_and_silence_stop_nobody(nodes: Nodes, script) -> None:
    path = script()
    host = nodes.start("--node-rank=0", path)
    until(nodes.listening)
    address = ("127.0.0.1", nodes.port)
    with contextlib.ExitStack() as stack:
        for number in range(600):
            peer = stack.enter_context(socket.create_connection(address))
            if number % 3:
                peer.sendall(b"GET / HTTP/1.1\r\n" if number % 3 == 1 else os.urandom(200))
        begin = time.monotonic()
        codes, _, errs = finish(nodes.start("--node-rank=1", path), host)
        assert codes == [0, 0], errs
        assert time.monotonic() - begin < seconds(3)


def test_someone_elses_server_at_the_endpoint(nodes: Nodes, script) -> None:
    with socket.create_server(("127.0.0.1", nodes.port)) as server:
        guest = nodes.start("--node-rank=1", "--rdzv-conf=join_timeout=0.5", script())
        connection, _ = server.accept()
        connection.sendall(b"SSH-2.0-OpenSSH\r\n")
        connection.close()
        server.close()
        code, _, err = guest.finish()
    assert (code, "no launcher answers at 127.0.0.1" in err, "Traceback" in err) == (2, True, False), err


def test_missing_node_is_named(nodes: Nodes, script) -> None:
    job = nodes.start("--node-rank=0", "--rdzv-conf=join_timeout=0.3", script())
    code, _, err = job.finish()
    assert code == 2
    assert "1 of 2 nodes came within 0.3 s; missing: node 1" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--node-rank=1"], "node rank 1 is taken"),
        (["--node-rank=2", "--rdzv-id=other"], "node 0 has run_id 'none', this node 'other'"),
        (["--node-rank=0"], "another node was started as node 0"),
    ],
)
def test_wrong_node_is_refused(nodes: Nodes, script, flags: list[str], words: str) -> None:
    path = script("time.sleep(60)")
    host = nodes.start("--nnodes=3", "--node-rank=0", path)
    until(nodes.listening)
    guests = [nodes.start("--nnodes=3", *own, path) for own in (["--node-rank=1"], flags)]
    until(lambda: any(guest.process.poll() is not None for guest in guests))
    (refused,) = [guest for guest in guests if guest.process.poll() is not None]
    code, _, err = refused.finish()
    assert code in (1, 2)
    assert words in err
    assert host.process.poll() is None


def test_ctrl_c_while_waiting_for_nodes(nodes: Nodes, script) -> None:
    for flags in (["--node-rank=0"], ["--node-rank=1"]):
        job = nodes.start(*flags, script())
        if flags == ["--node-rank=0"]:
            until(nodes.listening)
        else:  # in its imports Ctrl-C would end it as any program, with a traceback
            nodes.knocked()
        os.kill(job.pid, signal.SIGINT)
        code, _, err = job.finish(5)
        assert code in (2, 130), err
        assert "Traceback" not in err


def test_a_message_is_read_only_after_the_proof() -> None:
    """The host's side alone: what comes before the proof is never interpreted, whatever it looks like."""
    from warptape.distributed.launcher import rendezvous

    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as peer:
        unproven = rendezvous.UnauthenticatedPeer(server.accept()[0], SECRET)
        nonce = peer.recv(64)
        assert len(nonce) == rendezvous.NONCE
        own = bytes(32)
        proof = rendezvous.proof(SECRET, b"guest", nonce, own)
        peer.sendall(own + proof[:-1])
        time.sleep(0.05)
        assert unproven.read() is None
        peer.sendall(bytes([proof[-1] ^ 1]) + b"{}")
        time.sleep(0.05)
        assert unproven.read() is False
        assert peer.recv(64) == rendezvous.REFUSAL
        unproven.socket.close()
