"""A few of the faults that tests/serve_faults.py plants in any number."""

import asyncio
import copy
import random

import pytest
import serve_faults
from serving_models import Process, write_adapter


def test_kills_change_no_answer(repository, tmp_path):
    """Of streams, of those with an adapter that was loaded at run time, and of an encoder."""
    folder = repository / "llm" / "1"
    adapter = write_adapter(tmp_path / "adapter", folder)
    expected = serve_faults.expected_of(folder, serve_faults.requests_of(20, 300, True), adapter)
    with Process(repository, "--admin-token", "boss", "--access-log", "off", token=None) as server:
        server.token = "boss"
        args = {"clients": 4, "every": 1.5, "expected": expected}
        row = asyncio.run(serve_faults.kills(server, folder, 3, adapter=adapter, **args))
        assert row["different"] == row["read differently"] == 0 and row["kills"] == 3, row
        assert row["streams"] >= 8 and row["texts read"] >= 4
        planted = copy.deepcopy(expected)
        for answers in planted:
            answers[0][0][-1] ^= 1
        args = {"clients": 2, "expected": planted}
        row = asyncio.run(serve_faults.kills(server, folder, 1, **args))
        assert row["different"] == row["streams"] > 0


def test_clients_that_leave(server):
    row = asyncio.run(serve_faults.disconnects(server, 60))
    assert row["page use"] == row["requests left"] == 0


def test_mutated_requests(repository, tmp_path):
    """To all routes, with the orders of admins among them."""
    folder = repository / "llm" / "1"
    orders = serve_faults.orders_of(folder, write_adapter(tmp_path / "adapter", folder))
    short = ("--header-seconds", 0.3, "--body-seconds", 0.3, "--access-log", "off")
    with Process(repository, *short, "--admin-token", "secret") as process:
        row = asyncio.run(serve_faults.mutated(process, 800, [*serve_faults.BASES, *orders]))
    assert row["500s"] == 0 and row["alive"], row
    assert row["statuses"].get(200, 0) > 20 and row["statuses"].get(400, 0) > 200


def test_overload_is_refused_not_queued(repository):
    row = asyncio.run(serve_faults.overload(repository, 10, seconds=1.0))
    assert set(row["statuses"]) == {200, 429}, row
    assert row["part"] > 0.3  # the command asks for 0.8, of a machine that has nothing else to do


@pytest.mark.parametrize("seed", range(3))
def test_mutations_change_something(seed):
    rng = random.Random(seed)
    _, base = serve_faults.BASES[seed]
    assert sum(serve_faults.mutated_json(rng, base) != base for _ in range(100)) > 70
    assert sum(serve_faults.mutated_bytes(rng, b"abc" * 20) != b"abc" * 20 for _ in range(100)) > 70
