"""torch.distributed.nn.functional, and collectives that are made together, by formulas."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.distributed.nn.functional as D


def simulate(n: int, fn: Callable[..., Any]) -> list[Any]:
    return dist.simulate(n, fn, timeout=timedelta(seconds=30))


def leaf(rank: int, rows: int) -> wt.Tensor:
    """[rows, 2], values of this rank."""
    return (wt.arange(rows * 2.0).reshape(rows, 2) + 100 * rank).requires_grad_()


def test_rows_travel_and_their_gradients_come_back() -> None:
    def run() -> None:
        rank = dist.get_rank()
        x = leaf(rank, 3)  # rank 0 sends 1 and 2 rows, rank 1 sends 2 and 1
        to, of = ([1, 2], [1, 2]) if rank == 0 else ([2, 1], [2, 1])
        y = D.all_to_all_single(wt.empty(3, 2), x, of, to)
        want = wt.cat([leaf(0, 3)[:1], leaf(1, 3)[:2]] if rank == 0 else [leaf(0, 3)[1:], leaf(1, 3)[2:]])
        assert y.equal(want)
        (y * (rank + 1)).sum().backward()
        sent_to = wt.tensor([1.0, 2, 2] if rank == 0 else [1.0, 1, 2])  # each row's gradient: its receiver
        assert x.grad.equal(sent_to[:, None].expand(3, 2))

    simulate(2, run)


def test_lists_of_other_shapes() -> None:
    def run() -> None:
        rank = dist.get_rank()
        x, y = leaf(rank, 1), leaf(rank, 2 + rank)
        out = D.all_to_all([wt.empty(1 if rank == 0 else 2, 2), wt.empty(1 if rank == 0 else 3, 2)], [x, y])
        if rank == 0:
            assert out[0].equal(leaf(0, 1)) and out[1].equal(leaf(1, 1))
        else:
            assert out[0].equal(leaf(0, 2)) and out[1].equal(leaf(1, 3))
        (out[0].sum() * 2 + out[1].sum() * 3).backward()
        # Rank r multiplies what came from rank 0 by 2 and what came from rank 1 by 3.
        assert (x.grad == 2 + rank).all() and (y.grad == 2 + rank).all()

    simulate(2, run)


def test_one_rank_has_all() -> None:
    def run() -> None:
        rank = dist.get_rank()
        x = leaf(rank, 1)
        parts = D.gather(x, dst=1)
        assert len(parts) == 3
        assert all(p.equal(leaf(r, 1) if rank == 1 else wt.zeros(1, 2)) for r, p in enumerate(parts))
        sum(p.sum() * (r + 1) * (rank + 1) for r, p in enumerate(parts)).backward()
        assert (x.grad == 2 * (rank + 1)).all()  # rank 1's factor and this part's
        rows = [leaf(rank, 1) for _ in range(3)]
        own = D.scatter(rows, src=2)
        assert own.equal(leaf(2, 1))
        (own * (rank + 1)).sum().backward()
        for r, row in enumerate(rows):
            assert (row.grad == (r + 1 if rank == 2 else 0)).all()
        whole = D._all_gather_base(wt.empty(3, 2), leaf(rank, 1))
        assert whole.equal(wt.cat([leaf(r, 1) for r in range(3)]))

    simulate(3, run)


@pytest.mark.parametrize("async_ops", [False, True])
def test_collectives_made_together(async_ops: bool) -> None:
    def run() -> int:
        rank = dist.get_rank()
        xs = [wt.full((n,), rank + n + 0.5) for n in (1, 2, 3)]
        counts = wt.tensor([rank])
        whole = wt.empty(2)
        with dist.distributed_c10d._coalescing_manager(async_ops=async_ops) as manager:
            for x in xs:
                dist.all_reduce(x)
            dist.all_reduce(counts, dist.ReduceOp.MAX)
            dist.all_gather_into_tensor(whole, wt.tensor([float(rank)]))
            assert xs[0].item() == rank + 1.5  # nothing has been sent
        if async_ops:
            manager.wait()
        assert [x.tolist() for x in xs] == [[2 * n + 2.0] * n for n in (1, 2, 3)]
        assert counts.item() == 1 and whole.tolist() == [0, 1]
        return len(manager.works)

    assert simulate(2, run) == [3, 3]  # the first three are one


def fails(x: wt.Tensor) -> None:
    dist.all_reduce(x)
    raise ZeroDivisionError


def test_other_groups_go_on() -> None:
    def run() -> None:
        other = dist.new_group([0, 1])
        x, y = wt.ones(1), wt.ones(1)
        with dist._coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(y, group=other)
            assert y.item() == 2 and x.item() == 1
            with pytest.raises(ValueError, match="there is one already"), dist._coalescing_manager():
                pass
        assert x.item() == 2
        with pytest.raises(ZeroDivisionError), dist._coalescing_manager():
            fails(x)
        dist.all_reduce(y)  # what failed within was not sent
        assert x.item() == 2 and y.item() == 4

    simulate(2, run)
