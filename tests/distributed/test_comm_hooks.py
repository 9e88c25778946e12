"""Communication hooks of DistributedDataParallel, and the futures they return."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape import nn
from warptape.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks
from warptape.futures import Future, collect_all, wait_all
from warptape.nn.parallel import DistributedDataParallel as DDP


def gradients(hook: Any, state: Any = None, passes: int = 2, **options: Any) -> list[float]:
    wt.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), **options)
    if hook is not None:
        model.register_comm_hook(state, hook)
    for _ in range(passes):
        model.zero_grad()
        model(wt.linspace(0, 1, 12).view(3, 4) * (1 + dist.get_rank())).sum().backward()
    return [v for p in model.parameters() for v in p.grad.flatten().tolist()]


def wrapped_bf16(state: Any, bucket: Any) -> Any:
    return hooks.bf16_compress_wrapper(hooks.allreduce_hook)(state, bucket)


def bf16_in_python(state: Any, bucket: Any) -> Any:
    return hooks.bf16_compress_hook(state, bucket)


@pytest.mark.parametrize(
    ("hook", "limit"),
    [
        (hooks.allreduce_hook, 0.0),
        (hooks.bf16_compress_hook, 8e-3),
        (hooks.fp16_compress_hook, 1e-3),
        (wrapped_bf16, 8e-3),
    ],
)
@pytest.mark.parametrize("views", [True, False])
def test_built_in_hooks(hook: Any, limit: float, views: bool) -> None:
    plain = dist.simulate(2, gradients, None)
    found = dist.simulate(2, lambda: gradients(hook, gradient_as_bucket_view=views, bucket_cap_mb=2e-5))
    assert found[0] == found[1]
    assert found[0] == pytest.approx(plain[0], rel=limit, abs=limit)
    assert limit == 0.0 or found[0] != plain[0]


def test_compression_in_cpp_and_python_agree() -> None:
    assert dist.simulate(2, gradients, hooks.bf16_compress_hook) == dist.simulate(
        2, gradients, bf16_in_python
    )


def test_what_a_hook_sees() -> None:
    def rank() -> Any:
        seen = []

        def hook(state: Any, bucket: Any) -> Any:
            seen.append((state, bucket.index(), bucket.is_last(), bucket.buffer().numel()))
            assert [g.shape for g in bucket.gradients()] == [p.shape for p in bucket.parameters()]
            return hooks.allreduce_hook(None, bucket)

        gradients(hook, "state", passes=1, bucket_cap_mb=2e-5)
        return seen

    assert dist.simulate(2, rank)[0] == [("state", 0, False, 5), ("state", 1, True, 20)]


@pytest.mark.parametrize("at", ["hook", "future", "type", "value"])
def test_errors_come_out_of_backward(at: str) -> None:
    def hook(state: Any, bucket: Any) -> Any:
        if at == "hook":
            raise KeyError("from the hook")
        future = Future()
        if at == "future":
            future.set_exception(KeyError("from the hook"))
        else:
            future.set_result(3)
        return 3 if at == "type" else future

    def rank() -> None:
        error = KeyError if at in ("hook", "future") else TypeError
        with pytest.raises(error, match="the hook" if error is KeyError else "expected a"):
            gradients(hook)

    dist.simulate(2, rank)


def test_a_hook_is_registered_once() -> None:
    def rank() -> None:
        model = DDP(nn.Linear(1, 1))
        with pytest.raises(TypeError, match="callable"):
            model.register_comm_hook(None, 3)
        model.register_comm_hook(None, hooks.allreduce_hook)
        with pytest.raises(RuntimeError, match="only be called once"):
            model.register_comm_hook(None, hooks.bf16_compress_hook)

    dist.simulate(1, rank)


def test_futures() -> None:
    first, second = Future(), Future()
    chained = first.then(lambda f: f.value() + 1).then(lambda f: f.value() * 10)
    assert not chained.done()
    both = collect_all([first, second])
    first.set_result(1)
    assert chained.wait() == 20 and not both.done()
    second.set_exception(ValueError("no"))
    assert both.done() and first.value() == 1
    with pytest.raises(ValueError, match="no"):
        wait_all([first, second])
    with pytest.raises(RuntimeError, match="once"):
        first.set_result(2)
    with pytest.raises(ZeroDivisionError):
        first.then(lambda f: 1 / 0).wait()


def test_the_future_of_a_collective() -> None:
    def rank() -> Any:
        work = dist.all_reduce(wt.ones(2), async_op=True)
        return work.get_future().then(lambda f: f.value()[0].tolist()).wait()

    assert dist.simulate(2, rank) == [[2.0, 2.0]] * 2


def test_queue_callback() -> None:
    said = []
    queue = wt.autograd.Variable._execution_engine.queue_callback
    x = wt.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: queue(lambda: said.append(x.grad.item())))
    y.sum().backward()
    assert said == [2.0]
    with pytest.raises(RuntimeError, match="during backward"):
        queue(lambda: None)
