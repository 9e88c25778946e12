"""`verify` finds planted bugs, names where they are, and raises no false alarm on right layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from pipeline_models import make_schedule, mlp, tied_transformer
from shard_training import Odd
from tensor_models import GPT2, MODELS, Colwise, Llama, Replicate, T, V, gpt2_plan, gpt_plan, llama_plan
from warptape import nn
from warptape.nn.parallel import DistributedDataParallel
from warptape.parallel import Layout, fully_shard, parallelize_module, verify
from warptape.parallel import pipeline as pp
from warptape.parallel import tensor as tp
from warptape.parallel.verification import Report

ROWS = 24


def token_loss(logits: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def split_loss(mesh: dist.DeviceMesh) -> Callable[..., wt.Tensor]:
    of = tp.VocabParallelCrossEntropy(mesh["tp"] if "tp" in (mesh.mesh_dim_names or ()) else mesh)
    return lambda logits, target: of(logits.flatten(0, 1), target.flatten())


def tokens() -> tuple[wt.Tensor, wt.Tensor]:
    both = wt.randint(V, (ROWS, T + 1), generator=wt.Generator().manual_seed(5))
    return both[:, :-1], both[:, 1:]


def vectors() -> tuple[wt.Tensor, wt.Tensor]:
    g = wt.Generator().manual_seed(6)
    return wt.randn(ROWS, 6, generator=g), wt.randn(ROWS, 6, generator=g)


# ----------------------------------------------------------------------------- right layouts


def split(plan: Any, ranks: int) -> Layout:
    return Layout(ranks, lambda model, mesh: parallelize_module(model, mesh, plan), loss_fn=split_loss)


def shard_all(model: Any, mesh: Any, **options: Any) -> Any:
    for each in [*(model.h if hasattr(model, "h") else model.layers), model]:
        fully_shard(each, mesh=mesh, **options)
    return model


def sharded(shape: tuple[int, ...], **options: Any) -> Layout:
    names = ("copies", "parts")[-len(shape) :]
    ranks = shape[0] * shape[-1] if len(shape) == 2 else shape[0]
    return Layout(ranks, lambda m, mesh: shard_all(m, mesh, **options), shape, names, batch=names)


def copied(ranks: int) -> Layout:
    return Layout(ranks, lambda m, mesh: DistributedDataParallel(m), batch=("ranks",))


def pipeline(kind: str, ranks: int, loss: Any, **how: Any) -> Layout:
    return Layout(ranks, lambda m, mesh: make_schedule(kind, m, loss=loss, **how))


def grid(apply: Callable[..., Any]) -> Layout:
    return Layout(4, apply, (2, 2), ("dp", "tp"), batch=("dp",), loss_fn=split_loss)


def split_and_copied(plan: Any) -> Layout:
    return grid(
        lambda m, mesh: DistributedDataParallel(
            parallelize_module(m, mesh["tp"], plan), process_group=mesh["dp"].get_group()
        )
    )


def split_and_sharded(plan: Any) -> Layout:
    return grid(lambda m, mesh: shard_all(parallelize_module(m, mesh["tp"], plan), mesh["dp"]))


def in_halves(scale: float) -> Callable[..., wt.Tensor]:
    """A loop that adds up the gradients of two micro-batches."""

    def step(model: Any, inputs: Any, target: Any) -> wt.Tensor:
        total = wt.zeros((), dtype=wt.float64)
        for x, y in zip(inputs[0].chunk(2), target.chunk(2), strict=True):
            loss = F.mse_loss(model(x), y)
            (loss * scale).backward()
            total += loss.detach() / 2
        return total

    return step


def split_stages(model: Any, mesh: dist.DeviceMesh) -> Any:
    """Two stages, each split in two."""
    for i in (0, 2, 4, 6):
        plan = {str(i): Colwise(), f"{i + 1}.1": tp.RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
    (stage,) = pp.split_into_stages(model, group=mesh["pp"].get_group())
    return pp.Schedule1F1B(stage, 4, F.mse_loss)


RIGHT: dict[str, tuple[Callable[[], nn.Module], Any, Any, dict[str, Layout]]] = {
    "gpt2": (
        GPT2,
        tokens,
        token_loss,
        {
            "tensor 2": split(gpt2_plan(), 2),
            "tensor 4": split(gpt2_plan(), 4),
            "sequence 2": split(gpt2_plan(True), 2),
            "sequence 4": split(gpt2_plan(True), 4),
            "copies 2": copied(2),
            "zero 2": sharded((2,), reshard_after_forward=False),
            "zero 3": sharded((2,), reshard_after_forward=True),
            "zero 3 on 3": sharded((3,)),
            "hybrid": sharded((2, 2)),
        },
    ),
    "example": (
        MODELS["example"][0],
        tokens,
        token_loss,
        {"tensor 2": split(gpt_plan(), 2), "sequence 4": split(gpt_plan(True), 4)},
    ),
    "llama": (
        Llama,
        tokens,
        token_loss,
        {
            "tensor 2": split(llama_plan(), 2),
            "sequence 4": split(llama_plan(True), 4),
            "copies 4": copied(4),
            "tensor and copies": split_and_copied(llama_plan()),
            "sequence and copies": split_and_copied(llama_plan(True)),
            "tensor and zero": split_and_sharded(llama_plan()),
        },
    ),
    "odd": (
        Odd,
        tokens,
        token_loss,
        {"zero 2": sharded((2,), reshard_after_forward=False), "zero 3": sharded((4,))},
    ),
    "remat": (lambda: Llama(remat=True), tokens, token_loss, {"sequence 2": split(llama_plan(True), 2)}),
    "stages": (
        tied_transformer,
        tokens,
        token_loss,
        {kind: pipeline(kind, 2, token_loss) for kind in ("gpipe", "1f1b", "interleaved", "zb_h1")},
    ),
    "mlp": (
        mlp,
        vectors,
        F.mse_loss,
        {
            "four stages": pipeline("zb_h1", 4, F.mse_loss),
            "split stages": Layout(4, split_stages, (2, 2), ("pp", "tp")),
            "accumulated": Layout(2, copied(2).apply, batch=("ranks",), step=in_halves(0.5), micro_batches=2),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", list(RIGHT))
def test_no_false_alarm(model: str) -> None:
    build, batch, loss, layouts = RIGHT[model]
    x, y = batch()
    if model == "stages":
        x, y = x % 11, y % 11
    report = verify(build, (x, y), loss, layouts, check=True)
    assert report.ok and len(report.rows) == 2 * len(layouts)
    for row in report.rows:
        assert row.forward < 1e-12 and 0 < row.backward < 1e-11 and not row.uncompared, row


def test_twenty_right_layouts() -> None:
    assert sum(len(layouts) for *_, layouts in RIGHT.values()) >= 20


# ------------------------------------------------------------------------------ planted bugs


def first(build: Any, layout: Layout, batch: Any = tokens, loss: Any = token_loss) -> Any:
    report = verify(build, batch(), loss, {"bug": layout})
    assert not report.ok
    print(report)
    return report.differences["bug"]


def test_missing_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    real, partial = tp.layers.redistribute, tp.Partial()
    monkeypatch.setattr(tp.layers, "redistribute", lambda x, h, w, m: x if h == partial else real(x, h, w, m))
    plan = llama_plan()
    del plan["embed"]
    found = first(Llama, split(plan, 2))
    assert (found.kind, found.name, found.ranks) == ("forward", "layers.0.attn.proj", (0, 1))
    assert found.size > 0.1 and "a sum (all-reduce) is missing" in found.causes[0]


def test_missing_all_reduce_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    real, partial = tp.layers.redistribute, tp.Partial()
    monkeypatch.setattr(tp.layers, "redistribute", lambda x, h, w, m: x if h == partial else real(x, h, w, m))
    found = first(Llama, split(llama_plan(), 2))
    assert (found.kind, found.name) == ("forward", "embed")
    assert "a sum (all-reduce) is missing" in found.causes[0]


def test_missing_all_reduce_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tp.layers, "for_split_work", lambda x, have, m: x)
    found = first(Llama, split(llama_plan(), 2))
    assert (found.kind, found.name) == ("backward", "norm.weight")
    assert "a sum (all-reduce) is missing" in found.causes[0]
    assert "norm's output goes into split layers, such as head" in found.causes[1]


@pytest.mark.parametrize("ranks", [2, 4])
def test_micro_batches_not_divided(ranks: int) -> None:
    layout = pipeline("1f1b", ranks, F.mse_loss, m=8, scale_grads=False)
    found = first(mlp, layout, vectors, F.mse_loss)
    assert (found.kind, found.name, round(found.size)) == ("backward", "7.1.weight", 7)
    assert found.causes == ("it is 8 times the right one: micro-batches are added up, not divided by 8",)


def test_accumulated_gradients_not_divided() -> None:
    layout = Layout(4, copied(4).apply, batch=("ranks",), step=in_halves(1.0), micro_batches=2)
    found = first(mlp, layout, vectors, F.mse_loss)
    assert (found.kind, found.name) == ("backward", "7.1.weight")
    assert "not divided by 2" in found.causes[0]


def bias_before_sum(self: Any, input: wt.Tensor) -> wt.Tensor:
    y = F.linear(input, self.weight.to_local(), self.bias.to_local())
    return tp.redistribute(y, tp.Partial(), Replicate(), self.mesh)


@pytest.mark.parametrize("ranks", [2, 4])
def test_doubled_bias(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tp.RowParallelLinear, "forward", bias_before_sum)
    found = first(Llama, split(llama_plan(), ranks))
    assert (found.kind, found.name) == ("forward", "layers.0.attn.proj")
    assert f"the bias is in it {ranks} times" in found.causes[0]


def test_doubled_bias_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> Llama:
        model = Llama()
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
        return model

    monkeypatch.setattr(
        tp.RowParallelLinear,
        "forward",
        lambda self, x: tp.redistribute(
            F.linear(x, self.weight.to_local(), self.bias.to_local()), tp.Partial(), Replicate(), self.mesh
        ),
    )
    assert "the bias is in it 2 times" in first(build, split(llama_plan(), 2)).causes[0]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sequence", [False, True])
def test_wrong_head_split(sequence: bool, ranks: int) -> None:
    plan = gpt2_plan(sequence) | {"h.*.attn.c_attn": Colwise()}
    found = first(GPT2, split(plan, ranks))
    assert (found.kind, found.name) == ("forward", "h.0.attn")
    assert "h.0.attn.c_attn is split by columns as one matrix" in found.causes[0]
    assert "parts=3" in found.causes[0]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("norm", ["layers.0.norm1", "layers.1.norm2", "norm"])
def test_norm_outside_of_the_sequence_parallel_region(norm: str, ranks: int) -> None:
    plan = llama_plan(True)
    del plan["norm"], plan["layers.*.norm?"]
    others = ("norm", "layers.0.norm1", "layers.0.norm2", "layers.1.norm1", "layers.1.norm2")
    plan |= {other: tp.SequenceParallel() for other in others if other != norm}
    found = first(Llama, split(plan, ranks))
    assert found.kind == "backward" and found.name.rpartition(".")[0] == norm
    assert "hold summands" in found.causes[0] and f"give {norm} SequenceParallel()" in found.causes[1]


def test_gradients_not_averaged() -> None:
    found = first(GPT2, Layout(2, lambda m, mesh: m, batch=("ranks",)))
    assert (found.kind, found.name) == ("backward", "ln_f.weight")
    assert "not averaged" in found.causes[0]


def test_gradients_summed_not_averaged() -> None:
    def apply(model: Any, mesh: Any) -> Any:
        model = shard_all(model, mesh)
        for each in (*model.h, model):
            each.set_gradient_divide_factor(1.0)
        return model

    found = first(GPT2, Layout(3, apply, batch=("ranks",)))
    assert (found.kind, found.name) == ("backward", "ln_f.weight")
    assert "3 times the right one: summed over all ranks" in found.causes[0]


def test_dropout_of_each_rank() -> None:
    plan = llama_plan()
    del plan["layers.*.inner_drop"]
    report = verify(Llama, tokens(), token_loss, {"bug": split(plan, 2)})
    assert [row.difference is None for row in report.rows] == [True, False]
    found = report.differences["bug"]
    assert found.name == "layers.0.inner_drop" and "eval mode agrees" in found.causes[-1]


class Swapped(nn.Module):
    """Puts halves together in the wrong order."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return self.inner(x).roll(3, -1)


