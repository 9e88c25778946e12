"""Axes of meshes as sizes and strides, and other grids of the same ranks."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape.distributed._local_tensor import _c10d, maybe_disable_local_tensor_mode
from warptape.distributed.mesh_layout import _FlatLayout, _MeshLayout, _of_ranks


def layouts() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Axes of random grids: some of their sizes, with the strides that they have there."""
    rng, found = random.Random(0), []
    for _ in range(60):
        sizes = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 4))]
        strides = [int(wt.tensor(sizes[i + 1 :]).prod()) if sizes[i + 1 :] else 1 for i in range(len(sizes))]
        kept = [i for i in range(len(sizes)) if rng.random() < 0.6]
        found.append((tuple(sizes[i] for i in kept), tuple(strides[i] for i in kept)))
    return found


def ranks_of(shape: Any, stride: Any) -> list[int]:
    grid = itertools.product(*(range(n) for n in shape))
    return [sum(i * s for i, s in zip(at, stride, strict=True)) for at in grid]


@pytest.mark.parametrize(("shape", "stride"), layouts())
def test_a_layout_gives_its_ranks_in_their_order(shape: Any, stride: Any) -> None:
    made = _FlatLayout(shape, stride)
    assert made.all_ranks_from_zero() == ranks_of(shape, stride)
    assert made.numel() == len(ranks_of(shape, stride))
    assert 1 not in made.shape  # one form for each
    again = _FlatLayout(*_of_ranks(made.all_ranks_from_zero()))
    assert again == made and hash(again) == hash(made)


@pytest.mark.parametrize("world", [24, 48])
@pytest.mark.parametrize(("shape", "stride"), [((3,), (8,)), ((2, 2), (12, 2)), ((4, 3), (6, 1)), ((), ())])
def test_lines_like_one_cover_each_rank_once(shape: Any, stride: Any, world: int) -> None:
    lines = _FlatLayout(shape, stride).global_ranks(world)
    assert sorted(rank for line in lines for rank in line) == list(range(world))
    first = ranks_of(shape, stride)
    assert all([rank - line[0] for rank in line] == first for line in lines)


def test_equal_ranks_in_another_order_differ() -> None:
    assert _FlatLayout((2, 2), (2, 1)) == _FlatLayout(4) == _FlatLayout((1, 4), (7, 1))
    assert _FlatLayout((2, 2), (1, 2)) != _FlatLayout(4)


def test_what_is_no_grid_is_refused() -> None:
    with pytest.raises(AssertionError, match="no regular grid"):
        _of_ranks([0, 1, 3])
    with pytest.raises(ValueError, match="don't match"):
        _FlatLayout((2, 2), (1,))
    with pytest.raises(TypeError, match="tuple or int"):
        _FlatLayout([2])


def test_axes_of_a_mesh() -> None:
    mesh = _MeshLayout.from_sizes_strides((2, 3, 4))
    assert [axis.stride for axis in mesh] == [(12,), (4,), (1,)] and mesh.top_level_sizes == (2, 3, 4)
    assert mesh.collapse() == _FlatLayout(24) and mesh.numel() == 24
    assert mesh[1:] == _MeshLayout([_FlatLayout(3, 4), _FlatLayout(4)])


@pytest.mark.parity
@pytest.mark.parametrize(("shape", "stride"), layouts())
def test_layouts_are_those_of_pytorch(shape: Any, stride: Any) -> None:
    theirs: Any = pytest.importorskip("torch.distributed._mesh_layout")._FlatLayout(shape, stride)
    ours = _FlatLayout(shape, stride)
    assert (ours.shape, ours.stride) == (theirs.shape, theirs.stride)
    assert ours.global_ranks(96) == theirs.global_ranks(96)


def simulate(ranks: int, fn: Any) -> list[Any]:
    return dist.simulate(ranks, fn, timeout=timedelta(seconds=60))


def test_one_axis_becomes_several_and_axes_of_two_grids_one_mesh() -> None:
    def body() -> Any:
        world = dist.init_device_mesh("cpu", (8,), mesh_dim_names=("world",))
        dense = world._unflatten(0, (2, 2, 2), ("pp", "dp", "tp"), backend_override={"pp": "fake"})
        sparse = world._unflatten("world", (4, 2), ("rest", "ep"))
        assert dense.mesh.tolist() == wt.arange(8).reshape(2, 2, 2).tolist()
        assert dense.get_group("tp") is sparse.get_group("ep")  # of the same ranks
        joined = dist.DeviceMesh._concatenate([sparse["ep"], dense["pp"]])
        assert joined.mesh_dim_names == ("ep", "pp")
        total = wt.ones(())
        for name in ("ep", "pp"):
            dist.all_reduce(total, group=joined.get_group(name))
        flat = dense["pp", "dp"].flatten("copies")
        other = dense["pp", "dp"].flatten("loss")
        assert flat.get_group() is other.get_group() and other.mesh_dim_names == ("loss",)
        assert dense._layout == _MeshLayout.from_sizes_strides((2, 2, 2))
        assert dense["pp", "tp"]._layout == _MeshLayout([_FlatLayout(2, 4), _FlatLayout(2, 1)])
        assert _c10d._prepare_collective_groups(flat.get_group()) == (
            [0, 2, 4, 6],
            [0, 1],
            dist.get_rank() % 2,
        )
        return joined.mesh.tolist(), total.item(), flat.mesh.tolist()

    for rank, (grid, total, flat) in enumerate(simulate(8, body)):
        dp, pair = rank // 2 % 2, [2 * (rank // 2 % 2), 2 * (rank // 2 % 2) + 1]
        assert grid == [[r, r + 4] for r in pair] and pair[0] == 2 * dp
        assert total == 4 and flat == [r * 2 + rank % 2 for r in range(4)]


def test_grids_that_do_not_fit_are_refused() -> None:
    def body() -> None:
        world = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
        with pytest.raises(ValueError, match="do not make the 4 ranks"):
            world._unflatten(0, (3, 2), ("a", "b"))
        with pytest.raises(ValueError, match="expected names"):
            world._unflatten(0, (2, 2), ("a",))
        grid = world._unflatten(0, (2, 2), ("a", "b"))
        with pytest.raises(RuntimeError, match="overlap"):
            dist.DeviceMesh._concatenate([grid["a"], grid["a"]])
        with pytest.raises(RuntimeError, match="one root"):
            dist.DeviceMesh._concatenate([grid["a"], dist.init_device_mesh("cpu", (4,))])

    simulate(4, body)


def test_no_mode_runs() -> None:
    with maybe_disable_local_tensor_mode():
        assert _c10d._indices_to_layout([0, 4, 8]) == ((3,), (4,))
