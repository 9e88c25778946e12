"""DTensors as objects: how they are made, moved, trained, saved and refused."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from launched import LAUNCHER, environ
from warptape import nn, optim
from warptape.distributed import checkpoint
from warptape.distributed import tensor as dt
from warptape.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from warptape.distributed.tensor._utils import compute_local_shape_and_global_offset
from warptape.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def simulate(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    return dist.simulate(n, fn, *args, timeout=timedelta(seconds=30))


def mesh(*sizes: int) -> dist.DeviceMesh:
    return dist.init_device_mesh("cpu", sizes or (dist.get_world_size(),))


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (1, 2)], ids=str)
def test_redistribute(shape: tuple[int, ...]) -> None:
    """From every pair of placements to every other on two axes, values and gradients."""

    def run() -> None:
        m = mesh(2, 2)
        whole = wt.arange(float(wt.tensor(shape).prod()), dtype=wt.float64).reshape(shape) + 1
        weight = whole.sin()
        ways = list(itertools.product([Replicate(), Shard(0), Shard(-1), Partial()], repeat=2))
        for have, want in itertools.product(ways, ways):
            leaf = distribute_tensor(whole, m).requires_grad_()
            x = leaf.redistribute(m, have)
            y = x.redistribute(m, want)
            local, offset = compute_local_shape_and_global_offset(shape, m, want)
            assert y.to_local().shape == local
            if not any(isinstance(p, Partial) for p in want):
                at = tuple(slice(o, o + n) for o, n in zip(offset, local, strict=True))
                assert y.to_local().equal(whole[at]), (have, want)
            assert y.full_tensor().allclose(whole, rtol=1e-14)
            (y * distribute_tensor(weight, m)).sum().backward()
            assert leaf.grad.to_local().allclose(weight, rtol=1e-14), (have, want)

    simulate(4, run)


def test_kinds_of_partial() -> None:
    def run() -> None:
        m, rank = mesh(), dist.get_rank()
        own = wt.tensor([1.0 + rank, 4.0 - rank], requires_grad=True)
        for kind, want in (
            ("avg", [1.5, 3.5]),
            ("max", [2.0, 4.0]),
            ("min", [1.0, 3.0]),
            ("product", [2.0, 12.0]),
        ):
            x = DTensor.from_local(own, m, [Partial(kind)])
            assert x.full_tensor().tolist() == want
            assert x.redistribute(placements=[Shard(0)]).to_local().tolist() == want[rank : rank + 1]
            assert (
                x.redistribute(placements=[Replicate()])
                .redistribute(placements=[Partial(kind)])
                .full_tensor()
                .tolist()
                == want
            )
        DTensor.from_local(own, m, [Partial("avg")]).sum().backward()
        assert own.grad.tolist() == [0.5, 0.5]
        with pytest.raises(RuntimeError, match="no gradient"):
            DTensor.from_local(own, m, [Partial("max")]).full_tensor().sum().backward()

    simulate(2, run)


def test_local_parts_and_their_gradients() -> None:
    def run() -> None:
        m, rank = mesh(), dist.get_rank()
        x = distribute_tensor(wt.ones(3, 2), m, [Shard(0)]).requires_grad_()
        assert (x.shape, len(x), x.size(-1), x.numel(), x.ndim, x.stride()) == ((3, 2), 3, 2, 6, 2, (2, 1))
        assert x._local_tensor.shape == (2 - rank, 2)
        x.to_local().sum().backward()
        assert x.grad.placements == (Shard(0),) and x.grad is x.grad
        w = distribute_tensor(wt.ones(2), m).requires_grad_()
        (w.to_local(grad_placements=[Partial()]) * (rank + 1)).sum().backward()
        assert w.grad.to_local().tolist() == [3.0, 3.0]
        own = wt.ones(2 - rank, requires_grad=True)
        whole = DTensor.from_local(own, m, [Shard(0)], shape=(3,), stride=(1,))
        assert whole.sum().full_tensor() == 3
        with pytest.raises(ValueError, match="pass shape="):
            DTensor.from_local(own, m, [Shard(0)], shape=(5,))
        same = DTensor.from_local(wt.full((2,), float(rank)), m, [Replicate()], run_check=True)
        assert same.to_local().tolist() == [0.0, 0.0]
        seen: list[Any] = []
        y = x * 2
        y.register_hook(lambda g: seen.append(g.placements))
        (grad,) = wt.autograd.grad(y.sum(), [x])
        assert seen == [(Shard(0),)] and grad.full_tensor().equal(wt.full((3, 2), 2.0))

    simulate(2, run)


def test_what_is_refused() -> None:
    def run() -> None:
        m = mesh()
        x = distribute_tensor(wt.arange(12.0).reshape(4, 3), m, [Shard(0)])
        with pytest.raises(RuntimeError, match="got mixed"):
            x + wt.ones(4, 3)
        assert (x + wt.tensor(1.0)).full_tensor()[0, 0] == 1
        with dt.experimental.implicit_replication():
            assert (x + wt.ones(4, 3)).placements == (Shard(0),)
        with pytest.raises(NotImplementedError, match=r"histc.*no sharding rule.*\[Shard\(dim=0\)\]"):
            wt.histc(x)
        assert wt.histc(x.redistribute(placements=[Replicate()])).shape == (100,)
        with pytest.raises(NotImplementedError, match="in-place change"):
            distribute_tensor(wt.ones(3), m, [Shard(0)]).cumsum_(0)
        with pytest.raises(ValueError, match="a placement for each"):
            distribute_tensor(wt.ones(3), m, [Shard(0), Shard(0)])
        with pytest.raises(ValueError, match="of 1 dims"):
            distribute_tensor(wt.ones(3), m, [Shard(1)])
        with pytest.raises(ValueError, match="partial sum"):
            distribute_tensor(wt.ones(3), m, [Partial()])
        with pytest.raises(TypeError, match="Shard, Replicate or Partial"):
            distribute_tensor(wt.ones(3), m, ["shard"])
        with pytest.raises(IndexError, match="from 0 to 3"):
            F.embedding(distribute_tensor(wt.tensor([4]), m), x)

    simulate(2, run)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, ids: wt.Tensor) -> wt.Tensor:
        x = self.table(ids)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return x.softmax(-1).square().mean()


def net() -> Net:
    wt.manual_seed(2)
    return Net().double()


def split(name: str, module: nn.Module, m: dist.DeviceMesh) -> None:
    """Columns of `up` and rows of `down` on the last axis; the batch on the first, if there are two."""
    dims = {"table": 0, "up": 0, "down": 1}
    if name in dims:
        for key, p in list(module.named_parameters(recurse=False)):
            where = Replicate() if name == "down" and key == "bias" else Shard(dims[name])
            placed = distribute_tensor(p.detach(), m, [Replicate()] * (m.ndim - 1) + [where])
            module.register_parameter(key, nn.Parameter(placed))


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.5, momentum=0.9),
    "adamw": lambda ps: optim.AdamW(ps, lr=0.01),
    "adagrad": lambda ps: optim.Adagrad(ps, lr=0.05),
}


def train(model: nn.Module, kind: str, ids: Callable[[int], wt.Tensor]) -> list[float]:
    optimizer, losses = OPTIMIZERS[kind](model.parameters()), []
    for step in range(4):
        optimizer.zero_grad()
        loss = model(ids(step))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        losses += [loss.item(), norm.item()]
    return losses


def batch(step: int) -> wt.Tensor:
    return (wt.arange(20) * (step + 3) % 7).reshape(4, 5)


@pytest.mark.parametrize("sizes", [(2,), (2, 2)], ids=str)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_equals_one_process(kind: str, sizes: tuple[int, ...]) -> None:
    alone = net()
    want = train(alone, kind, batch)

    def run() -> None:
        m = mesh(*sizes)
        model = dt.distribute_module(net(), m, split)
        data = [Shard(0)] * (m.ndim - 1) + [Replicate()]
        found = train(model, kind, lambda step: distribute_tensor(batch(step), m, data))
        assert found == pytest.approx(want, rel=1e-10)
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert isinstance(p, nn.Parameter) and isinstance(p, DTensor)
            assert p.grad.placements == p.placements
            assert (p.full_tensor() - q).abs().max() < 1e-10, name
        other = dt.distribute_module(Net().double(), m, split)
        other.load_state_dict(model.state_dict())
        assert all(a.equal(b) for a, b in zip(model.parameters(), other.parameters(), strict=True))

    simulate(2 if len(sizes) == 1 else 4, run)


def test_copies_and_pickles() -> None:
    def run() -> None:
        m = mesh()
        p = nn.Parameter(distribute_tensor(wt.arange(6.0).reshape(3, 2), m, [Shard(0)]))
        twin = copy.deepcopy(p)
        assert isinstance(twin, nn.Parameter) and twin.requires_grad and twin.equal(p) and twin is not p
        back = pickle.loads(pickle.dumps(p))
        assert back.placements == p.placements and back.equal(p) and back.device_mesh == m
        assert "placements=(Shard(dim=0),)" in repr(p)
        half = p.detach().to(wt.bfloat16)
        assert half.dtype == wt.bfloat16 and half.placements == p.placements
        model = nn.Linear(2, 2)
        model.weight = nn.Parameter(distribute_tensor(wt.ones(2, 2), m, [Shard(0)]))
        model.to(wt.float64)
        assert model.weight.dtype == wt.float64 and isinstance(model.weight, DTensor)

    simulate(2, run)


def test_factories_draw_as_one_process_does() -> None:
    wt.manual_seed(4)
    drawn = [wt.randn(5, 3), wt.rand(5, 3)]
    p = wt.empty(5, 3)
    nn.init.kaiming_uniform_(p)
    dropped = F.dropout(wt.ones(5, 3), 0.5)

    def run() -> None:
        m = mesh()
        dt._random.manual_seed(4, m)
        for make, want in zip((dt.randn, dt.rand), drawn, strict=True):
            assert make(5, 3, device_mesh=m, placements=[Shard(0)]).full_tensor().equal(want)
        q = dt.empty((5, 3), device_mesh=m, placements=[Shard(1)])
        nn.init.kaiming_uniform_(q)
        assert q.full_tensor().equal(p)
        ones = dt.ones(5, 3, device_mesh=m, placements=[Shard(0)])
        assert F.dropout(ones, 0.5).full_tensor().equal(dropped)
        assert dt.zeros(3, device_mesh=m).placements == (Replicate(),)
        assert dt.full((3,), 2.5, device_mesh=m, placements=[Shard(0)]).sum().item() == 7.5
        assert wt.zeros_like(q).placements == (Shard(1),)
        with m:
            assert dt.ones(4, requires_grad=True).device_mesh is m

    simulate(2, run)


def test_only_ranks_of_a_mesh_seed_it() -> None:
    def run() -> None:
        part = dist.DeviceMesh("cpu", [0])
        if dist.get_rank():
            with pytest.raises(RuntimeError, match="part of the device mesh"):
                dt._random.manual_seed(1, part)
        else:
            dt._random.manual_seed(1, part)

    simulate(2, run)


def test_checkpoint_into_another_layout(tmp_path: Path) -> None:
    whole = wt.arange(15.0).reshape(5, 3)

    def save() -> None:
        state = {"w": distribute_tensor(whole, mesh(), [Shard(0)])}
        checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(tmp_path / "a"))
        checkpoint.save(state, storage_writer=checkpoint.HuggingFaceStorageWriter(tmp_path / "hf"))

    def load() -> None:
        for where, reader in (
            ("a", checkpoint.FileSystemReader),
            ("hf", checkpoint.HuggingFaceStorageReader),
        ):
            w = dt.zeros(5, 3, device_mesh=mesh(2, 2), placements=[Shard(1), Shard(0)])
            checkpoint.load({"w": w}, storage_reader=reader(tmp_path / where))
            assert w.full_tensor().equal(whole)

    simulate(2, save)
    simulate(4, load)


def test_styles_return_dtensors() -> None:
    def run() -> None:
        m = mesh()
        wt.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
        twin, x = copy.deepcopy(model), wt.randn(3, 4)
        plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel(use_local_output=False)}
        parallelize_module(model, m, plan)
        assert model[0](x).placements == (Shard(-1 % 2),)
        y = model(distribute_tensor(x, m, [Shard(0)]))
        assert isinstance(y, DTensor) and y.full_tensor().allclose(twin(x), atol=1e-6)
        y.sum().backward()
        twin(x).sum().backward()
        assert model[0].weight.placements == (Shard(0),)
        assert model[0].weight.grad.full_tensor().allclose(twin[0].weight.grad, atol=1e-6)

    simulate(2, run)


SCRIPT = """
import warptape as wt
import warptape.distributed as dist
from warptape.distributed.tensor import Shard, distribute_tensor
mesh = dist.init_device_mesh("cpu", (2,))
x = distribute_tensor(wt.arange(10.).reshape(5, 2), mesh, [Shard(0)]).requires_grad_()
w = distribute_tensor(wt.ones(2, 3), mesh, [Shard(1)]).requires_grad_()
(x @ w).sum().backward()
assert w.grad.full_tensor().tolist() == [[20.0] * 3, [25.0] * 3]
assert x.grad.full_tensor().tolist() == [[3.0] * 2] * 5
print(f"rank {dist.get_rank()} agrees")
dist.destroy_process_group()
"""


def test_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    command = [*LAUNCHER, "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(f"rank {r} agrees" in done.stdout for r in (0, 1))