def test_blocks_in_another_order() -> None:
    def apply(model: Any, mesh: Any) -> Any:
        model[3] = nn.Sequential(model[3][0], Swapped(model[3][1]))
        return model

    found = first(mlp, Layout(2, apply), vectors, F.mse_loss)
    assert (found.kind, found.name) == ("forward", "3")
    assert "2 blocks along dim 1 are the right ones in another order" in found.causes[0]


def test_frozen_by_a_layout_and_wrong_loss() -> None:
    def frozen(model: Any, mesh: Any) -> Any:
        return model.requires_grad_(False) and model[4:].requires_grad_(True) and model

    found = first(mlp, Layout(1, frozen), vectors, F.mse_loss)
    assert (found.kind, found.name, found.ranks) == ("backward", "3.1.weight", (0,))
    assert "no gradient" in found.causes[0]
    twice = Layout(1, lambda m, mesh: m, loss_fn=lambda mesh: lambda x, y: 2 * F.mse_loss(x, y))
    found = first(mlp, twice, vectors, F.mse_loss)
    assert (found.kind, found.causes[0]) == ("loss", "it is 2 times the right one")


# ------------------------------------------------------------------------------ report, input


def test_report_and_errors() -> None:
    def fails(model: Any, mesh: Any) -> Any:
        raise KeyError(f"on rank {dist.get_rank()}")

    layouts = {"right": Layout(1, lambda m, mesh: m), "wrong": Layout(2, fails)}
    report = verify(mlp, vectors(), F.mse_loss, layouts)
    assert isinstance(report, Report) and list(report.differences) == ["wrong"]
    assert "KeyError" in str(report) and "right" in str(report)
    table = str(
        verify(mlp, vectors(), F.mse_loss, {"odd one": Layout(2, lambda m, mesh: m, batch=("ranks",))})
    )
    assert "odd one      2  eval " in table and table.count("gradient of 7.1.weight differs by") == 1
    with pytest.raises(AssertionError, match="layouts differ"):
        verify(mlp, vectors(), F.mse_loss, layouts, check=True)


def test_float32() -> None:
    layouts = {"tensor": split(llama_plan(), 2), "sequence": split(llama_plan(True), 4)}
    verify(Llama, tokens(), token_loss, layouts, dtype=wt.float32, check=True)


def test_the_caller_is_left_alone() -> None:
    wt.manual_seed(4)
    state = wt.get_rng_state()
    verify(mlp, vectors(), F.mse_loss, {"copies": copied(2)}, check=True)
    assert wt.get_rng_state().equal(state)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="does not have 3 ranks"):
        Layout(3, lambda m, mesh: m, (2, 2), ("dp", "tp"))
    with pytest.raises(ValueError, match="names of axes"):
        Layout(4, lambda m, mesh: m, (2, 2))
    with pytest.raises(ValueError, match="the axis 'dp'"):
        Layout(4, lambda m, mesh: m, batch=("dp",))
    with pytest.raises(ValueError, match="make it a multiple of 5"):
        verify(Llama, tokens(), token_loss, {"copies": copied(5)})
