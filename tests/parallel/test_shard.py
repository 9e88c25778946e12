"""Sharded data parallelism: the same training run as one process, in less memory."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import shard_training
import warptape as wt
import warptape.distributed as dist
from launched import launch
from shard_training import MODELS, Inner, Odd, Way, batches, check, net, shard, train
from tensor_models import simulate
from warptape import nn, optim
from warptape.distributed.tensor import _StridedShard
from warptape.parallel import FSDPModule, MixedPrecisionPolicy, fully_shard, pipeline
from warptape.parallel import shard as sharding
from warptape.parallel import tensor as tp

F64 = wt.float64
plainly = functools.cache(lambda *how, **more: train(*how, **more))  # in one process

WAYS = {
    "zero2": Way((2,), False),
    "zero3": Way((2,), True),
    "zero2-4": Way((4,), False),
    "zero3-4": Way((4,), True),
    "default-4": Way((4,)),
    "hybrid2": Way((2, 2), False),
    "hybrid3": Way((2, 2), True),
    "one rank": Way((1,), True),
    "last dim": Way((4,), True, last_dim=True),
    "last dim, hybrid": Way((2, 2), False, last_dim=True),
}


def compare(name: str, optimizer: str, way: Way, steps: int = 20) -> None:
    """Raises AssertionError when ranks of a simulated world train otherwise than one process."""
    expected = plainly(name, optimizer, steps, micro=way.micro)
    ranks = way.tensor
    for n in way.shape:
        ranks *= n
    simulate(ranks, lambda: check(train(name, optimizer, steps, way), expected))


@pytest.mark.parametrize(
    "name, optimizer, way",
    [(name, optimizer, way) for name in ("odd", "gpt2") for optimizer in ("sgd", "adamw") for way in WAYS]
    + [(n, "adamw", w) for n in [*MODELS][2:] for w in ("zero2", "zero3-4", "hybrid3")],
)
def test_training_equals_one_process(name: str, optimizer: str, way: str) -> None:
    compare(name, optimizer, WAYS[way])


@pytest.mark.parametrize("name, reshard", [("gpt2", True), ("llama", False), ("llama_remat", True)])
def test_with_tensor_parallelism(name: str, reshard: bool) -> None:
    compare(name, "adamw", Way((2,), reshard, tensor=2))
    compare(name, "adamw", Way((2,), reshard, tensor=2, last_dim=True), 4)


def test_parts_along_a_dim() -> None:
    """Of 6 columns four ranks have 2, 2, 2 and none; of 10 biases 3, 3, 3 and one."""
    wt.manual_seed(0)
    plain = nn.Linear(6, 10)

    def rank() -> None:
        wt.manual_seed(0)
        model = fully_shard(
            nn.Linear(6, 10), shard_placement_fn=lambda p: tp.Shard(1) if p.ndim > 1 else None
        )
        at = dist.get_rank()
        assert model.weight.placements == (tp.Shard(1),) and model.bias.placements == (tp.Shard(0),)
        assert model.weight.to_local().equal(plain.weight[:, 2 * at : 2 * at + 2])
        assert model.bias.to_local().equal(plain.bias[3 * at : 3 * at + 3])
        assert model.weight.full_tensor().equal(plain.weight)

    simulate(4, rank)


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B", "ScheduleZBH1"])
def test_stages_of_a_pipeline(schedule: str, reshard: bool) -> None:
    """Several forward passes before the first backward, and backward in two halves."""

    def layers() -> list[Any]:
        wt.manual_seed(0)
        return [nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5)).to(F64) for _ in range(4)]

    x, y = wt.randn(2, 8, 5, dtype=F64, generator=wt.Generator().manual_seed(1))
    plain = nn.Sequential(*layers())
    (plain(x) - y).square().mean().backward()

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        (stage,) = pipeline.split_into_stages(net := layers(), group=mesh["pp"].get_group())
        own = [(i, m) for i, m in enumerate(net) if any(m is each for each in stage.submod.modules())]
        for m in (*(m for _, m in own), stage.submod):
            fully_shard(m, mesh=mesh["dp"], reshard_after_forward=reshard)
        runner = getattr(pipeline, schedule)(stage, n_microbatches=4, loss_fn=nn.MSELoss())
        at = mesh.get_local_rank("dp")
        runner.step(x.chunk(2)[at], target=y.chunk(2)[at], losses=[])
        assert len(own) == 2
        for i, m in own:
            got = {k: p.grad.full_tensor() for k, p in m.named_parameters()}
            assert_same(got, {k: p.grad for k, p in plain[i].named_parameters()}, 1e-10)

    simulate(4, rank)


def test_an_output_that_hides_its_tensors_gives_an_error_instead_of_a_wrong_gradient() -> None:
    class Hiding(nn.Sequential):
        def forward(self, x: wt.Tensor) -> Any:
            y = super().forward(x)
            return lambda: y

    def rank() -> None:
        model = fully_shard(Hiding(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)), reshard_after_forward=True)
        with pytest.raises(RuntimeError, match="needed for gradient computation"):
            model(wt.ones(2, 2))().sum().backward()

    simulate(2, rank)


@pytest.mark.parametrize("sync_last", [True, False])
@pytest.mark.parametrize("shape", [(2,), (2, 2)])
@pytest.mark.parametrize("name", ["odd", "gpt2"])
def test_accumulation(name: str, shape: tuple[int, ...], sync_last: bool) -> None:
    compare(name, "adamw", Way(shape, None, micro=2, sync_last=sync_last), 5)


def test_two_processes() -> None:
    code, out, errors = launch("--nproc-per-node=2", shard_training.__file__)
    assert code == 0, errors
    assert all(f"rank {r} of 2 agrees" in out for r in (0, 1))


# ------------------------------------------------------------------------------------ memory


def test_memory_of_zero_3() -> None:
    """A quarter of parameters, gradients and AdamW's state, and two layers' parameters and gradients."""
    layers, width, n = 10, 128, 4
    layer = 8 * width * width * 4

    def rank() -> int:
        model = nn.Sequential(
            *[
                nn.Sequential(
                    nn.Linear(width, 4 * width, False), nn.Tanh(), nn.Linear(4 * width, width, False)
                )
                for _ in range(layers)
            ]
        )
        for each in [*model, model]:
            fully_shard(each, reshard_after_forward=True)
        opt = optim.AdamW(model.parameters())
        for step in range(3):
            opt.zero_grad()
            model(wt.randn(2, width)).sum().backward()
            opt.step()
            dist.barrier()
            if step == 1 and dist.get_rank() == 0:
                wt._C._reset_peak_memory()
            dist.barrier()
        return int(wt._C._memory_stats()["peak_allocated_bytes"])

    gc.collect()
    before = wt._C._memory_stats()["allocated_bytes"]
    held = (simulate(n, rank)[0] - before) / n  # all ranks are threads of this process
    quarter = 4 * layers * layer / n
    print(f"a rank held {held / layer:.2f} layers of parameters; a quarter of all is {quarter / layer:.0f}")
    assert held < quarter + 2 * 2 * layer


def test_whole_parameters_are_two_layers_at_most() -> None:
    def rank() -> tuple[int, int]:
        model, most = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)]), [0, 0]
        for each in [*model, model]:
            fully_shard(each, reshard_after_forward=True)
        groups = [m._sharding.group for m in model]

        def count(*_: Any) -> None:
            phase = model._sharding.progress.backward
            most[phase] = max(most[phase], sum(g.is_unsharded or g.gathering is not None for g in groups))

        for m in model:
            m.register_forward_pre_hook(count)
        for _ in range(2):
            x = wt.randn(2, 8, requires_grad=True)
            x.register_hook(count)
            y = model(x)
            assert not any(g.is_unsharded for g in groups)
            y.register_hook(count)
            for g in groups:
                g.entries[0].full.register_post_accumulate_grad_hook(count)
            y.sum().backward()
            assert not any(g.is_unsharded or g.gathering for g in groups)
        return most[0], most[1]

    assert simulate(2, rank) == [(2, 2), (2, 2)]


def test_nothing_stays() -> None:
    def rank() -> bool:
        model, _, _ = shard("odd", Way((2,), True))
        tokens, _ = batches(1)[0]
        for _ in range(2):
            model(tokens).sum().backward()
        model(tokens)  # a graph that no backward frees
        seen = [weakref.ref(e.full) for e in model._sharding.group.entries]
        del model
        gc.collect()
        return all(r() is None for r in seen)

    assert simulate(2, rank) == [True, True]


# -------------------------------------------------------------------------------- precision


def average(model: Any, x: wt.Tensor, dtype: Any = None) -> dict[str, wt.Tensor]:
    """Gradients of a module of which each rank has all, summed in `dtype`."""
    model(x).float().square().sum().backward()
    found = {}
    for name, p in model.named_parameters():
        found[name] = p.grad.to(dtype or p.dtype)
        dist.all_reduce(found[name], dist.ReduceOp.AVG)
    return found


def assert_same(got: dict[str, Any], want: dict[str, Any], tolerance: float) -> None:
    assert got.keys() == want.keys()
    for k, value in want.items():
        assert got[k].shape == value.shape
        assert (got[k] - value).norm().item() <= tolerance * value.norm().item(), k


@pytest.mark.parametrize("reduce", [None, wt.float32])
def test_mixed_precision(reduce: Any) -> None:
    def rank() -> None:
        wt.manual_seed(dist.get_rank())
        x = wt.randn(4, 6)
        want = average(net().to(wt.bfloat16), x.to(wt.bfloat16), reduce)
        model, seen = net(), []  # by a hook that runs before the one of fully_shard
        model[2].register_forward_hook(
            lambda m, args, out: seen.extend([args[0].dtype, m.weight.dtype, out.dtype])
        )
        for each, out in ((model[0], None), (model[2], None), (model, wt.float32)):
            fully_shard(each, mp_policy=MixedPrecisionPolicy(wt.bfloat16, reduce, out))
        y = model(x)
        assert y.dtype == wt.float32 and seen == [wt.bfloat16] * 3
        y.square().sum().backward()
        assert all(p.dtype == p.grad.dtype == wt.float32 for p in model.parameters())
        got = {k: p.grad.full_tensor() for k, p in model.named_parameters()}
        assert_same(got, {k: v.float() for k, v in want.items()}, 1e-2 if reduce is None else 1e-6)

    simulate(2, rank)


@pytest.mark.parametrize("reshard", [True, False])
def test_autocast(reshard: bool) -> None:
    def rank() -> None:
        wt.manual_seed(dist.get_rank())
        x = wt.randn(4, 6)
        with wt.autocast("cpu", dtype=wt.bfloat16):
            plain, model = net(), net()
            for each in [model[0], model[2], model]:
                fully_shard(each, reshard_after_forward=reshard)
            for _ in range(2):
                for m in (plain, model):
                    m.zero_grad()
                want = average(plain, x)
                model(x).float().square().sum().backward()
                assert_same({k: p.grad.full_tensor() for k, p in model.named_parameters()}, want, 1e-6)

    simulate(2, rank)


# ------------------------------------------------------------------------ parameters and states


def test_parameters_and_state_dicts() -> None:
    def rank() -> None:
        wt.manual_seed(0)
        plain = Odd()
        wt.manual_seed(0)
        model = Odd()
        before = dict(model.named_parameters())
        mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        for each in [*model.layers, model]:
            assert fully_shard(each, mesh=mesh) is each
        assert isinstance(model, Odd) and isinstance(model, FSDPModule) and type(model).__name__ == "FSDPOdd"
        for _ in range(2):  # in parts, and between a forward and its backward
            for name, p in plain.named_parameters():
                part = model.get_parameter(name) if _ == 0 else before[name]
                assert part is before[name] and part.placements == (tp.Shard(0),) and part.device_mesh is mesh
                assert isinstance(part, tp.DTensor) and isinstance(part, nn.Parameter)
                assert part.shape == p.shape and part.full_tensor().equal(p)
                own = p.tensor_split([-(-len(p) // 4) * i for i in (1, 2, 3)])[dist.get_rank()]
                assert part.to_local().equal(own)
            model(batches(1)[0][0])
            assert model.mix.shape == (3,)  # whole, as the outermost module's are until backward
        state = {k: v.clone() for k, v in model.state_dict().items()}
        assert list(state) == list(plain.state_dict())
        assert state["mix"].to_local().shape == (int(dist.get_rank() < 3),)
        full = tp.full_state_dict(model)
        assert all(full[k].equal(v) for k, v in plain.state_dict().items())
        layout = tp.parameter_layouts(model)["layers.0.0.weight"]  # [13, 7]
        assert (layout.dim, layout.ranges) == (0, [[(0, 4)], [(4, 4)], [(8, 4)], [(12, 1)]][dist.get_rank()])
        wt.manual_seed(1)
        other = Odd().state_dict()
        tp.load_full_state_dict(model, other)
        assert all(tp.full_state_dict(model)[k].equal(v) for k, v in other.items())
        model.load_state_dict(state)
        assert all(tp.full_state_dict(model)[k].equal(v) for k, v in plain.state_dict().items())

    simulate(4, rank)


def test_layout_of_what_is_split_twice() -> None:
    def rank() -> None:
        grid = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        wt.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 12), nn.Linear(12, 6))
        whole = {k: p.detach().clone() for k, p in model.named_parameters()}
        plan = {"0": tp.ColwiseParallel(parts=3), "1": tp.RowwiseParallel()}
        fully_shard(tp.parallelize_module(model, grid["tp"], plan), mesh=grid["dp"])
        dp, t = grid.get_local_rank("dp"), grid.get_local_rank("tp")
        layouts = tp.parameter_layouts(model)
        assert layouts["0.weight"].placements == (_StridedShard(0, split_factor=2), tp.Shard(0, 3))
        assert layouts["1.weight"].placements == (tp.Shard(0), tp.Shard(1))
        assert layouts["0.weight"].device_mesh.mesh_dim_names == ("dp", "tp")
        held = [r for i in range(3) for r in (4 * i + 2 * t, 4 * i + 2 * t + 1)][3 * dp : 3 * dp + 3]
        assert [r for start, n in layouts["0.weight"].ranges for r in range(start, start + n)] == held
        assert layouts["1.weight"].regions == {1: [(6 * t, 6)], 0: [(3 * dp, 3)]}
        with pytest.raises(ValueError, match="use regions"):
            _ = layouts["1.weight"].dim
        for k, p in model.named_parameters():
            assert p.full_tensor().equal(whole[k]) and p.like_full(whole[k]).to_local().equal(p.to_local())

    simulate(4, rank)


def test_optimizer_made_before() -> None:
    def rank() -> None:
        model, plain = net(), net()
        opts = [optim.AdamW(m.parameters()) for m in (model, plain)]
        fully_shard(model)
        for m, opt in zip((model, plain), opts, strict=True):
            m(wt.ones(2, 6)).sum().backward()
            opt.step()
        assert_same(tp.full_state_dict(model), plain.state_dict(), 1e-6)

    simulate(2, rank)


# ------------------------------------------------------------------------------------- methods


@pytest.mark.parametrize("ahead", ["forward", "backward", "unshard", "nothing"])
def test_parameters_are_put_together_again_after_a_step(ahead: str) -> None:
    """Whatever had left them whole before."""

    def rank() -> None:
        model, plain, x = net(), net(), wt.ones(2, 6)
        parts = list(fully_shard(model, reshard_after_forward=False).parameters())
        if ahead == "unshard":
            model.unshard(async_op=True)
            model.reshard()
        elif ahead != "nothing":
            y = model(x)
            assert model._sharding.group.is_unsharded
            if ahead == "backward":
                y.sum().backward()
        with wt.no_grad():
            for p in (*parts, *plain.parameters()):
                p.mul_(1.5)
            assert model(x).equal(plain(x)) and not model._sharding.group.is_unsharded
        assert model(x).equal(plain(x))

    simulate(2, rank)


def test_unshard_and_reshard() -> None:
    def rank() -> None:
        model = fully_shard(net())
        assert model.unshard() is None and model[0].weight.shape == (10, 6)
        model.reshard()
        assert model[0].weight.to_local().shape == (5, 6)
        handle = model.unshard(async_op=True)
        assert model[0].weight.to_local().shape == (5, 6)
        handle.wait()
        assert model[0].weight.shape == (10, 6)
        model.double()
        assert model[0].weight.to_local().shape == (5, 6) and model(wt.ones(2, 6, dtype=F64)).dtype == F64

    simulate(2, rank)


@pytest.mark.parametrize("explicit", [False, True])
def test_prefetch(explicit: bool) -> None:
    """While a layer computes, the next one is on its way: implicitly from the second step on."""

    def rank() -> list[Any]:
        model, seen = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]), []
        for each in [*model, model]:
            fully_shard(each)
        if explicit:
            for here, there in zip(list(model), list(model)[2:], strict=False):
                here.set_modules_to_forward_prefetch([there])
        groups = [m._sharding.group for m in model]

        def look(at: int) -> Callable[..., None]:
            return lambda *_: seen.append([at, *(i for i, g in enumerate(groups) if g.gathering)])

        for i, m in enumerate(model):
            m.register_forward_hook(look(i))
        for _ in range(2):
            seen.clear()
            model(wt.ones(2, 4)).sum().backward()
        return seen

    expected = [[0, 2], [1, 2, 3], [2, 3], [3]] if explicit else [[0, 1], [1, 2], [2, 3], [3]]
    assert simulate(2, rank) == [expected] * 2


def test_keeping_parameters_after_backward() -> None:
    def rank() -> list[bool]:
        model, found = fully_shard(net()), []
        for keep in (True, False):
            model.set_reshard_after_backward(not keep)
            model(wt.ones(2, 6)).sum().backward()
            found.append(model._sharding.group.is_unsharded)
        return found

    assert simulate(2, rank) == [[True, False]] * 2


def test_divide_factor() -> None:
    def rank() -> None:
        model, plain = fully_shard(net()), net()
        model.set_gradient_divide_factor(1.0)
        for m in (model, plain):
            m(wt.ones(2, 6)).sum().backward()
        want = {k: 2 * p.grad for k, p in plain.named_parameters()}
        assert_same({k: p.grad.full_tensor() for k, p in model.named_parameters()}, want, 1e-6)
        with pytest.raises(ValueError, match="positive"):
            model.set_gradient_divide_factor(0.0)

    simulate(2, rank)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_norms(norm_type: float) -> None:
    def rank() -> None:
        model, plain = Inner(), Inner()
        plain.load_state_dict(model.state_dict())
        for p in [*model.parameters(), *plain.parameters()]:
            dist.broadcast(p.detach(), 0)
        for each in [*model.layers, model]:
            fully_shard(each, mesh=dist.init_device_mesh("cpu", (2, 2)))
        for m in (model, plain):
            m(batches(1)[0][0]).square().sum().backward()
        norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.1, norm_type).item() for m in (model, plain)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        for (_, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert (p.grad.full_tensor() - q.grad).abs().max().item() < 1e-5

    simulate(4, rank)


def test_an_error_in_forward_or_backward_leaves_a_usable_model() -> None:
    def rank() -> None:
        model, plain, x = net(), net(), wt.ones(2, 6)
        for each in [model[2], model]:
            fully_shard(each, reshard_after_forward=True)

        def fail(*_: Any) -> None:
            raise KeyError("planted")

        for plant in (
            model[4].register_forward_pre_hook,
            lambda f: model[1].register_forward_hook(lambda m, a, o: o.register_hook(f) and None),
        ):
            handle = plant(fail)
            with pytest.raises(KeyError, match="planted"):
                model(x).sum().backward()
            handle.remove()
            model.zero_grad()
        for m in (model, plain):
            m(x).square().sum().backward()
        want = {k: p.grad for k, p in plain.named_parameters()}
        assert_same({k: p.grad.full_tensor() for k, p in model.named_parameters()}, want, 1e-6)

    simulate(2, rank)


# ------------------------------------------------------------------------------ planted bugs

transport = sharding.group.Scattering


def no_reduce_scatter(patch: pytest.MonkeyPatch) -> Way:
    class Done:
        def wait(self) -> None: ...

    def own_part(out: wt.Tensor, x: wt.Tensor, op: Any, group: Any, async_op: bool) -> Any:
        out.copy_(x.flatten().chunk(group.size())[group.rank()].view(out.shape))
        return Done()

    patch.setattr(dist, "reduce_scatter_tensor", own_part)
    return WAYS["zero3"]


def not_divided(patch: pytest.MonkeyPatch) -> Way:
    real = transport.__init__
    patch.setattr(transport, "__init__", lambda self, w, g, c, d: real(self, w, g, c, 1.0))
    return WAYS["zero2"]


def copies_not_summed(patch: pytest.MonkeyPatch) -> Way:
    real = transport.__init__
    patch.setattr(transport, "__init__", lambda self, w, g, c, d: real(self, w, g, None, d))
    return WAYS["hybrid3"]


def stale_parameters(patch: pytest.MonkeyPatch) -> Way:
    patch.setattr(sharding.group.ParameterGroup, "reshard", lambda self: None)
    return WAYS["zero2"]


def norm_of_shards(patch: pytest.MonkeyPatch) -> Way:
    patch.setattr(tp.DTensor, "norm_groups", ())
    return WAYS["zero3"]


def kept_gradient_lost(patch: pytest.MonkeyPatch) -> Way:
    real = sharding.group.ParameterGroup.reduce

    def reduce(self: Any) -> None:
        for entry in self.entries:
            entry.kept = None
        real(self)

    patch.setattr(sharding.group.ParameterGroup, "reduce", reduce)
    return Way((2,), micro=2, sync_last=True)


def dropout_of_each_rank(patch: pytest.MonkeyPatch) -> Way:
    patch.setattr(shard_training.tp, "split_randomness", lambda *_: nullcontext())
    return WAYS["zero3"]


BUGS = (
    no_reduce_scatter,
    not_divided,
    copies_not_summed,
    stale_parameters,
    norm_of_shards,
    kept_gradient_lost,
    dropout_of_each_rank,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda f: f.__name__)
def test_comparison_finds_a_planted_bug(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for micro in (1, 2):
        plainly("gpt2", "sgd", 2, micro=micro)
    way = bug(monkeypatch)
    with pytest.raises(dist.RankFailed, match=r"step [01]: .* differs by|full|shape"):
        compare("gpt2", "sgd", way, 2)
