"""torch.ops._c10d_functional against the collectives of torch.distributed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape.distributed.groups import get_default_group


def simulate(n: int, fn: Callable[..., Any]) -> list[Any]:
    return dist.simulate(n, fn, timeout=timedelta(seconds=30))


def test_values() -> None:
    ops = wt.ops._c10d_functional

    def run() -> None:
        rank, name = dist.get_rank(), get_default_group().group_name
        x = wt.arange(4.0) + rank
        total = wt.arange(4.0) * 2 + 1
        assert ops.wait_tensor(ops.all_reduce(x, "sum", name)).equal(total)
        assert ops.all_reduce.default(x, "avg", name).equal(total / 2) and x.equal(wt.arange(4.0) + rank)
        assert [t.tolist() for t in ops.all_reduce_coalesced([x, x[:1]], "max", name)] == [[1, 2, 3, 4], [1]]
        both = wt.cat([wt.arange(4.0), wt.arange(4.0) + 1])
        assert ops.all_gather_into_tensor(x, 2, name).equal(both)
        assert ops.all_gather_into_tensor_coalesced([x], 2, name)[0].equal(both)
        part = total[2 * rank : 2 * rank + 2]
        assert ops.reduce_scatter_tensor(x, "sum", 2, name).equal(part)
        assert ops.reduce_scatter_tensor_coalesced([x], "sum", 2, name)[0].equal(part)
        sent = ops.all_to_all_single.default(x, [1, 1] if rank else [3, 3], [3, 1], name)
        assert sent.tolist() == ([3, 4] if rank else [0, 1, 2, 1, 2, 3])
        assert ops.broadcast(x, 1, name).equal(wt.arange(4.0) + 1)
        assert ops.all_reduce_(x, "sum", name) is x and x.equal(total)
        x.fill_(rank)
        assert ops.broadcast_(x, 1, name) is x and x.tolist() == [1] * 4

    simulate(2, run)


def test_ranks_of_a_part_of_the_job() -> None:
    """A source is a rank of the group."""

    def run() -> None:
        pair = dist.new_group([1, 2])
        if dist.get_rank():
            x = wt.full((2,), float(dist.get_rank()))
            found = wt.ops._c10d_functional.broadcast(x, 1, pair.group_name)
            assert found.tolist() == [2, 2]
            assert dist.distributed_c10d._resolve_process_group(pair.group_name) is pair

    simulate(3, run)


def test_gradients_and_errors() -> None:
    ops = wt.ops._c10d_functional

    def run() -> None:
        rank, name = dist.get_rank(), get_default_group().group_name
        x = wt.ones(2, requires_grad=True)
        (ops.all_gather_into_tensor(x, 2, name) * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [3, 3]
        with pytest.raises(ValueError, match="expected group_size 2, the group's ranks, got 3"):
            ops.reduce_scatter_tensor(x, "sum", 3, name)
        with pytest.raises(ValueError, match="no group named 'none'"):
            ops.all_reduce(x, "sum", "none")
        with pytest.raises(AttributeError):
            ops.all_gather_something

    simulate(2, run)


def test_a_group_gets_another_timeout() -> None:
    """A rank that waits alone is told so after the group's own time, others' groups keep theirs."""
    set_timeout, waited = dist.distributed_c10d._set_pg_timeout, threading.Event()

    def run() -> None:
        pair = dist.new_group([0, 1])
        if dist.get_rank() == 2:
            with pytest.raises(ValueError, match="Invalid process group"):
                set_timeout(timedelta(seconds=1), pair)
            return
        set_timeout(timedelta(seconds=0.5), pair)
        assert pair._timeout == timedelta(seconds=0.5)
        assert get_default_group()._timeout == timedelta(seconds=30)
        if dist.get_rank() == 0:
            begin = time.monotonic()
            with pytest.raises(dist.DistBackendError):
                dist.all_reduce(wt.ones(1), group=pair)
            assert 0.4 < time.monotonic() - begin < 20
            waited.set()
        waited.wait(25)  # a rank that leaves would be told of at once

    simulate(3, run)
    dist.simulate(1, lambda: set_timeout(timedelta(seconds=3)))
