"""FullyShardedDataParallel, the older class, and the states of models and optimizers by plain names."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape import nn, optim
from warptape.distributed.checkpoint import format_utils, load, save
from warptape.distributed.checkpoint.state_dict import (
    StateDictOptions,
    _init_optim_state,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from warptape.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
    fully_shard,
    register_fsdp_forward_method,
)
from warptape.distributed.fsdp import FullyShardedDataParallel as FSDP
from warptape.nn.parallel import DistributedDataParallel as DDP
from warptape.parallel import tensor as tp
from warptape.parallel.shard import wrap as policies


def simulate(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    return dist.simulate(n, fn, *args, timeout=timedelta(seconds=30))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(5, 7), nn.Linear(7, 5)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return x + self.down(self.up(x).tanh())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(5, 3)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def loss(self, x: wt.Tensor) -> wt.Tensor:
        return self(x).square().mean()


def net() -> Net:
    wt.manual_seed(3)
    return Net().double()


def data(step: int) -> wt.Tensor:
    return wt.randn(8, 5, generator=wt.Generator().manual_seed(step), dtype=wt.float64)


def train(model: Any, optimizer: Any, steps: range, rank: int = 0, ranks: int = 1, clip: Any = None) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(data(step).chunk(ranks)[rank]).square().mean().backward()
        (clip or (lambda n: nn.utils.clip_grad_norm_(model.parameters(), n)))(0.3)
        optimizer.step()


def alone(steps: int = 3) -> tuple[Net, Any]:
    model = net()
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    train(model, optimizer, range(steps))
    return model, optimizer


def close(found: Any, want: Any) -> bool:
    return list(found) == list(want) and all((found[k] - want[k]).abs().max() < 1e-10 for k in want)


BY_BLOCK = functools.partial(policies.transformer_auto_wrap_policy, transformer_layer_cls={Block})


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"])
def test_training_equals_one_process(strategy: str) -> None:
    want = alone()[0].state_dict()

    def run() -> None:
        ranks = dist.get_world_size()
        mesh = dist.init_device_mesh("cpu", (2, 2)) if strategy == "HYBRID_SHARD" else None
        model = FSDP(
            net(),
            sharding_strategy=ShardingStrategy[strategy],
            auto_wrap_policy=BY_BLOCK,
            device_mesh=mesh,
            cpu_offload=CPUOffload(offload_params=True),
        )
        assert len(FSDP.fsdp_modules(model)) == 3 and FSDP.fsdp_modules(model, root_only=True) == [model]
        optimizer = optim.AdamW(model.parameters(), lr=0.05)
        train(model, optimizer, range(3), dist.get_rank(), ranks, model.clip_grad_norm_)
        assert close(model.state_dict(), want)
        assert [n for n, _ in model.named_parameters()] == list(want)

    simulate(4, run)


def test_state_dict_types() -> None:
    def run() -> None:
        model = FSDP(net(), auto_wrap_policy=BY_BLOCK)
        want = net().state_dict()
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            parts = model.state_dict()
            assert parts["head.weight"].to_local().shape == ((2, 5), (1, 5))[dist.get_rank()]
            model.load_state_dict({k: v * 2 for k, v in parts.items()})
        assert close(model.state_dict(), {k: v * 2 for k, v in want.items()})
        config = FullStateDictConfig(rank0_only=True, offload_to_cpu=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
            assert len(model.state_dict()) == (len(want) if dist.get_rank() == 0 else 0)
        model.load_state_dict(want)
        assert close(model.state_dict(), want)
        with FSDP.summon_full_params(model):
            assert close(dict(model.named_parameters()), want)
            model.head.weight.data.zero_()
        assert not model.state_dict()["head.weight"].any()

    simulate(2, run)


def test_optimizer_state_resumes() -> None:
    want = alone(5)[0].state_dict()

    def run() -> None:
        rank = dist.get_rank()
        model = FSDP(net(), auto_wrap_policy=BY_BLOCK)
        optimizer = optim.AdamW(model.parameters(), lr=0.05)
        train(model, optimizer, range(3), rank, 2)
        kept, state = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
        assert state["state"]["head.weight"]["exp_avg"].shape == (3, 5)
        other = FSDP(net())
        other.load_state_dict(kept)
        again = optim.AdamW(other.parameters(), lr=0.05)
        again.load_state_dict(FSDP.optim_state_dict_to_load(other, again, state))
        train(other, again, range(3, 5), rank, 2)
        assert close(other.state_dict(), want)

    simulate(2, run)


@pytest.mark.filterwarnings("ignore:.*is being deprecated:FutureWarning")
def test_optimizer_state_by_the_older_methods() -> None:
    want = alone(5)[0].state_dict()

    def run() -> None:
        rank = dist.get_rank()
        model = FSDP(net(), auto_wrap_policy=BY_BLOCK)
        optimizer = optim.AdamW(model.parameters(), lr=0.05)
        train(model, optimizer, range(3), rank, 2)
        kept, first = model.state_dict(), FSDP.full_optim_state_dict(model, optimizer)
        assert bool(first) == (rank == 0)
        every = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)
        assert every["state"]["head.weight"]["exp_avg"].shape == (3, 5)
        own = FSDP.sharded_optim_state_dict(model, optimizer)["state"]["head.weight"]["exp_avg"]
        rows = every["state"]["head.weight"]["exp_avg"][2 * rank : 2 * rank + 2]
        assert own.to_local().equal(rows)
        for method, state in (
            (FSDP.scatter_full_optim_state_dict, copy.deepcopy(first)),  # what is loaded may be trained on
            (FSDP.shard_full_optim_state_dict, copy.deepcopy(every)),
        ):
            other = FSDP(net())
            other.load_state_dict(kept)
            again = optim.AdamW(other.parameters(), lr=0.05)
            again.load_state_dict(method(state, other, optim=again))
            train(other, again, range(3, 5), rank, 2)
            assert close(other.state_dict(), want)

    simulate(2, run)


def test_older_methods_are_deprecated_and_need_the_optimizer() -> None:
    replaced = pytest.warns(FutureWarning, match="shard_full_optim_state_dict``is being deprecated")
    with replaced, pytest.raises(ValueError, match="expected optim"):
        FSDP.shard_full_optim_state_dict({}, nn.Linear(1, 1))


def test_wrapping_and_precision() -> None:
    def run() -> None:
        size = functools.partial(policies.size_based_auto_wrap_policy, min_num_params=60)
        assert len(FSDP.fsdp_modules(FSDP(net(), auto_wrap_policy=size))) == 3
        both = functools.partial(
            policies._or_policy, policies=[BY_BLOCK, policies.ModuleWrapPolicy({nn.Linear})]
        )
        assert len(FSDP.fsdp_modules(FSDP(net(), auto_wrap_policy=both))) == 8
        custom = policies.CustomPolicy(lambda m: isinstance(m, Block) and {"mixed_precision": None})
        half = FSDP(net(), auto_wrap_policy=custom, mixed_precision=MixedPrecision(param_dtype=wt.bfloat16))
        assert len(FSDP.fsdp_modules(half)) == 3
        assert FSDP(net(), mixed_precision=MixedPrecision(wt.bfloat16))(data(0)).dtype == wt.bfloat16
        with policies.enable_wrap(wrapper_cls=FSDP):
            assert isinstance(policies.wrap(nn.Linear(2, 2)), FSDP)
        assert type(policies.wrap(nn.Linear(2, 2))) is nn.Linear
        wt.manual_seed(dist.get_rank())
        synced = FSDP(nn.Linear(2, 2), sync_module_states=True).state_dict()["weight"]
        assert (
            len(
                {
                    tuple(t.flatten().tolist())
                    for t in dist._functional_collectives.all_gather_tensor(
                        synced.flatten()[None], 0, dist.get_default_group()
                    )
                }
            )
            == 1
        )
        with pytest.raises(ValueError, match="HYBRID_SHARD"):
            FSDP(net(), sharding_strategy=ShardingStrategy.HYBRID_SHARD)

    simulate(2, run)


def test_offload_policy_and_other_methods() -> None:
    def run() -> None:
        model = fully_shard(net(), offload_policy=CPUOffloadPolicy())
        register_fsdp_forward_method(model, "loss")
        model.loss(data(0)).backward()
        assert model.head.weight.grad.to_local().shape[0] < 3

    simulate(2, run)


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp", "fsdp class"])
def test_states_by_plain_names(kind: str, tmp_path: Path) -> None:
    """What one layout saved, another resumes from; wholes go through rank 0."""
    want, ready = alone(5)[0].state_dict(), alone()
    wrap: dict[str, Callable[[Any], Any]] = {
        "plain": lambda m: m,
        "ddp": DDP,
        "fsdp": fully_shard,
        "fsdp class": lambda m: FSDP(m, auto_wrap_policy=BY_BLOCK),
    }

    def run() -> None:
        rank = dist.get_rank()
        model = wrap[kind](net())
        optimizer = optim.AdamW(model.parameters(), lr=0.05)
        full = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        state = get_state_dict(ready[0], ready[1]) if rank == 0 else ({}, {})
        set_state_dict(model, optimizer, model_state_dict=state[0], optim_state_dict=state[1], options=full)
        if kind == "plain":
            train(model, optimizer, range(3, 5))
        else:
            train(model, optimizer, range(3, 5), rank, 2)
        whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        assert close(whole, want)
        offloaded = StateDictOptions(full_state_dict=True, cpu_offload=True)
        assert len(get_model_state_dict(model, options=offloaded)) == (len(want) if rank == 0 else 0)
        flat = get_optimizer_state_dict(
            model, optimizer, options=StateDictOptions(True, flatten_optimizer_state_dict=True)
        )
        assert flat["state.head.weight.exp_avg"].shape == (3, 5)
        assert flat["param_groups.head.weight.lr"] == 0.05
        set_state_dict(
            model, optimizer, model_state_dict=whole, optim_state_dict=flat, options=StateDictOptions(True)
        )
        save({"model": get_model_state_dict(model)}, checkpoint_id=tmp_path / "checkpoint")
        zeros = {k: v.detach() * 0 for k, v in want.items()}
        set_model_state_dict(model, zeros, options=StateDictOptions(full_state_dict=True))
        parts = {"model": get_model_state_dict(model)}
        load(parts, checkpoint_id=tmp_path / "checkpoint")
        set_model_state_dict(model, parts["model"])
        assert close(get_model_state_dict(model, options=StateDictOptions(True)), want)

    simulate(2, run)
    format_utils.dcp_to_torch_save(tmp_path / "checkpoint", tmp_path / "all.pt")
    assert close(wt.load(tmp_path / "all.pt")["model"], want)
    format_utils.torch_save_to_dcp(tmp_path / "all.pt", tmp_path / "back")


def test_values_after_the_meta_device() -> None:
    start, want = net().state_dict(), alone()[0].state_dict()
    whole = StateDictOptions(full_state_dict=True)

    def run() -> None:
        with wt.device("meta"):
            model = Net().double()
        for each in (*model.blocks, model):
            fully_shard(each)
        before = [p.placements for p in model.parameters()]
        assert all(p.is_meta for p in model.parameters())
        model.to_empty(device="cpu")
        assert [p.placements for p in model.parameters()] == before
        assert not any(p.is_meta for p in model.parameters())
        set_model_state_dict(model, start, options=whole)
        optimizer = optim.AdamW(model.parameters(), lr=0.05)
        train(model, optimizer, range(3), dist.get_rank(), 2)
        assert close(get_model_state_dict(model, options=whole), want)

    simulate(2, run)


def test_values_after_the_meta_device_of_what_is_split_twice() -> None:
    wt.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    x = wt.randn(3, 4)
    want = wt.autograd.grad(plain(x).square().sum(), plain[0].weight)[0]

    def run() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with wt.device("meta"):
            model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        tp.parallelize_module(model, mesh["tp"], {"0": tp.ColwiseParallel(), "1": tp.RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        model.to_empty(device="cpu")
        tp.load_full_state_dict(model, plain.state_dict())
        model(x).square().sum().backward()
        weight: Any = model[0].weight
        assert (weight.grad.full_tensor() - want).abs().max() < 1e-5

    simulate(4, run)


@pytest.mark.parametrize("lr", [0.5, wt.tensor(0.5)])
def test_first_state_of_an_optimizer(lr: Any) -> None:
    p = nn.Parameter(wt.ones(3))
    frozen = nn.Parameter(wt.ones(2), requires_grad=False)
    optimizer = optim.AdamW([p, frozen], lr=lr)
    _init_optim_state(optimizer)
    assert optimizer.state[p]["exp_avg"].equal(wt.zeros(3)) and frozen not in optimizer.state
    assert p.equal(wt.ones(3)) and p.grad is None
    assert optimizer.param_groups[0]["lr"] is lr
    p.grad = wt.ones(3)
    optimizer.step()
    kept = optimizer.state[p]["exp_avg"].clone()
    _init_optim_state(optimizer)
    assert optimizer.state[p]["exp_avg"].equal(kept) and p.grad is not None


def test_default_backends() -> None:
    assert dist.get_default_backend_for_device("cpu") == "gloo"
    assert dist.get_default_backend_for_device(wt.device("cuda:1")) == "nccl"
    with pytest.raises(ValueError, match="not registered for device : meta"):
        dist.get_default_backend_for_device("meta")


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="full_state_dict must be True"):
        get_model_state_dict(net(), options=StateDictOptions(broadcast_from_rank0=True))
    with pytest.raises(NotImplementedError, match="submodules"):
        get_model_state_dict(net(), submodules={nn.Linear(1, 1)})
    with pytest.raises(ValueError, match="is not the model's"):
        get_optimizer_state_dict(net(), optim.SGD([nn.Parameter(wt.ones(1))], lr=0.1))
    frozen = net()
    frozen.head.requires_grad_(False)
    state = get_model_state_dict(frozen, options=StateDictOptions(ignore_frozen_params=True))
    assert "head.weight" not in state and len(state) == 8
