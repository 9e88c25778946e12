"""Parameters that ranks have parts of, under what reads a whole parameter: norms, optimizers, initial values,
hooks. Each against one process."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from tensor_models import simulate
from warptape import nn, optim
from warptape.distributed.tensor import distribute_tensor
from warptape.parallel import fully_shard
from warptape.parallel import tensor as tp

LAYOUTS = {
    "shards": 2,
    "uneven": 3,
    "more ranks than rows": 4,
    "copies": 4,
    "tensor": 2,
    "tensor and shards": 4,
}


def net() -> Any:
    """[B, 5] -> [B, 3]; a tied, a frozen and an unused parameter."""
    model = nn.Sequential(
        nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)
    )
    model[3].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(wt.ones(3, 2)))
    return model


def split(model: Any, layout: str) -> Any:
    """The model in a layout; its sizes do not divide."""
    ranks = dist.get_world_size()
    if layout.startswith("tensor"):
        grid = dist.init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
        plan = {
            "0": tp.ColwiseParallel(),
            "2": tp.RowwiseParallel(),
            "3": tp.ColwiseParallel(),
            "5": tp.RowwiseParallel(),
        }
        tp.parallelize_module(model, grid["tp"], plan)
        return fully_shard(model, mesh=grid["dp"]) if ranks > 2 else model
    sizes = (2, ranks // 2) if layout == "copies" else (ranks,)
    mesh = dist.init_device_mesh("cpu", sizes)
    if layout == "shards":
        fully_shard(model[2], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def started(make: Callable[[], Any] = net, dtype: Any = wt.float64) -> Any:
    wt.manual_seed(3)
    return make().to(dtype)


def batch() -> wt.Tensor:
    return wt.randn(4, 5, generator=wt.Generator().manual_seed(1), dtype=wt.float64)


def whole(p: Any, t: Any = None) -> Any:
    """The whole of a parameter, or of a tensor that lies as it does."""
    t = p if t is None else t
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def on_ranks(layout: str, check: Callable[[Any, Any], Any]) -> None:
    """check(model in one process, model in parts) on every rank, both after a backward pass."""

    def rank() -> None:
        plain, parts = started(), split(started(), layout)
        for model in (plain, parts):
            model(batch()).square().sum().backward()
        check(plain, parts)

    simulate(LAYOUTS[layout], rank)


# ---- norms ----


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, 0.0, -1.0, math.inf, -math.inf])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_are_of_the_whole(layout: str, norm_type: float) -> None:
    def check(plain: Any, parts: Any) -> None:
        expected = nn.utils.get_total_norm(
            [p.grad for p in plain.parameters() if p.grad is not None], norm_type
        )
        for foreach in (None, False):
            given = [p.grad for p in parts.parameters() if p.grad is not None]
            found = nn.utils.get_total_norm(given, norm_type, foreach=foreach)
            assert wt.allclose(found, expected, rtol=1e-12), (found, expected)
        nn.utils.clip_grads_with_norm_(parts.parameters(), 0.1, found)
        nn.utils.clip_grads_with_norm_(plain.parameters(), 0.1, expected)
        for p, q in zip(parts.parameters(), plain.parameters(), strict=True):
            assert q.grad is None or wt.allclose(whole(p, p.grad), q.grad, rtol=1e-12)
        assert wt.allclose(
            nn.utils.clip_grad_norm_(parts.parameters(), 1e-3, norm_type),
            nn.utils.clip_grad_norm_(plain.parameters(), 1e-3, norm_type),
            rtol=1e-12,
        )

    on_ranks(layout, check)


def test_norms_of_half_precision_do_not_overflow() -> None:
    def rank() -> float:
        p = fully_shard(nn.Linear(2, 4, bias=False).half()).weight
        p.grad = wt.full((2, 2), 300.0).half()  # its square is none of float16
        return float(nn.utils.get_total_norm([p.grad]))

    assert simulate(2, rank) == [pytest.approx(848.5, rel=1e-3)] * 2


def test_a_gradient_that_some_ranks_lack() -> None:
    def rank() -> float:
        p = fully_shard(nn.Linear(2, 2, bias=False)).weight
        p.grad = wt.tensor([[3.0, 4.0]]) if dist.get_rank() else None
        return nn.utils.clip_grad_norm_([p], 1.0).item()

    assert simulate(2, rank) == [5.0, 5.0]


# ---- optimizers ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "RMSprop", "Adafactor", "Muon"])
def test_optimizers_do_what_one_process_does(name: str, layout: str) -> None:
    def rank() -> None:
        plain, parts = started(), split(started(), layout)
        for model in (plain, parts):
            trained = [p for n, p in model.named_parameters() if p.ndim == 2 and n != "unused"]
            optimizer = getattr(optim, name)(trained, lr=0.05)
            for _ in range(3):
                optimizer.zero_grad()
                model(batch()).square().sum().backward()
                optimizer.step()
            state = optimizer.state_dict()
            optimizer.load_state_dict(state)  # and goes on with it
            optimizer.step()
        for p, q in zip(parts.parameters(), plain.parameters(), strict=True):
            # Muon iterates in bfloat16, where the last bit of a sum shows.
            assert wt.allclose(whole(p), q, rtol=0, atol=1e-3 if name == "Muon" else 1e-9)

    simulate(LAYOUTS[layout], rank)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adafactor", "Muon", "LBFGS"])
def test_optimizers_of_dtensors_do_what_one_process_does(name: str, ranks: int) -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (ranks,))
        plain = started(lambda: nn.Linear(5, 6, bias=False))
        part = nn.Parameter(distribute_tensor(plain.weight.detach(), mesh, [tp.Shard(0)]))
        x = batch()
        for weight, given in ((plain.weight, x), (part, distribute_tensor(x, mesh))):
            optimizer = getattr(optim, name)([weight], lr=0.05)

            def closure(optimizer: Any = optimizer, weight: Any = weight, given: Any = given) -> Any:
                optimizer.zero_grad()
                loss = (given @ weight.T).square().sum()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
        found: Any = part.detach()
        assert wt.allclose(found.full_tensor(), plain.weight, rtol=0, atol=1e-6)

    simulate(ranks, rank)


class Lamb(optim.Optimizer):
    """One of a user's own, which reads a norm, a mean and rows of each parameter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @wt.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            scale = p.norm() / p.grad.norm() if p.ndim == 2 else p.grad.abs().max() / p.numel()
            p.sub_(p.grad * scale * 1e-2)
            p.mul_(1 - 1e-2 * p.mean(-1, keepdim=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("make", [Lamb, optim.LBFGS])
def test_optimizers_that_read_more_see_the_whole(make: Any, early: bool, layout: str) -> None:
    def rank() -> None:
        plain, parts = started(), started()
        mine = make(parts.parameters()) if early else None  # before they are split: the same objects
        split(parts, layout)
        for model, optimizer in (
            (plain, make(plain.parameters())),
            (parts, mine or make(parts.parameters())),
        ):

            def closure(optimizer: Any = optimizer, model: Any = model) -> Any:
                optimizer.zero_grad()
                loss = model(batch()).square().sum()
                loss.backward()
                return loss

            for _ in range(2):
                closure()
                optimizer.step(closure)
        for p, q in zip(parts.parameters(), plain.parameters(), strict=True):
            assert wt.allclose(whole(p), q, rtol=0, atol=1e-9)

    simulate(LAYOUTS[layout], rank)


def test_zero_refuses_what_reads_all_parameters() -> None:
    def rank() -> None:
        with pytest.raises(ValueError, match="reads all parameters"):
            dist.optim.ZeroRedundancyOptimizer(net().parameters(), optim.LBFGS)

    simulate(2, rank)


# ---- initial values ----

FILLS: dict[str, Callable[[Any], Any]] = {
    "reset_parameters": lambda m: [layer.reset_parameters() for layer in (m[0], m[2], m[3], m[5])],
    "normal_": lambda m: [p.normal_(0, 0.02) for p in m.parameters()],
    "data": lambda m: [p.data.uniform_(-1, 1) for p in m.parameters()],
    "detach": lambda m: [p.detach().exponential_() for p in m.parameters()],
    "trunc_normal_": lambda m: [nn.init.trunc_normal_(p, std=0.5, a=-0.3, b=0.3) for p in m.parameters()],
    "orthogonal_": lambda m: [nn.init.orthogonal_(p) for p in m.parameters() if p.ndim == 2],
    "xavier_uniform_": lambda m: [nn.init.xavier_uniform_(p) for p in m.parameters() if p.ndim == 2],
    "eye_": lambda m: [nn.init.eye_(p) for p in m.parameters() if p.ndim == 2],
    "sparse_": lambda m: [nn.init.sparse_(p, 0.5) for p in m.parameters() if p.ndim == 2],
    "apply": lambda m: m.apply(lambda x: nn.init.ones_(x.weight) if hasattr(x, "weight") else None),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FILLS)
def test_initial_values_are_those_of_one_process(name: str, layout: str) -> None:
    def rank() -> None:
        plain = started()
        with wt.device("meta"):
            parts = net()
        split(parts, layout).to_empty(device="cpu").double()
        if layout == "tensor":
            parts[3].weight = parts[0].weight  # to_empty() unties
        with wt.no_grad():
            for p in parts.parameters():
                p.zero_()
        with wt.no_grad():
            for p in plain.parameters():
                p.zero_()
            for model in (plain, parts):
                wt.manual_seed(7)
                FILLS[name](model)
        after = wt.rand(3)
        for p, q in zip(parts.parameters(), plain.parameters(), strict=True):
            assert wt.equal(whole(p), q)
        wt.manual_seed(7)
        with wt.no_grad():
            FILLS[name](plain)
        assert wt.equal(after, wt.rand(3))  # as many numbers were drawn

    simulate(LAYOUTS[layout], rank)


def test_copies_start_alike_and_parts_differ_under_seeds_of_their_own() -> None:
    def rank() -> Any:
        wt.manual_seed(dist.get_rank())
        model = fully_shard(nn.Linear(5, 6), mesh=dist.init_device_mesh("cpu", (2, 2)))
        model.reset_parameters()
        return model.weight.to_local().tolist(), model.weight.full_tensor().tolist()

    found = simulate(4, rank)
    assert found[0][0] == found[2][0] and found[1][0] == found[3][0]
    assert found[0][0] != found[1][0]
    assert all(each[1] == found[0][1] for each in found)


def test_the_padding_row_of_an_embedding_in_parts() -> None:
    def rank() -> None:
        for i in range(5):
            table = fully_shard(nn.Embedding(5, 3, padding_idx=i))
            wt.manual_seed(2)
            table.reset_parameters()
            wt.manual_seed(2)
            assert wt.equal(table.weight.full_tensor(), nn.Embedding(5, 3, padding_idx=i).weight)

    simulate(3, rank)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_indices_and_reductions_are_those_of_the_whole(layout: str) -> None:
    def rank() -> None:
        plain = started()
        weight, expected = split(started(), layout)[0].weight, plain[0].weight
        assert weight.shape == expected.shape and weight.numel() == 30 and len(weight) == 6
        for read in (
            lambda w: w[0],
            lambda w: w.data[1:],
            lambda w: w.detach()[..., 0],
            lambda w: w.sum(),
            lambda w: w.norm(),
            lambda w: w.mean(0),
            lambda w: w.std(),
            lambda w: w @ w.T,
            lambda w: w.flatten(),
        ):
            found = read(weight)
            assert isinstance(found, tp.DTensor)
            assert wt.allclose(found.full_tensor(), read(expected), rtol=1e-12)
        with pytest.raises(NotImplementedError, match="__setitem__: no sharding rule"), wt.no_grad():
            weight.data[1] = 0

    simulate(LAYOUTS[layout], rank)


# ---- hooks ----


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hooks_get_the_gradient_of_the_part_once_in_a_pass(layout: str) -> None:
    def rank() -> None:
        plain, parts = started(), split(started(), layout)
        found: dict[str, list[Any]] = {}
        for name, p in parts.named_parameters():
            if p.requires_grad:
                found[name] = []
                p.register_post_accumulate_grad_hook(lambda p, name=name: found[name].append(p.grad.clone()))
        for step in (1, 2):
            for model in (plain, parts):
                model(batch()).square().sum().backward()
            for name, p in parts.named_parameters():
                if name == "unused":
                    assert not found[name]
                elif p.requires_grad:
                    expected = dict(plain.named_parameters())[name].grad
                    assert len(found[name]) == step
                    assert wt.allclose(whole(p, found[name][-1]), expected)
        for p in parts.parameters():
            if getattr(p, "reduced_by_group", False) and p.requires_grad:
                with pytest.raises(RuntimeError, match="register_post_accumulate_grad_hook"):
                    p.register_hook(lambda g: g)

    simulate(LAYOUTS[layout], rank)


def test_hooks_wait_for_the_pass_that_reduces() -> None:
    def rank() -> None:
        model, calls = split(started(), "shards"), []
        model[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.clone()))
        for sync in (False, False, True):
            model.set_requires_gradient_sync(sync)
            model(batch()).square().sum().backward()
        plain = started()
        for _ in range(3):
            plain(batch()).square().sum().backward()
        assert len(calls) == 1
        assert wt.allclose(calls[0].full_tensor(), plain[0].weight.grad)

    simulate(2, rank)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_optimizer_in_backward(layout: str) -> None:
    def train(model: Any) -> Any:
        optimizers = {p: optim.AdamW([p], lr=0.05) for p in model.parameters() if p.requires_grad}

        def step(p: Any) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in optimizers:
            p.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(batch()).square().sum().backward()
            assert all(p.grad is None for p in optimizers)
        return model

    def rank() -> None:
        plain, parts = train(started()), train(split(started(), layout))
        for p, q in zip(parts.parameters(), plain.parameters(), strict=True):
            assert wt.allclose(whole(p), q)

    simulate(LAYOUTS[layout], rank)


# ---- states ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("meta", [False, True])
def test_dtensors_of_a_whole_state_are_loaded(layout: str, meta: bool) -> None:
    def rank() -> None:
        wt.manual_seed(9)
        state = net().double().state_dict()
        with wt.device("meta" if meta else "cpu"):
            model = net().double()
        split(model, layout)
        lies = model.state_dict()
        given = {}
        for name, value in state.items():
            where = lies[name]
            given[name] = value
            if hasattr(where, "placements") and all(
                getattr(p, "parts", None) is None for p in where.placements
            ):
                given[name] = nn.Parameter(distribute_tensor(value, where.device_mesh, where.placements))
        for assign in (True,) if meta else (True, False):
            model.load_state_dict(given, assign=assign)
            for name, p in model.named_parameters():
                assert wt.equal(whole(p), state[name]), name
        model.load_state_dict(model.state_dict(), assign=True)  # its own parts
        assert len(list(model.parameters())) == len(list(net().parameters()))
        optimizer = optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        model(batch()).square().sum().backward()
        optimizer.step()  # on what the module has now
        plain = net().double()
        plain.load_state_dict(state)
        optimizer = optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
        plain(batch()).square().sum().backward()
        optimizer.step()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert wt.allclose(whole(p), q)

    simulate(LAYOUTS[layout], rank)
