"""How models are split, and what pipelines refuse: on every rank, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from pipeline_models import BATCH, WIDTH, make_schedule, mlp, simulate
from warptape import nn
from warptape.parallel import pipeline as pp

# ---- bad input ---------------------------------------------------------------------------------------------


def refused(body: Callable[[], Any], text: str, ranks: int = 2) -> None:
    """Every rank refuses, with this text, and nothing hangs."""

    def each() -> str:
        with pytest.raises(ValueError) as error:
            body()
        return str(error.value)

    for said in simulate(ranks, each):
        assert text in said


X = wt.zeros(BATCH, WIDTH, dtype=wt.float64)


def test_numbers_that_do_not_divide_are_refused() -> None:
    refused(lambda: make_schedule("1f1b", list(mlp())[:7]), "7 layers do not divide into 2 stages")
    refused(lambda: make_schedule("1f1b", list(mlp())[:1], balance="parameters"), "use at most 1 stages")
    refused(lambda: make_schedule("1f1b", mlp(), balance=[3, 4]), "sum to 8, got balance=[3, 4]")
    refused(lambda: make_schedule("1f1b", mlp(), balance="time"), "needs `example`")
    refused(lambda: make_schedule("1f1b", mlp(), balance="best"), "got 'best'")
    refused(
        lambda: make_schedule("1f1b", mlp(), balance="time", example=wt.zeros(2, WIDTH + 1)),
        "the layers do not run on `example`",
    )
    refused(lambda: make_schedule("interleaved", list(mlp())[:6]), "6 layers do not divide into 4 stages")
    refused(
        lambda: make_schedule("1f1b", mlp().double(), m=5).step(X, target=X),
        "rank 0: pipeline: input[0] of shape (16, 6) does not divide into 5 micro-batches",
    )
    refused(lambda: make_schedule("1f1b", mlp(), m=0), "got stages=2, micro_batches=0")


@pytest.mark.parametrize("culprit", [0, 3])
def test_a_batch_of_one_rank_that_does_not_divide_later_is_refused_on_all(culprit: int) -> None:
    """Only the first rank sees the inputs, only the last one the target."""

    def body() -> None:
        runner, rank = make_schedule("1f1b", mlp().double()), dist.get_rank()
        good = {0: (X,)}.get(rank, ()), {3: X}.get(rank)
        bad = {0: (X[:10],)}.get(rank, ()), {3: X[:10]}.get(rank)
        what = {0: "input[0]", 3: "target"}[culprit]
        for args, target in (good, good):
            runner.step(*args, target=target)
        args, target = bad if rank == culprit else good
        with pytest.raises(ValueError) as error:
            runner.step(*args, target=target)
        assert f"rank {culprit}: pipeline: {what} of shape (10, 6) does not divide" in str(error.value)
        assert "make dim 0 a multiple of 4, or n_microbatches a divisor of 10" in str(error.value)
        runner.step(*good[0], target=good[1])  # and the pipeline goes on

    simulate(4, body)


def test_a_step_without_gradients_is_refused() -> None:
    def body() -> None:
        runner = make_schedule("1f1b", mlp().double())
        with wt.no_grad(), pytest.raises(RuntimeError, match="call eval"):
            runner.step(X, target=X)

    simulate(2, body)


def test_stages_that_do_not_fit_are_refused() -> None:
    refused(lambda: pp.PipelineStage(mlp(), 5, 4), "stage_index 5 is not below num_stages 4")
    refused(lambda: pp.PipelineStage(mlp(), dist.get_rank(), 3), "not a multiple of the group's 2 ranks")
    refused(lambda: pp.Schedule1F1B(pp.PipelineStage(mlp(), 1 - dist.get_rank(), 2), 4), "; got [")
    refused(lambda: pp.split_into_stages(mlp(), 2, placement="u"), "'loop' or 'v', got 'u'")
    refused(lambda: pp.ScheduleZBVZeroBubble(pp.split_into_stages(mlp(), 2), 4), "; got [")
    refused(
        lambda: pp.ScheduleZBVZeroBubble(pp.split_into_stages(mlp(), 4), 4), "two stages on each rank, got 4"
    )
    refused(
        lambda: pp.ScheduleDualPipeV(pp.split_into_stages(mlp(), 4), 4),
        "ScheduleDualPipeV: expected two stages on each rank, got 4",
    )
    refused(lambda: pp.ScheduleLoopedBFS([], 4), "at least one stage")
    refused(lambda: pp.PipelineStage(mlp(), dist.get_rank(), 2, shared={"a": "b"}), "'b' is not in")
    refused(lambda: pp.Schedule1F1B(pp.PipelineStage(mlp(), dist.get_rank(), 4), 4), "4 stages on 2 ranks")
    refused(
        lambda: pp.PipelineSchedule(
            [pp.PipelineStage(mlp(), dist.get_rank(), 2)], 4, schedule=pp.one_f_one_b(4, 4)
        ),
        "a schedule of 4 ranks in a group of 2",
    )
    refused(
        lambda: pp.ScheduleInterleaved1F1B([pp.PipelineStage(mlp(), dist.get_rank(), 4)] * 2, 4), "; got ["
    )


def test_a_module_that_is_no_list_of_layers_is_refused() -> None:
    with pytest.raises(TypeError, match="list of layers, got ReLU"):
        pp.split_into_stages(nn.ReLU())


def test_schedules_have_names() -> None:
    assert pp.get_schedule_class("1f1b") is pp.Schedule1F1B
    assert pp.get_schedule_class("ZBH1") is pp.ScheduleZBH1
    with pytest.raises(ValueError, match="unknown schedule 'ZBV'; there are GPipe, 1F1B"):
        pp.get_schedule_class("ZBV")


def test_ranks_that_disagree_are_refused_everywhere() -> None:
    def body() -> None:
        net = mlp().double()
        make_schedule("1f1b", net, m=4 if dist.get_rank() else 2).step(X, target=X)

    refused(body, "ranks have different schedules")

    def tied() -> None:
        rank = dist.get_rank()
        layer = nn.Linear(WIDTH, WIDTH + rank).double()
        stage = pp.PipelineStage(layer, rank, 2, shared={"w": "weight"})
        pp.Schedule1F1B(stage, 4, F.mse_loss).step(X, target=X)

    refused(tied, "shared parameter 'w' is (6, 6)")
    refused(lambda: make_schedule("1f1b", mlp().double(), loss=None).step(X, target=X), "needs loss_fn")
    refused(lambda: make_schedule("1f1b", mlp().double()).step(X), "needs target")


def test_a_failing_stage_ends_all_ranks() -> None:
    class Fails(nn.Linear):
        def forward(self, x: wt.Tensor) -> wt.Tensor:
            raise ArithmeticError("stage 1")

    net = [nn.Linear(WIDTH, WIDTH).double(), Fails(WIDTH, WIDTH).double()]
    with pytest.raises(dist.RankFailed, match="rank 1 of 2 raised ArithmeticError"):
        simulate(2, lambda: make_schedule("1f1b", net).step(X, target=X))


# ---- splitting ---------------------------------------------------------------------------------------------


def test_partition_is_the_best_there_is() -> None:
    assert pp.partition([1, 1, 1, 1], 2) == [2, 2]
    assert pp.partition([9, 1, 1, 1], 2) == [1, 3]
    costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    for parts in range(1, 9):
        counts = pp.partition(costs, parts)
        assert sum(counts) == 8 and min(counts) >= 1 and len(counts) == parts
        assert costliest(costs, counts) == min(costliest(costs, c) for c in compositions(8, parts))


def costliest(costs: list[float], counts: list[int]) -> float:
    edges = [sum(counts[:i]) for i in range(len(counts) + 1)]
    return max(sum(costs[a:b]) for a, b in pairwise(edges))


def compositions(n: int, parts: int) -> list[list[int]]:
    if parts == 1:
        return [[n]]
    return [[k, *rest] for k in range(1, n - parts + 2) for rest in compositions(n - k, parts - 1)]


def test_balance_by_parameters_and_by_time() -> None:
    wide = nn.Sequential(nn.Linear(4, 400), nn.Linear(400, 4), nn.Linear(4, 4), nn.Linear(4, 4))

    def body(**how: Any) -> list[str]:
        return [name for s in pp.split_into_stages(wide, **how) for name, _ in s.submod.named_children()]

    assert simulate(2, lambda: body(balance="parameters")) == [["0"], ["1", "2", "3"]]
    assert simulate(2, lambda: body(balance=[3, 1])) == [["0", "1", "2"], ["3"]]
    slow = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(300, 4))
    slow[3] = nn.Sequential(nn.Linear(4, 3000), nn.GELU(), nn.Linear(3000, 4))
    before = [p.clone() for p in slow.parameters()]
    parts = simulate(2, lambda: [len(list(s.submod.children())) for s in by_time(slow)])
    assert parts == [[3], [1]]
    assert all(a.equal(b) and b.grad is None for a, b in zip(before, slow.parameters(), strict=True))


def by_time(layers: nn.Sequential) -> list[pp.PipelineStage]:
    return pp.split_into_stages(layers, balance="time", example=wt.randn(64, 4))
