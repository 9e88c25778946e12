"""Tensor and sequence parallelism: the same training run as one process."""

from __future__ import annotations

import copy
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tensor_training
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from launched import LAUNCHER, environ
from tensor_models import MODELS, Colwise, Replicate, gpt2_plan, llama_plan, mesh, simulate
from tensor_training import check, compare, train
from warptape import nn
from warptape.parallel import tensor as tp


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(
    "name, sequence",
    [
        ("example", False),
        ("example", True),
        ("gpt2", False),
        ("gpt2", True),
        ("llama", False),
        ("llama", True),
        ("composed", False),
        ("columns", False),
    ],
)
def test_training_equals_one_process(name: str, sequence: bool, optimizer: str, ranks: int) -> None:
    compare(name, optimizer, 20, lambda: MODELS[name][1](sequence), ranks)


@pytest.mark.parametrize("sequence", [False, True])
def test_checkpointed_layers(sequence: bool) -> None:
    compare("remat", "sgd", 3, lambda: llama_plan(sequence), 2)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("sequence", [False, True])
def test_with_data_parallel_copies(name: str, sequence: bool) -> None:
    compare(name, "adamw", 5, lambda: MODELS[name][1](sequence), ranks=4, copies=2)


def test_one_rank() -> None:
    compare("gpt2", "adamw", 3, lambda: gpt2_plan(True), 1)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("sequence", [False, True])
def test_float32(name: str, sequence: bool) -> None:
    expected = train(name, "sgd", 3, dtype=wt.float32)
    simulate(
        2,
        lambda: check(train(name, "sgd", 3, MODELS[name][1](sequence), wt.float32), expected, tolerance=1e-4),
    )


def test_two_processes() -> None:
    script = Path(tensor_training.__file__)
    command = [*LAUNCHER, "--nproc-per-node=2", str(script)]
    env = environ(PYTHONPATH=f"{script.parent}:{environ()['PYTHONPATH']}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(f"rank {r} of 2 agrees" in done.stdout for r in (0, 1))


@pytest.mark.parametrize("sequence", [False, True])
def test_collectives_of_a_step(sequence: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each half of a layer one forward and one backward, whatever the number of its projections."""
    counts = {"all_reduce": 0, "all_gather_into_tensor": 0, "reduce_scatter": 0}

    def counted(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += dist.get_rank() == 0
            return real(*args, **kwargs)

        return call

    for name in counts:
        monkeypatch.setattr(dist.collectives, name, counted(name, getattr(dist.collectives, name)))

    def rank() -> None:
        wt.manual_seed(0)
        model = tp.parallelize_module(MODELS["llama"][0](), mesh(), llama_plan(sequence))
        model(wt.zeros(2, 8, dtype=wt.int64)).sum().backward()

    simulate(2, rank)
    halves = 4
    if not sequence:  # the embedding forward, the head backward
        assert counts == {"all_reduce": 2 * halves + 2, "all_gather_into_tensor": 0, "reduce_scatter": 0}
    else:  # and the gradients of 3 RMSNorms, 2 LayerNorms and 4 biases
        gathers = 2 * halves + 2
        assert counts == {
            "all_reduce": 3 + 4 + 4,
            "all_gather_into_tensor": gathers,
            "reduce_scatter": gathers,
        }


# ------------------------------------------------------------------------------ planted bugs


def no_forward_sum(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    real = tp.layers.redistribute
    partial = tp.Partial()
    patch.setattr(tp.layers, "redistribute", lambda x, h, w, m: x if h == partial else real(x, h, w, m))
    return llama_plan()


def no_backward_sum(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(tp.layers, "for_split_work", lambda x, have, m: x)
    return llama_plan()


def doubled_bias(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    def forward(self: Any, input: wt.Tensor) -> wt.Tensor:
        y = F.linear(input, self.weight.to_local(), self.bias.to_local())
        return tp.redistribute(y, tp.Partial(), Replicate(), self.mesh)

    patch.setattr(tp.RowParallelLinear, "forward", forward)
    return llama_plan()


def wrong_head_split(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return gpt2_plan() | {"h.*.attn.c_attn": Colwise()}


def norm_outside(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    plan = llama_plan(True)
    del plan["layers.*.norm?"]
    return plan


def dropout_of_each_rank(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    plan = llama_plan()
    del plan["layers.*.inner_drop"]
    return plan


def attention_dropout_of_each_rank(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    real = tp.random._enter
    patch.setattr(tp.random, "_enter", lambda m, dim, heads, *more: real(m, dim, False, *more))
    return llama_plan()


def bias_not_summed(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(tp.RowParallelLinear, "_local_bias", lambda self: self.bias.to_local())
    return llama_plan(True)


BUGS = {
    f.__name__: f
    for f in (
        no_forward_sum,
        no_backward_sum,
        doubled_bias,
        wrong_head_split,
        norm_outside,
        dropout_of_each_rank,
        attention_dropout_of_each_rank,
        bias_not_summed,
    )
}


@pytest.mark.parametrize("bug", list(BUGS))
def test_comparison_finds_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = BUGS[bug](monkeypatch)
    with pytest.raises(dist.RankFailed, match=r"step 0: .* differs by"):
        compare("gpt2" if bug == "wrong_head_split" else "llama", "sgd", 1, lambda: plan, 2)


def test_what_a_state_dict_has_knows_the_whole() -> None:
    def body() -> None:
        wt.manual_seed(0)
        layer = nn.Linear(4, 6)
        whole = layer.weight.detach().clone()
        tp.parallelize_module(layer, dist.init_device_mesh("cpu", (2,)), tp.ColwiseParallel())
        part = layer.state_dict()["weight"]
        assert not part.requires_grad and part.data_ptr() == layer.weight.data_ptr()
        assert part.placements == (tp.Shard(0),) and wt.equal(part.full_tensor(), whole)
        assert type(part + 1) is type(part) is tp.DTensor and type(part.to_local()) is wt.Tensor
        other = copy.deepcopy(part)
        assert other.data_ptr() != part.data_ptr() and wt.equal(other.full_tensor(), whole)
        assert wt.equal(pickle.loads(pickle.dumps(part)).to_local(), part.to_local())
        layer.weight.data.zero_()
        layer.load_state_dict({"weight": other, "bias": layer.bias})
        assert wt.equal(layer.weight.full_tensor(), whole)

    dist.simulate(2, body)


def test_the_local_part_is_a_tensor_on_the_same_memory() -> None:
    def body() -> None:
        layer = nn.Linear(4, 6)
        tp.parallelize_module(layer, dist.init_device_mesh("cpu", (2,)), tp.ColwiseParallel())
        local = layer.weight.to_local()
        assert (
            type(local) is wt.Tensor and local.shape == (3, 4) and local.data_ptr() == layer.weight.data_ptr()
        )
        (2 * local).sum().backward()
        assert layer.weight.grad.eq(2).all()

    dist.simulate(2, body)
