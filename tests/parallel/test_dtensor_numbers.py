"""DTensors that meet plain numbers, and the numbers that Python reads from DTensors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import warptape as wt
import warptape.distributed as dist
from warptape.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

TEN = wt.tensor(10.0, dtype=wt.float64)
HALF = wt.tensor([0.5], dtype=wt.float64)

# Of a sum that is still to be taken: what is added must be added once, whatever its form.
WITH_PLAIN: dict[str, Callable[[Any], Any]] = {
    "add": lambda d: d + TEN,
    "radd": lambda d: TEN + d,
    "sub": lambda d: d - TEN,
    "rsub": lambda d: TEN - d,
    "add alpha": lambda d: d.add(TEN, alpha=2),
    "add to one element": lambda d: wt.add(HALF, d),
    "add number": lambda d: d + 10,
    "rsub number": lambda d: 10 - d,
    "mul": lambda d: d * TEN,
    "div": lambda d: d / TEN,
    "rdiv": lambda d: TEN / d,
    "rdiv number": lambda d: 10 / d,
    "lerp": lambda d: d.lerp(TEN, 0.25),
    "lerp by a tensor": lambda d: d.lerp(d * 2, HALF),
    "lerp keyword": lambda d: wt.lerp(d, end=d * 2, weight=HALF),
    "addcmul": lambda d: wt.addcmul(d, TEN, HALF, value=3),
    "where": lambda d: wt.where(d > 0, d, TEN),
    "add_": lambda d: d.clone().add_(TEN),
    "sub_": lambda d: d.clone().sub_(HALF),
    "mul_": lambda d: d.clone().mul_(TEN),
    "fill_": lambda d: d.clone().fill_(2.0),
    "zero_": lambda d: d.clone().zero_(),
    "copy_": lambda d: d.clone().copy_(d * 2),
}

LAYOUTS: list[tuple[tuple[int, ...], tuple[Placement, ...]]] = [
    ((2,), (Partial(),)),
    ((3,), (Partial("avg"),)),
    ((3,), (Partial("max"),)),
    ((3,), (Shard(0),)),
    ((2, 2), (Partial(), Shard(1))),
    ((2, 2), (Partial("avg"), Partial())),
    ((2, 2), (Replicate(), Partial("product"))),
]


def simulate(sizes: tuple[int, ...], fn: Callable[[dist.DeviceMesh], Any]) -> list[Any]:
    ranks = int(np.prod(sizes))
    return dist.simulate(
        ranks, lambda: fn(dist.init_device_mesh("cpu", sizes)), timeout=timedelta(seconds=60)
    )


def held(mesh: dist.DeviceMesh, placements: tuple[Placement, ...], shape: tuple[int, ...]) -> DTensor:
    """A DTensor [shape] whose summands differ between ranks."""
    base = wt.randn(shape, generator=wt.Generator().manual_seed(3), dtype=wt.float64) + 3
    split = [p if isinstance(p, Shard) else Replicate() for p in placements]
    local = distribute_tensor(base, mesh, split).to_local().clone()
    for at, p in zip(mesh.get_coordinate() or (), placements, strict=True):
        if isinstance(p, Partial):
            local = local * (1 + 0.37 * at) + 0.1 * at
    return DTensor.from_local(local, mesh, placements, shape=shape)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", WITH_PLAIN)
def test_a_plain_number_counts_once(name: str, layout: tuple[tuple[int, ...], Any]) -> None:
    sizes, placements = layout

    def check(mesh: dist.DeviceMesh) -> None:
        d = held(mesh, placements, (5, 3))
        expected = WITH_PLAIN[name](d.full_tensor())
        got = WITH_PLAIN[name](d)
        if name.endswith("_"):
            assert got.placements == placements  # a sum stays one
        assert (got.full_tensor() - expected).abs().max() < 1e-12, got.placements

    simulate(sizes, check)


def test_gradients_of_a_plain_number() -> None:
    def check(mesh: dist.DeviceMesh) -> None:
        plain = wt.tensor(2.0, requires_grad=True)
        summand = wt.ones(3, requires_grad=True)
        d = DTensor.from_local(summand, mesh, [Partial()])
        ((d + plain) * wt.tensor(3.0)).sum().backward()
        assert plain.grad.item() == 9
        assert summand.grad.tolist() == [3, 3, 3]

    simulate((3,), check)


@pytest.mark.parametrize("layout", [*LAYOUTS, ((3,), (Shard(1),))], ids=str)
def test_what_python_reads_is_of_the_whole(layout: tuple[tuple[int, ...], Any]) -> None:
    sizes, placements = layout

    def check(mesh: dist.DeviceMesh) -> None:
        d = held(mesh, placements, (1, 1))
        value = d.full_tensor().item()
        assert [float(d), d.item(), complex(d).real, d.tolist()[0][0]] == [value] * 4
        assert int(d) == int(value) and bool(d) and f"{d.reshape(()):.6f}" == f"{value:.6f}"
        assert range(9)[(d * 0 + 2).long()] == 2
        many = held(mesh, placements, (5, 3))
        for array in (many.numpy(), np.asarray(many)):
            np.testing.assert_array_equal(array, many.full_tensor().numpy())

    simulate(sizes, check)


def test_reductions_of_no_dims() -> None:
    def check(mesh: dist.DeviceMesh) -> None:
        d = held(mesh, (Partial(),), ())
        for op in (lambda x: x.sum(0), lambda x: x.mean(0), lambda x: x.amax(0), lambda x: x.std(0)):
            assert wt.allclose(op(d).full_tensor(), op(d.full_tensor()), equal_nan=True)

    simulate((2,), check)


def test_shapes_that_do_not_fit_are_refused_though_the_parts_would() -> None:
    def check(mesh: dist.DeviceMesh) -> None:
        a = held(mesh, (Shard(0),), (4, 2))
        ones = held(mesh, (Shard(0),), (2, 2))  # a part of it has one row, which would be stretched
        for op in (wt.add, wt.mul, wt.maximum):
            with pytest.raises(wt.ShapeError):
                op(a, ones)
        with pytest.raises(wt.ShapeError):
            wt.addmm(held(mesh, (Shard(0),), (2, 3)), a, held(mesh, (Replicate(),), (2, 3)))

    simulate((2,), check)


def test_sums_of_products_are_refused() -> None:
    def check(mesh: dist.DeviceMesh) -> None:
        with pytest.raises(ValueError, match="reduced first"):
            DTensor.from_local(wt.ones(2), mesh, [Partial(), Partial("product")])

    simulate((2, 2), check)


@pytest.mark.parametrize("placements", [(Shard(0),), (Shard(1),), (Partial(),)], ids=str)
def test_products_with_a_plain_element(placements: tuple[Placement, ...]) -> None:
    """Ranks that hold nothing of the factor need nothing of the element."""

    def check(mesh: dist.DeviceMesh) -> None:
        plain = wt.full((1, 1), 3.0, dtype=wt.float64, requires_grad=True)
        whole = wt.full((1, 1), 2.0, dtype=wt.float64)
        factor = distribute_tensor(whole, mesh).redistribute(placements=placements)
        for product, expected in (
            (factor @ plain, 6),
            (plain @ factor, 6),
            (wt.addmm(plain, factor, plain), 9),
        ):
            assert product.full_tensor().item() == expected
        (factor @ plain).sum().backward()
        assert plain.grad.item() == 2

    simulate((3,), check)
