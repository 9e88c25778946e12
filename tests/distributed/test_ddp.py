"""DistributedDataParallel against the same training in one process, on ranks that are threads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from warptape import nn, optim
from warptape.nn.parallel import DistributedDataParallel as DDP
from warptape.utils.checkpoint import checkpoint

STEPS, BATCH, WIDTH = 20, 8, 6
SOON = timedelta(seconds=20)


def simulate(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    return dist.simulate(n, fn, *args, timeout=SOON)


class Tied(nn.Module):
    """Layers of two dtypes' worth of shapes, one weight used twice, one frozen, one checkpointed."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(wt.ones(WIDTH), requires_grad=False)
        self.checkpointed = checkpointed

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        x = self.first(x).tanh()
        x = checkpoint(self.middle, x, use_reentrant=False) if self.checkpointed else self.middle(x)
        return self.last(x * self.frozen)


def data(steps: int = STEPS) -> list[tuple[wt.Tensor, wt.Tensor]]:
    generator = wt.Generator().manual_seed(7)
    draw = lambda: wt.randn(BATCH, WIDTH, generator=generator, dtype=wt.float64)
    return [(draw(), draw()) for _ in range(steps)]


def build(make: Callable[[], nn.Module]) -> nn.Module:
    wt.manual_seed(3)
    return make().double()


def optimizer_of(model: nn.Module, kind: str) -> optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    return optim.SGD(trained, lr=0.1, momentum=0.9) if kind == "sgd" else optim.AdamW(trained, lr=0.01)


def run(model: nn.Module, kind: str, rank: int = 0, ranks: int = 1, accumulate: int = 1) -> list[wt.Tensor]:
    """Gradients of every step, then the parameters; `ranks` share a batch, in `accumulate` parts."""
    optimizer, out = optimizer_of(model, kind), []
    for x, y in data():
        optimizer.zero_grad()
        parts = zip(x[rank::ranks].chunk(accumulate), y[rank::ranks].chunk(accumulate), strict=True)
        for i, (a, b) in enumerate(parts):
            if isinstance(model, DDP) and i + 1 < accumulate:
                with model.no_sync():
                    (F.mse_loss(model(a), b) / accumulate).backward()
            else:
                (F.mse_loss(model(a), b) / accumulate).backward()
        out += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    return out + [p.detach() for p in model.parameters()]


def assert_close(found: list[wt.Tensor], expected: list[wt.Tensor], limit: float = 1e-10) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= limit * max(b.norm().item(), 1e-3)


@pytest.mark.parametrize(
    "options", [{}, {"gradient_as_bucket_view": False}, {"bucket_cap_mb": 1e-4}], ids=str
)
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_training_equals_that_of_one_process(ranks: int, kind: str, options: dict[str, Any]) -> None:
    def rank() -> Any:
        wt.manual_seed(100 + dist.get_rank())  # the ranks start from different weights
        model = DDP(Tied().double() if dist.get_rank() else build(Tied), **options)
        return run(model, kind, dist.get_rank(), ranks), model._get_ddp_logging_data()

    expected = run(build(Tied), kind)
    for found, log in simulate(ranks, rank):
        assert_close(found, expected)
        assert log["iteration"] == STEPS and log["has_rebuilt_buckets"]
        assert (len(log["bucket_sizes"]) > 1) == ("bucket_cap_mb" in options)


@pytest.mark.parametrize("views", [True, False])
def test_accumulated_gradients_lie_in_the_buckets(views: bool) -> None:
    def rank() -> None:
        model = DDP(build(Tied), gradient_as_bucket_view=views)
        trained = [p for p in model.parameters() if p.requires_grad]
        (x, y), (other, _) = data(2)
        F.mse_loss(model(x), y).backward()  # after it the buckets are made anew
        buckets: list[list[int]] = []
        for _ in range(2):
            model.zero_grad()
            with model.no_sync():
                F.mse_loss(model(other), y).backward()
            own = [p.grad.clone() for p in trained]
            buckets.append([p.grad.data_ptr() for p in trained])
            F.mse_loss(model(x), y).backward()
            buckets.append([p.grad.data_ptr() for p in trained])
            assert not all(a.equal(p.grad) for a, p in zip(own, trained, strict=True))
        assert (buckets[1] == buckets[2] == buckets[3]) or not views

        model.zero_grad()
        with model.no_sync():  # a gradient with history stays as it is
            F.mse_loss(model(x), y).backward(create_graph=True)
        assert all(p.grad.requires_grad for p in trained)

    simulate(2, rank)


