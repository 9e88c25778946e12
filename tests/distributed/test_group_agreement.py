"""Groups that ranks ask for differently: each rank is told at once who asked for what, where."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import warptape as torch
import warptape.distributed as dist
from warptape._C import DistError
from warptape.distributed import DeviceMesh

SOON = 20.0  # seconds; the timeout of the calls is a minute


def told(n: int, call: Callable[[int], Any], within: float = SOON) -> list[str]:
    """What each rank's error says; "" without one."""

    def rank() -> str:
        begin = time.monotonic()
        try:
            call(dist.get_rank())
        except (DistError, ValueError) as error:
            assert time.monotonic() - begin < within
            return str(error)
        return ""

    return dist.simulate(n, rank, timeout=timedelta(minutes=1))


CALLS = {
    "ranks": lambda r: dist.new_group([0, 1] if r == 0 else [0]),
    "not a member": lambda r: dist.new_group([0, 1] if r < 2 else [0, 2]),
    "backend": lambda r: dist.new_group([0, 1], backend="shm" if r == 1 else None),
    "order of calls": lambda r: [dist.new_group(each) for each in ([[0, 1], [0]], [[0], [0, 1]])[r % 2]],
    "local order": lambda r: dist.new_group([[0, 1, 2], [2, 1, 0]][r % 2], use_local_synchronization=True),
    "split": lambda r: dist.split_group(None, [[0, 1], [2]] if r else [[0], [1, 2]]),
    "subgroups": lambda r: dist.new_subgroups(3 if r else 1),
    "enumeration": lambda r: dist.new_subgroups_by_enumeration([[0, 1], [2]] if r else [[0, 2], [1]]),
    "mesh": lambda r: DeviceMesh("cpu", [[0], [1], [2]] if r else [[0, 1, 2]]),
    "names": lambda r: DeviceMesh("cpu", [[0, 1, 2]], mesh_dim_names=("a", "b") if r else ("b", "a")),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_rank_is_told(call: str) -> None:
    for text in told(3, CALLS[call]):
        assert text.startswith("the ranks ask for different groups:")
        assert text.count("\n  rank ") == 2 and f"{__file__}:" in text


def test_what_cannot_be_is_told_to_all() -> None:
    for wrong in ([0, 7], [1, 1], [-1]):
        texts = told(2, lambda r, wrong=wrong: dist.new_group(wrong if r else [0, 1]))
        assert "expected distinct ranks below the world size (2)" in texts[1]
        assert f"rank 1: new_group({sorted(wrong)})" in texts[0]
    texts = told(2, lambda r: dist.split_group(None, [[0, 5]] if r else [[0, 1]]))
    assert "rank 1: split_group([[0, 5]])" in texts[0] and "numbers of ranks below 2" in texts[1]


def test_who_does_not_come_is_named() -> None:
    def call(r: int) -> None:
        dist.new_group([0, 1, 2])
        if r != 1:
            dist.new_group([0, 1], timeout=timedelta(seconds=1))

    first, second, third = told(3, call)
    assert not second
    for text in (first, third):
        assert "timed out after 1 s waiting for rank 1" in text
        assert "rank 1 last asked for new_group([0, 1, 2]) at " in text


def test_groups_go_on_after_a_difference() -> None:
    def rank() -> list[float]:
        with pytest.raises(DistError):
            dist.new_group([0, 1] if dist.get_rank() else [0])
        group = dist.new_group([0, 1])
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        return x.tolist()

    assert dist.simulate(2, rank) == [[2.0], [2.0]]


def test_parts_of_a_group() -> None:
    def rank() -> Any:
        group = dist.new_group([0, 1, 2, 3])
        part = dist.split_group(group, [[3, 0], [1]])
        again = dist.split_group(group, [[0, 1, 2, 3]])
        x = torch.ones(1)
        dist.all_reduce(x, group=again)
        return x.item(), part and dist.get_process_group_ranks(part), part and part.rank()

    found = dist.simulate(4, rank)
    assert found == [(4, [3, 0], 1), (4, [1], 0), (4, None, None), (4, [3, 0], 0)]
    keys = dist.simulate(2, lambda: (dist.new_group([0, 1]), dist.barrier()))
    assert len(keys) == 2


@pytest.mark.parametrize("count", [4, 1_000_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_sends_and_receives_that_do_not_fit(count: int, dtype: Any) -> None:
    def call(r: int) -> None:
        more = int(dtype == torch.float32)
        sent, received = torch.ones(count), torch.zeros(count + more, dtype=dtype)
        op = dist.P2POp(dist.isend, sent, 1) if r == 0 else dist.P2POp(dist.irecv, received, 0)
        for work in dist.batch_isend_irecv([op]):
            work.wait()

    texts = told(2, call)
    assert f"rank 0 sends {4 * count} bytes of float32 (tag 0)" in texts[1]
    assert count == 4 or "rank 1" in texts[0]  # what is small was sent before


def test_a_receive_that_nobody_sends_is_named() -> None:
    def call(r: int) -> None:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(3), 1 - r, tag=r)]):
            work.wait(timedelta(seconds=1))

    for text in told(2, call):  # the first to give up says why, to both
        assert "recv(float32[3], from rank " in text and "timed out after 1 s" in text
