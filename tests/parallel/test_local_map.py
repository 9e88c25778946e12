"""local_map: functions of plain tensors on the parts of DTensors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape.distributed import functional as collectives
from warptape.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from warptape.distributed.tensor.experimental import local_map


def simulate(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    return dist.simulate(n, fn, *args, timeout=timedelta(seconds=30))


def mesh(*sizes: int) -> dist.DeviceMesh:
    return dist.init_device_mesh("cpu", sizes or (dist.get_world_size(),))


def test_a_product_by_parts_with_its_gradients() -> None:
    """Column times row parts: partial sums, which DTensor adds up; values and gradients as of one process."""
    wt.manual_seed(0)
    w, x = wt.randn(6, 8, dtype=wt.float64), wt.randn(8, 4, dtype=wt.float64)
    plain_w, plain_x = w.clone().requires_grad_(), x.clone().requires_grad_()
    (plain_w @ plain_x).sin().sum().backward()

    def run() -> None:
        m = mesh()
        split_w = distribute_tensor(w, m, [Shard(1)]).requires_grad_()
        split_x = distribute_tensor(x, m, [Shard(0)]).requires_grad_()
        product = local_map(wt.mm, [Partial()], ([Shard(1)], [Shard(0)]))
        out = product(split_w, split_x)
        assert isinstance(out, DTensor) and out.placements == (Partial(),) and out.shape == (6, 4)
        out = out.redistribute(placements=[Replicate()])
        out.sin().sum().backward()
        assert out.to_local().allclose(w @ x, rtol=1e-12)
        assert split_w.grad.full_tensor().allclose(plain_w.grad, rtol=1e-12)
        assert split_x.grad.full_tensor().allclose(plain_x.grad, rtol=1e-12)

    simulate(2, run)
    simulate(4, run)


def test_gradients_that_lie_otherwise() -> None:
    """Every rank uses all of a replicated weight for its rows: the weight's gradient is a part of the sum."""
    wt.manual_seed(0)
    rows, weight = wt.randn(8, 3, dtype=wt.float64), wt.randn(3, 2, dtype=wt.float64)
    plain = weight.clone().requires_grad_()
    (rows @ plain).sin().sum().backward()

    def run() -> None:
        m = mesh()
        x = distribute_tensor(rows, m, [Shard(0)])
        w = distribute_tensor(weight, m, [Replicate()]).requires_grad_()
        product = local_map(wt.mm, [Shard(0)], None, ([Shard(0)], [Partial()]))
        out = product(x, w)
        assert out.placements == (Shard(0),)
        out.sin().sum().backward()
        assert w.grad.full_tensor().allclose(plain.grad, rtol=1e-12)

    simulate(2, run)


def test_collectives_trees_and_decorators() -> None:
    def run() -> None:
        m = mesh()

        @local_map(out_placements=([Replicate()], None, [Shard(0)]), redistribute_inputs=True)
        def parts(pair: list[wt.Tensor], factor: float, offset: wt.Tensor) -> Any:
            assert not any(isinstance(t, DTensor) for t in [*pair, offset])
            total = collectives.all_reduce_pass_through(pair[0].sum(), m.get_group())
            return total, factor, pair[1] * factor + offset

        x = distribute_tensor(wt.arange(8.0), m, [Shard(0)])
        total, factor, scaled = parts([x, x], 2.0, wt.ones(1))
        assert total.full_tensor().item() == 28 and factor == 2.0
        assert scaled.full_tensor().equal(wt.arange(8.0) * 2 + 1)
        assert (
            parts([wt.arange(8.0)] * 2, 3.0, wt.ones(1))[1] == 3.0
        )  # without a DTensor: the function itself

        moved = local_map(lambda t: t + 1, [Shard(0)], ([Shard(0)],), redistribute_inputs=True)
        whole = distribute_tensor(wt.arange(4.0), m, [Replicate()])
        assert moved(whole).placements == (Shard(0),)
        assert moved(whole).full_tensor().equal(wt.arange(4.0) + 1)
        two = mesh(2, 1)
        on_two = local_map(lambda t: t * 2, [Replicate(), Shard(0)], device_mesh=two)
        assert on_two(distribute_tensor(wt.ones(2), two)).device_mesh == two

    simulate(2, run)


def test_what_is_refused() -> None:
    def run() -> None:
        m = mesh()
        x = distribute_tensor(wt.ones(4), m, [Shard(0)])

        def refused(error: type, text: str, fn: Callable[..., Any], *args: Any, **how: Any) -> None:
            with pytest.raises(error, match=text):
                local_map(fn, **how)(*args)

        one = {"out_placements": [Shard(0)]}
        refused(ValueError, "mismatched placements", wt.sin, x, **one, in_placements=([Replicate()],))
        refused(AssertionError, "length 2 does not match", wt.sin, x, **one, in_placements=([Shard(0)],) * 2)
        refused(
            AssertionError, "expects placements but received None", wt.sin, x, **one, in_placements=(None,)
        )
        refused(AssertionError, "expects in grad placements", wt.sin, x, **one, in_grad_placements=(None,))
        two = ([Shard(0)], [Shard(0)])
        refused(AssertionError, "Non-Tensor input 3", wt.add, x, 3, **one, in_placements=two)
        refused(AssertionError, "received 1 out_placements but 2", lambda t: (t, t), x, **one)
        refused(AssertionError, "Non-tensor output 3", lambda t: 3, x, **one)
        refused(AssertionError, "torch.Tensor output expected", lambda t: x, x, **one)

    simulate(2, run)
