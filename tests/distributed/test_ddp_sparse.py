"""DistributedDataParallel of models with sparse gradients against one process."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from warptape import nn, optim
from warptape.nn.parallel import DistributedDataParallel

ROWS, DIM, STEPS = 9, 4, 4
# of each step and rank; rank 1 looks nothing up in the second step
INDICES = [[[1, 4, 1], [0, 4, 8]], [[2, 2, 5], []], [[3], [3, 3, 7, 0]], [[6, 1], [1, 6]]]


class Net(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        wt.manual_seed(0)
        self.table, self.bags = nn.Embedding(ROWS, DIM, sparse=True), nn.EmbeddingBag(ROWS, DIM, sparse=True)
        self.head = nn.Linear(DIM, 2)
        self.tied = tied
        self.double()

    def forward(self, index: list[int]) -> wt.Tensor:
        at = wt.tensor(index, dtype=wt.int64)
        out = self.head(wt.ones(DIM, dtype=wt.float64))
        if index:
            out = out + self.head(self.table(at).tanh().sum(0) + self.bags(at[None]).tanh()[0])
        return out + (self.table.weight[:2, :2].sum() if self.tied else 0)


def optimizers(net: Net) -> list[Any]:
    embeddings = [net.table.weight, net.bags.weight]
    return [
        (optim.SGD if net.tied else optim.SparseAdam)(embeddings, 0.1),
        optim.AdamW(net.head.parameters(), 0.1),
    ]


def step(each: list[Any], loss: Any) -> None:
    for optimizer in each:
        optimizer.zero_grad()
    loss().backward()
    for optimizer in each:
        optimizer.step()


def alone(tied: bool) -> dict[str, wt.Tensor]:
    net = Net(tied)
    each = optimizers(net)
    for batch in INDICES:
        step(each, lambda batch=batch: sum(net(index).square().sum() for index in batch) / 2)
    return net.state_dict()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("unused", [False, True])
def test_training_is_that_of_one_process(tied: bool, unused: bool) -> None:
    def body() -> dict[str, wt.Tensor]:
        net = Net(tied)
        ddp, each = DistributedDataParallel(net, find_unused_parameters=unused), optimizers(net)
        for batch in INDICES:
            step(each, lambda batch=batch: ddp(batch[dist.get_rank()]).square().sum())
        return net.state_dict()

    first, second = dist.simulate(2, body)
    for name, wanted in alone(tied).items():
        assert wt.equal(first[name], second[name]), name
        wt.testing.assert_close(first[name], wanted, rtol=1e-10, atol=1e-12)


def test_gradients_stay_sparse_and_accumulate_without_sync() -> None:
    def body() -> tuple[Any, list[int]]:
        net = nn.Embedding(ROWS, DIM, sparse=True)
        ddp, nnz = DistributedDataParallel(net), []
        with ddp.no_sync():
            ddp(wt.tensor(INDICES[0][dist.get_rank()])).sum().backward()
        nnz.append(net.weight.grad.coalesce()._nnz())
        for _ in range(2):  # one forward, two backward passes
            out = ddp(wt.tensor(INDICES[3][dist.get_rank()])).sum()
        out.backward()
        nnz.append(net.weight.grad.coalesce()._nnz())
        return net.weight.grad.to_dense(), nnz

    (first, mine), (second, theirs) = dist.simulate(2, body)
    assert mine == [2, 5] and theirs == [3, 5] and wt.equal(first, second)
    counts = F.one_hot(wt.tensor([i for batch in INDICES[0] + INDICES[3] for i in batch]), ROWS).sum(0) / 2
    wt.testing.assert_close(first, counts[:, None].expand(ROWS, DIM))


def test_ranks_with_fewer_batches_join() -> None:
    def body() -> wt.Tensor:
        net = Net()
        ddp, each = DistributedDataParallel(net), optimizers(net)
        with ddp.join():
            for batch in INDICES[: 2 + 2 * dist.get_rank()]:
                step(each, lambda batch=batch: ddp(batch[0]).square().sum())
        return net.table.weight.detach()

    first, second = dist.simulate(2, body)
    assert wt.equal(first, second)