@pytest.mark.parametrize(
    "options",
    [{"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": False}],
    ids=str,
)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_accumulation_and_checkpointed_modules(checkpointed: bool, options: dict[str, Any]) -> None:
    def rank() -> Any:
        model = DDP(build(lambda: Tied(checkpointed)), **options)
        return run(model, "adamw", dist.get_rank(), 2, accumulate=2)

    expected = run(build(Tied), "adamw")
    for found in simulate(2, rank):
        assert_close(found, expected)


def test_a_wrong_average_is_noticed() -> None:
    """The comparison above can fail: with one rank's gradient left out it does."""

    def rank() -> Any:
        model = DDP(build(Tied))
        model.register_comm_hook(None, lambda _, bucket: done(bucket.buffer()))
        return run(model, "sgd", dist.get_rank(), 2)

    expected = run(build(Tied), "sgd")
    with pytest.raises(AssertionError):
        assert_close(simulate(2, rank)[0], expected)


def done(value: Any) -> Any:
    future = wt.futures.Future()
    future.set_result(value)
    return future


class Branches(nn.Module):
    """Uses the branches it is told to; `never` is used by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.never = (nn.Linear(WIDTH, 1) for _ in range(3))

    def forward(self, x: wt.Tensor, use: str) -> dict[str, list[wt.Tensor]]:
        return {"out": [getattr(self, name)(x) for name in use.split("+")]}


def branches(options: dict[str, Any], uses: Callable[[int, int], str], passes: int = 3) -> list[Any]:
    """The gradients of each pass by name."""
    model, out = DDP(build(Branches), **options), []
    for step in range(passes):
        model.zero_grad()
        x = wt.full((2, WIDTH), 1.0 + dist.get_rank(), dtype=wt.float64)
        sum(o.sum() for o in model(x, uses(dist.get_rank(), step))["out"]).backward()
        out.append(
            {
                n: None if p.grad is None else p.grad.flatten()[0].item()
                for n, p in model.module.named_parameters()
                if n.endswith("weight")
            }
        )
    return out


@pytest.mark.parametrize("views", [True, False])
def test_parameters_that_some_or_no_ranks_use(views: bool) -> None:
    def uses(rank: int, step: int) -> str:
        return "a" if rank == step % 2 else "a+b"

    options = {"find_unused_parameters": True, "gradient_as_bucket_view": views}
    found = simulate(2, lambda: branches(options, uses))
    assert found[0] == found[1]
    # a: both ranks, (2 + 4) / 2; b: the one rank that used it, halved.
    assert [g["a.weight"] for g in found[0]] == [3.0, 3.0, 3.0]
    assert [g["b.weight"] for g in found[0]] == [2.0, 1.0, 2.0]
    assert [g["never.weight"] for g in found[0]] == [None, None, None]


def test_static_graph_finds_what_is_not_used() -> None:
    found = simulate(2, lambda: branches({"static_graph": True}, lambda rank, step: "a"))
    assert found[0] == found[1] == [{"a.weight": 3.0, "b.weight": None, "never.weight": None}] * 3


def test_a_parameter_without_gradient_is_named() -> None:
    with pytest.raises(dist.RankFailed, match=r"Expected to have finished reduction.*(?s:.*)never\.weight"):
        simulate(2, lambda: branches({}, lambda rank, step: "a+b"))


def test_two_passes_for_one_forward_are_one_reduction() -> None:
    """Two losses with a backward of their own, each through parameters of its own."""

    def rank() -> Any:
        model = DDP(build(Branches), find_unused_parameters=True)
        for _ in range(3):
            model.zero_grad()
            a, b = model(wt.full((1, WIDTH), 1.0 + dist.get_rank(), dtype=wt.float64), "a+b")["out"]
            a.sum().backward()
            b.sum().backward()
        return [model.module.a.weight.grad[0, 0].item(), model.module.b.weight.grad[0, 0].item()]

    assert simulate(2, rank) == [[1.5, 1.5]] * 2


def test_gradients_are_added_to_those_that_are_there() -> None:
    """Without zero_grad: the average of before plus the average of now."""

    def rank() -> float:
        model = DDP(nn.Linear(1, 1, bias=False).double())
        for scale in (1.0, 10.0):
            model(wt.full((1, 1), scale * (1 + dist.get_rank()), dtype=wt.float64)).sum().backward()
        return model.module.weight.grad.item()

    assert simulate(2, rank) == [16.5, 16.5]


def test_ranks_start_from_rank_0_and_buffers_follow_it() -> None:
    def rank() -> Any:
        model = nn.BatchNorm1d(2)
        model.running_mean.fill_(float(dist.get_rank()))
        model.weight.data.fill_(float(5 + dist.get_rank()))
        parallel = DDP(model)
        with pytest.raises(TypeError, match="expected mixed_precision with param_dtype"):
            DDP(model, mixed_precision=object())
        start = [model.running_mean.tolist(), model.weight.tolist()]
        for _ in range(2):
            parallel(wt.tensor([[1.0, 2.0], [3.0, 4.0]]) * (1 + dist.get_rank())).sum().backward()
        before = model.running_mean.tolist()
        parallel.eval()
        with wt.no_grad():
            parallel(wt.ones(2, 2))  # the buffers are those of rank 0 again
        return start, before, model.running_mean.tolist(), sorted(parallel.state_dict())

    (start0, mine0, after0, names), (start1, mine1, after1, _) = simulate(2, rank)
    assert start0 == start1 == [[0.0, 0.0], [5.0, 5.0]]
    assert mine0 != mine1 and after0 == after1 == mine0
    assert names[0] == "module.bias"


def test_models_that_differ() -> None:
    with pytest.raises(dist.RankFailed, match=r"parameter 0 is weight: torch.float32\[1, 2\] on rank 0"):
        simulate(2, lambda: DDP(nn.Linear(2 + dist.get_rank(), 1)))
    with pytest.raises(dist.RankFailed, match="Rank 0 has 2 params, while rank 1 has inconsistent 1"):
        simulate(2, lambda: DDP(nn.Linear(2, 1, bias=dist.get_rank() == 0)))
    with pytest.raises(dist.RankFailed, match="doesn't have any parameters"):
        simulate(1, lambda: DDP(nn.ReLU()))


def test_second_backward_without_forward_stays_local() -> None:
    def rank() -> Any:
        model = DDP(nn.Linear(1, 1, bias=False).double(), gradient_as_bucket_view=False)
        loss = model(wt.full((1, 1), 1.0 + dist.get_rank(), dtype=wt.float64)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return model.module.weight.grad.item()

    assert simulate(2, rank) == [2.5, 3.5]


def test_an_exception_in_backward_can_be_survived() -> None:
    def rank() -> float:
        model = DDP(nn.Linear(1, 1).double())
        x = wt.ones(1, 1, dtype=wt.float64, requires_grad=True)
        handle = model.module.bias.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(x).sum().backward()
        handle.remove()
        model.zero_grad()
        model(x * (1 + dist.get_rank())).sum().backward()
        return model.module.weight.grad.item()

    assert simulate(2, rank) == [1.5, 1.5]


def test_a_copy_belongs_to_the_default_group() -> None:
    def rank() -> list[wt.Tensor]:
        return run(copy.deepcopy(DDP(build(Tied))), "sgd", dist.get_rank(), 2)

    assert_close(simulate(2, rank)[1], run(build(Tied), "sgd"))


def test_the_sampler_asks_for_the_rank() -> None:
    def rank() -> list[int]:
        return list(wt.utils.data.DistributedSampler(range(6), shuffle=False))

    assert simulate(2, rank) == [[0, 2, 4], [1, 3, 5]]


def test_buffers_are_left_alone_on_request() -> None:
    def rank() -> list[list[float]]:
        out = []
        for options in ({"broadcast_buffers": False}, {"forward_sync_buffers": False}, {}):
            model = nn.BatchNorm1d(1)
            model.running_mean.fill_(float(dist.get_rank()))
            parallel = DDP(model, **options)
            model.running_var.fill_(5.0 + dist.get_rank())
            parallel.eval()(wt.ones(1, 1))
            out.append([model.running_mean.item(), model.running_var.item()])
        return out

    assert simulate(2, rank)[1] == [[1.0, 6.0], [0.0, 6.0], [0.0, 5.0]]
