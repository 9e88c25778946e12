"""Options of DistributedDataParallel against the same training in one process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape import nn, optim
from warptape.distributed.optim import _apply_optimizer_in_backward, _get_in_backward_optimizers
from warptape.nn.parallel import DistributedDataParallel as DDP
from warptape.nn.parallel.distributed import _MixedPrecision

STEPS = 3


def simulate(n: int, fn: Callable[..., Any]) -> list[Any]:
    return dist.simulate(n, fn, timeout=timedelta(seconds=30))


def built() -> Any:
    wt.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 2)).double()
    model.register_buffer("scale", wt.tensor([2.0], dtype=wt.float64))
    return model


def batch(step: int) -> wt.Tensor:
    return wt.randn(8, 5, generator=wt.Generator().manual_seed(step), dtype=wt.float64)


def trained(model: Any, rank: int = 0, ranks: int = 1, accumulate: int = 1) -> list[wt.Tensor]:
    inner = model.module if isinstance(model, DDP) else model
    optimizer = optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(accumulate):
            last = i + 1 == accumulate
            rows = batch(step * accumulate + i)[rank::ranks]
            if isinstance(model, DDP) and not last:
                with model.no_sync():
                    model(rows).square().mean().backward()
            else:
                model(rows).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in inner.parameters()]


def equal(got: list[wt.Tensor], want: list[wt.Tensor], within: float = 1e-12) -> None:
    assert all((a - b).abs().max() < within for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_that_travel_late(accumulate: int) -> None:
    def run() -> None:
        model = built()
        late = [(n, p) for n, p in model.named_parameters() if n.startswith(("2.", "4."))]
        ddp = DDP(model, delay_all_reduce_named_params=late, param_to_hook_all_reduce=model[0].weight)
        assert len(ddp.reducer.stats()["bucket_sizes"]) == 1
        equal(trained(ddp, dist.get_rank(), 2, accumulate), want)

    want = trained(built(), accumulate=accumulate)
    simulate(2, run)


def test_late_without_a_trigger_is_refused() -> None:
    def run() -> None:
        model = built()
        with pytest.raises(ValueError, match="need to be set at the same time"):
            DDP(model, delay_all_reduce_named_params=list(model.named_parameters())[:1])

    simulate(2, run)


def test_names_that_are_left_alone() -> None:
    def run() -> None:
        rank, model = dist.get_rank(), built()
        with wt.no_grad():
            model[4].bias.fill_(rank)
            model.scale.fill_(rank)
        DDP._set_params_and_buffers_to_ignore_for_model(model, ["4.bias", "scale"])
        ddp = DDP(model)
        ddp(batch(0)[rank::2]).square().mean().backward()
        assert model[4].bias.tolist() == [rank] * 2 and model.scale.item() == rank
        grads = [wt.empty(2, dtype=wt.float64) for _ in range(2)]
        dist.all_gather(grads, model[4].bias.grad)
        assert not grads[0].equal(grads[1])
        dist.all_gather(grads, model[4].weight.grad[:, 0].contiguous())
        assert grads[0].equal(grads[1])

    simulate(2, run)


def test_mixed_precision() -> None:
    """Parameters stay as they are, the module computes in bfloat16, as in a model of casts by hand."""

    def run() -> None:
        model = built().float()
        kinds: list[Any] = []
        for m in (model[0], model[2]):
            m.register_forward_pre_hook(lambda m, args: kinds.extend([m.weight.dtype, args[0].dtype]))
        how = _MixedPrecision(param_dtype=wt.bfloat16, reduce_dtype=wt.float32, buffer_dtype=wt.bfloat16)
        ddp = DDP(model, mixed_precision=how)
        out = ddp(batch(0).float()[dist.get_rank() :: 2])
        out.float().square().mean().backward()
        assert set(kinds) == {wt.bfloat16} and out.dtype == wt.bfloat16 and model.scale.dtype == wt.bfloat16
        assert all(p.dtype == p.grad.dtype == wt.float32 for p in model.parameters())
        assert isinstance(model[0].weight, nn.Parameter)
        low = built().bfloat16()
        for r in range(2):
            (low(batch(0).bfloat16()[r::2]).float().square().mean() / 2).backward()
        equal([p.grad for p in model.parameters()], [p.grad.float() for p in low.parameters()], 2e-2)

    simulate(2, run)


def test_rounding_of_gradients_that_travel() -> None:
    def run() -> str:
        return DDP(built().float(), mixed_precision=_MixedPrecision(wt.bfloat16)).reducer.stats()["comm_hook"]

    assert simulate(2, run) == ["bf16_compress_hook"] * 2


def test_optimizers_step_with_averages() -> None:
    def run() -> None:
        model = built()
        _apply_optimizer_in_backward(optim.SGD, model.parameters(), {"lr": 0.1, "momentum": 0.9})
        assert len(_get_in_backward_optimizers(model)) == 6
        ddp = DDP(model)
        for step in range(STEPS):
            ddp(batch(step)[dist.get_rank() :: 2]).square().mean().backward()
            assert all(p.grad is None for p in model.parameters())
        equal([p.detach() for p in model.parameters()], want)

    want = trained(built())
    simulate(2, run)
