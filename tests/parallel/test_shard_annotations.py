"""fully_shard over parameters that are plain tensors on each rank, with notes of how they lie on a mesh."""

from __future__ import annotations

import enum
import sys
from types import ModuleType
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from tensor_models import simulate
from warptape import nn, optim
from warptape.distributed import functional
from warptape.distributed.fsdp import DataParallelMeshDims
from warptape.distributed.tensor import DTensor, Replicate, Shard
from warptape.nn import functional as F
from warptape.parallel import fully_shard
from warptape.parallel.dtensor.placement import _StridedShard

ROWS, WIDTH, INNER, STEPS = 8, 6, 12, 3


class Kind(enum.Enum):
    R = "R"
    I = "I"
    V = "V"
    P = "P"


class Axis:
    """An axis by its ranks, as spmd_types has it."""

    def __init__(self, layout: Any) -> None:
        self.layout = layout


@pytest.fixture(autouse=True)
def spmd(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Of the package spmd_types what fully_shard reads."""
    made: Any = ModuleType("spmd_types")
    vars(made).update({kind.name: kind for kind in Kind})
    made.has_local_type = lambda t: hasattr(t, "_local_type")
    made.get_local_type = lambda t: getattr(t, "_local_type", {})
    made.get_partition_spec = lambda t: getattr(t, "_partition_spec", None)
    monkeypatch.setitem(sys.modules, "spmd_types", made)
    return made


def note(p: Any, axis: Axis, kind: Kind, dim: int | None = None) -> None:
    p._local_type = {axis: kind}
    p._partition_spec = tuple(axis if d == dim else None for d in range(p.ndim))


class Net(nn.Module):
    """[B, WIDTH] -> [B, WIDTH]; with a mesh, this rank's columns of `up` and rows of `down`, and its own
    rows of the batch for `scale`."""

    def __init__(self, tp: Any = None) -> None:
        super().__init__()
        self.tp = tp
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        self.scale, self.shift = nn.Parameter(wt.ones(WIDTH)), nn.Parameter(wt.zeros(WIDTH))

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        if self.tp is None:
            return self.down(self.up(x * self.scale).tanh()) + self.shift
        n, rank = self.tp.size(), self.tp.rank()
        x = functional.all_gather_reduce_scatter(x.chunk(n)[rank] * self.scale, 0, self.tp)
        return functional.all_reduce_pass_through(self.down(self.up(x).tanh()), self.tp) + self.shift


def built() -> Net:
    wt.manual_seed(3)
    return Net().double()


def annotated(mesh: Any) -> Net:
    """The part of a rank along "tp"."""
    model, n, rank = built(), mesh["tp"].size(), mesh["tp"].get_local_rank()
    model.tp, axis = mesh["tp"].get_group(), Axis(mesh["tp"].layout[0])
    for name, dim in (("up", 0), ("down", 1)):
        layer = getattr(model, name)
        layer.weight = nn.Parameter(layer.weight.detach().chunk(n, dim)[rank].clone())
        note(layer.weight, axis, Kind.V, dim)
    note(model.scale, axis, Kind.R)
    note(model.shift, axis, Kind.I)
    return model


def batch(step: int) -> wt.Tensor:
    return wt.randn(ROWS, WIDTH, generator=wt.Generator().manual_seed(step), dtype=wt.float64)


def trained(model: Any, rank: int = 0, ranks: int = 1) -> list[wt.Tensor]:
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(batch(step).chunk(ranks)[rank]), wt.ones(ROWS // ranks, WIDTH).double()).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
    whole = [t.full_tensor() if isinstance(t, DTensor) else t.detach() for t in (*model.parameters(), *norms)]
    return [t.detach().clone() for t in whole]


@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 2, 2), (2, 1, 2), (1, 3, 2)], ids=str)
def test_training_is_that_of_one_process(sizes: tuple[int, ...]) -> None:
    want = trained(built())
    names, n = ("copies", "rest", "tp"), sizes[0] * sizes[1]
    if ROWS % n:
        return

    def body() -> None:
        mesh = dist.init_device_mesh("cpu", sizes, mesh_dim_names=names)
        model = annotated(mesh)
        fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="rest", replicate="copies"))
        split = model.up.weight.placements[-2]
        assert model.up.weight.placements[-1] == Shard(0) and isinstance(split, Shard | _StridedShard)
        assert model.scale.placements[-1] == Replicate() and not hasattr(model.scale, "_local_type")
        seen = []
        model.register_forward_pre_hook(lambda m, _: seen.append((type(m.up.weight), m.scale._local_type)))
        got = trained(model, dist.get_rank() // sizes[2], n)
        assert seen and all(kind is nn.Parameter and notes for kind, notes in seen)
        for a, b in zip(got, want, strict=True):
            assert (a - b).abs().max() < 1e-10

    simulate(n * sizes[2], body)


def test_axes_that_are_split_together_are_one() -> None:
    want = trained(built())

    def body() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        model = annotated(mesh)
        for each in (model.up, model.down, model):
            fully_shard(each, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard=("dp", "cp")))
        assert model.up.weight.device_mesh.mesh_dim_names == ("dp_cp", "tp")
        for a, b in zip(trained(model, dist.get_rank() // 2, 4), want, strict=True):
            assert (a - b).abs().max() < 1e-10

    simulate(8, body)


def test_copies_alone_are_not_split_and_meta_parameters_keep_their_notes() -> None:
    def body() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = annotated(mesh).to("meta")
        notes = [p._local_type for p in annotated(mesh).parameters()]
        for p, kept in zip(model.parameters(), notes, strict=True):
            p._local_type = kept
        axis = Axis(mesh["tp"].layout[0])
        note(model.up.weight, axis, Kind.V, 0)
        note(model.down.weight, axis, Kind.V, 1)
        fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(replicate="dp"))
        assert model.up.weight.placements == (Replicate(), Shard(0))
        model.to_empty(device="cpu")
        with wt.no_grad():
            for p in model.parameters():
                p.fill_(0.5)
        model.unshard()
        assert type(model.scale) is nn.Parameter and list(model.scale._local_type.values()) == [Kind.R]
        assert model.up.weight.shape == (INNER // 2, WIDTH)

    simulate(4, body)


@pytest.mark.parametrize(
    ("kind", "text"), [(Kind.P, "is noted as Kind.P along axis 0"), (None, "is noted as None along axis 0")]
)
def test_notes_that_do_not_fit_are_refused_before_any_change(kind: Kind | None, text: str) -> None:
    def body() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = annotated(mesh)
        axis = Axis(mesh["tp"].layout[0])
        model.shift._local_type = {axis: kind} if kind else {}
        with pytest.raises(ValueError, match=f"shift {text}"):
            fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
        assert not any(isinstance(p, DTensor) for p in model.parameters())

    simulate(4, body)


def test_axes_that_are_not_there_are_refused() -> None:
    def body() -> None:
        mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        with pytest.raises(ValueError, match="expected dp_mesh_dims out of the axes"):
            fully_shard(built(), mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="tp"))
        with pytest.raises(TypeError, match="dp_mesh_dims are of a mesh"):
            fully_shard(built(), dp_mesh_dims=DataParallelMeshDims(shard="dp"))

    simulate(2, body)
    with pytest.raises(ValueError, match="None for both"):
        DataParallelMeshDims()


def test_a_planted_bug_is_found(spmd: ModuleType) -> None:
    """A gradient whose summands are taken for wholes."""
    want = trained(built())

    def body() -> float:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = annotated(mesh)
        note(model.scale, Axis(mesh["tp"].layout[0]), Kind.I)
        fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
        got = trained(model, dist.get_rank() // 2, 2)
        return max((a - b).abs().max().item() for a, b in zip(got, want, strict=True))

    assert all(found > 1e-4 for found in simulate(4, body))
