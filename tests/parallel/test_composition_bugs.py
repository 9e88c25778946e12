"""Bugs of parallelism that were reported in public, written again: `verify` names module and cause.

Run as a script it prints the table of docs/guides/parallel.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from composition_models import Decoder, batch, clip, layout, norm_on, token_loss
from pipeline_models import mlp, tied_transformer
from warptape import nn
from warptape.nn import functional as F
from warptape.parallel import Layout, fully_shard, verify
from warptape.parallel import pipeline as pp
from warptape.parallel.pipeline.partition import Chain
from warptape.parallel.verification import Report

TP, CP, DP, ALL = {"dp": 2, "tp": 4}, {"dp": 2, "cp": 4}, {"dp": 8}, {"dp": 2, "cp": 2, "tp": 2}


@dataclass
class Case:
    """A bug: where it was reported, how it is run, and what is said of it."""

    source: str
    run: Callable[[], Report]
    kind: str
    name: str
    cause: str = ""


def decoder(axes: dict[str, int], bug: str, balance: float = 0.0, **more: Any) -> Callable[[], Report]:
    layouts = {"bug": layout(axes, bug, **more)}
    after = clip if "after" in more else None
    return lambda: verify(lambda: Decoder(balance), batch(), token_loss, layouts, modes=(False,), after=after)


def norms(bug: str) -> Callable[[], Report]:
    return decoder(TP, "", after=norm_on(bug))


# ------------------------------------------------------------------ pipelines, state, optimizers


def vectors() -> tuple[wt.Tensor, wt.Tensor]:
    g = wt.Generator().manual_seed(6)
    return wt.randn(24, 6, generator=g), wt.randn(24, 6, generator=g)


def stages(model: Any, m: int = 4) -> Any:
    """Stages cut by hand, which do not know what they share."""
    layers, rank, ranks = list(model.named_children()), dist.get_rank(), dist.get_world_size()
    per = len(layers) // ranks
    part = Chain(dict(layers[rank * per : (rank + 1) * per]))
    return pp.ScheduleGPipe(pp.PipelineStage(part, rank, ranks), m, LOSSES[type(model)])


def token_loss_11(logits: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


LOSSES: dict[type, Any] = {nn.Sequential: F.mse_loss}


def tied() -> Report:
    x = wt.randint(11, (8, 9), generator=wt.Generator().manual_seed(5))

    def apply(model: Any, mesh: Any) -> Any:
        made = stages(model)
        made.loss_fn = token_loss_11
        return made

    return verify(
        tied_transformer, (x[:, :-1], x[:, 1:]), token_loss_11, {"bug": Layout(2, apply)}, modes=(False,)
    )


def local_names(schedule: Any) -> None:
    """A checkpoint of all stages whose keys count each stage's layers from zero."""
    (stage,) = schedule.stages.values()
    here = {str(i): layer.state_dict() for i, layer in enumerate(stage.submod.children())}
    saved: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(saved, here)
    merged = {key: state for each in saved for key, state in each.items()}
    for i, layer in enumerate(stage.submod.children()):
        layer.load_state_dict(merged[str(i)])


def after_step(apply: Any, after: Any, plainly: Any, build: Any = mlp, **how: Any) -> Callable[[], Report]:
    layouts = {"bug": Layout(8, apply, after=after, **how)}
    return lambda: verify(build, vectors(), F.mse_loss, layouts, modes=(False,), after=plainly)


def whole(model: Any, mesh: Any) -> Any:
    return model


def four_stages(after: Any) -> Callable[[], Report]:
    layouts = {"bug": Layout(4, lambda m, mesh: stages(m), after=after)}
    return lambda: verify(mlp, vectors(), F.mse_loss, layouts, modes=(False,), after=lambda model: None)


def orthogonal(model: Any, local: bool) -> None:
    """Muon's update of matrices, of the whole gradient or of this rank's rows."""
    with wt.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                g = p.grad.to_local() if local else p.grad
                u, _, v = wt.linalg.svd(g, full_matrices=False)
                (p.to_local() if local else p).sub_(0.1 * u @ v)


def masters(model: Any) -> None:
    """A checkpoint is read into the model, and the optimizer's copies overwrite it in the first step."""
    kept = [p.detach().clone() for p in model.parameters()]
    read(model)
    with wt.no_grad():
        for p, own in zip(model.parameters(), kept, strict=True):
            p.copy_(own)


def read(model: Any) -> None:
    model.load_state_dict({name: t + 1 for name, t in model.state_dict().items()})


def joined_by_rank(model: Any) -> None:
    """Ranks' columns of queries, keys and values put together in the order of ranks."""
    with wt.no_grad():
        w = model[0].weight
        parts = [wt.cat([m.chunk(2)[rank] for m in w.chunk(3)]) for rank in range(2)]
        w.copy_(wt.cat(parts))


class Averaged(nn.Module):
    """With a moving average of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("mean", wt.zeros(6))

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return self.linear(x - self.mean)


def track(model: Any) -> None:
    model.mean.add_(1)


def track_on_first(model: Any) -> None:
    if dist.get_rank() == 0:
        track(model)


def sharded(model: Any, mesh: Any) -> Any:
    return fully_shard(model, mesh=mesh)


MEGATRON = "NVIDIA/Megatron-LM#7452"
CASES: dict[str, Case] = {
    "logits that are whole go to the vocabulary-parallel loss": Case(
        MEGATRON, decoder(TP, "logits gathered"), "loss", "loss", "see this layout's loss function"
    ),
    "experts are summed over another axis's ranks": Case(
        MEGATRON + ", 5",
        decoder(TP, "experts over the wrong group"),
        "forward",
        "moe",
        "the axis 'dp' have the same where each should have its own",
    ),
    "attention is summed over another axis's ranks": Case(
        MEGATRON + ", 6",
        decoder(TP, "wrong group"),
        "forward",
        "attn",
        "a collective over this axis that should be over another",
    ),
    "embeddings are scattered over another axis's ranks": Case(
        MEGATRON + ", 7",
        decoder({"dp": 2, "tp": 2}, "scattered over the wrong group"),
        "forward",
        "",
        "its place along the axis 'dp', so it is cut over the ranks of this axis",
    ),
    "split attention sinks count as copies in the clipped norm": Case(
        MEGATRON + ", 8",
        norms("attn.sinks"),
        "after",
        "norm",
        "one rank's part of the gradient of attn.sinks",
    ),
    "the local count of tokens is overwritten by the global one": Case(
        MEGATRON + ", 10",
        decoder(CP, "local count overwritten", 0.1),
        "backward",
        "moe.router.weight",
        "adds besides the loss's (a balancing loss, say) is 1/8 of the right one: divided by all ranks",
    ),
    "the gradient of a norm of single heads is not summed": Case(
        MEGATRON + ", 11",
        decoder(TP, "head norm not summed"),
        "backward",
        "attn.q_norm.weight",
        "a sum (all-reduce)",
    ),
    "a checkpoint of stages names layers from zero": Case(
        MEGATRON + ", 12", four_stages(local_names), "after", "0.weight", "it has the value of 6.weight"
    ),
    "the loss is scaled by one axis of data, not by both": Case(
        "VeOmni#338, Megatron-LM#673",
        decoder(ALL, "scaled by dp alone"),
        "loss",
        "loss",
        "the axis 'dp' or 'cp' or 'tp'",
    ),
    "the mean of means of uneven numbers of tokens": Case(
        "verl#2857, SkyRL#925, torchtitan#2206", decoder(DP, "mean of means"), "loss", "loss", "loss function"
    ),
    "positions count from zero in each part of a sequence": Case(
        "context parallelism",
        decoder(CP, "positions of the part"),
        "forward",
        "places",
        "counted from the start of a rank's own part",
    ),
    "gradients of other ranks' keys are dropped": Case(
        "Megatron-LM#1464",
        decoder(CP, "keys of others not summed"),
        "backward",
        "attn.kv.weight",
        "it lacks what other ranks of the axis 'cp' do with attn.kv's output",
    ),
    "gradients of keys that heads share are not summed": Case(
        "bigcode/Megatron-LM#35",
        decoder(TP, "shared keys not summed"),
        "backward",
        "attn.kv.weight",
        "all-reduce",
    ),
    "the router's gradient is not summed where experts begin": Case(
        "torchtitan#2416",
        decoder(TP, "router not summed"),
        "backward",
        "moe.router.weight",
        "a sum (all-reduce)",
    ),
    "the router's weights are gathered without their history": Case(
        "Automodel#2995",
        decoder(TP, "router detached"),
        "backward",
        "moe.router.weight",
        "nothing reached it",
    ),
    "gradients of experts are divided by their ranks": Case(
        "VeOmni#205",
        decoder(TP, "experts divided by ranks"),
        "backward",
        "moe.experts",
        "1/4 of the right one",
    ),
    "gradients of experts are multiplied by their ranks": Case(
        "pytorch#160285", decoder(TP, "experts multiplied by ranks"), "backward", "moe.experts", "4 times"
    ),
    "the balancing loss is multiplied by ranks": Case(
        "Megatron-LM#3768",
        decoder(TP, "balance scaled by ranks", 0.1),
        "backward",
        "moe.router.weight",
        "adds besides the loss's (a balancing loss, say) is 4 times the right one: summed over the axis 'tp'",
    ),
    "experts count as copies in the clipped norm": Case(
        "Megatron-LM#5916",
        norms("moe.experts"),
        "after",
        "norm",
        "one rank's part of the gradient of moe.experts",
    ),
    "copies are counted on each rank in the clipped norm": Case(
        "TransformerEngine, ROCm#715",
        norms("copies counted"),
        "after",
        "norm",
        "4 times: the ranks of the axis 'tp'",
    ),
    "the clipped norm is summed over replicas": Case(
        "VeOmni#184", norms("replicas summed"), "after", "norm", "summed over the axis 'dp'"
    ),
    "gradients are never averaged": Case(
        "data parallelism", decoder(DP, "never averaged"), "backward", "head.weight", "not averaged"
    ),
    "a parameter is reduced twice": Case(
        "data parallelism", decoder(TP, "reduced twice"), "backward", "head.weight", "2 times the right one"
    ),
    "a parameter that was frozen when buckets were made": Case(
        "data parallelism", decoder(DP, "unfrozen later"), "backward", "head.weight", "not averaged"
    ),
    "embeddings that stages tie are not summed": Case(
        "pipelines", tied, "backward", "0.weight", "a sum (all-reduce) is missing"
    ),
    "Muon orthogonalizes each rank's rows": Case(
        "FSDP2 with Muon",
        after_step(sharded, lambda m: orthogonal(m, True), lambda m: orthogonal(m, False), batch=("ranks",)),
        "after",
        "0.weight",
        "the optimizer needs the whole matrix",
    ),
    "an optimizer's copies overwrite a checkpoint": Case(
        "Megatron-Bridge#3397", after_step(whole, masters, read), "after", "0.weight", "nothing reached it"
    ),
    "queries, keys and values are joined in the order of ranks": Case(
        "checkpoint conversion",
        after_step(whole, joined_by_rank, lambda m: None),
        "after",
        "0.weight",
        "blocks along dim 0 are the right ones in another order",
    ),
    "a buffer is updated on one rank": Case(
        "stale buffers",
        after_step(whole, track_on_first, track, Averaged),
        "after",
        "mean",
        "nothing reached it",
    ),
}


@pytest.mark.parametrize("bug", CASES)
def test_named(bug: str) -> None:
    case, start = CASES[bug], time.monotonic()
    report = case.run()
    print(report)
    found = report.differences["bug"]
    assert (found.kind, found.name) == (case.kind, case.name)
    assert case.cause in " ".join(found.causes)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("axes", [TP, CP, DP, ALL], ids=str)
def test_without_bugs(axes: dict[str, int]) -> None:
    after = norm_on() if "tp" in axes else clip
    layouts = {"right": layout(axes, after=after)}
    report = verify(
        lambda: Decoder(0.1), batch(), token_loss, layouts, modes=(False,), after=clip, check=True
    )
    assert report.rows[0].backward > 0


if __name__ == "__main__":
    print("| bug | reported as | named | likely cause, as said |\n| --- | --- | --- | --- |")
    for bug, case in CASES.items():
        found = case.run().differences["bug"]
        what = {"forward": "output of ", "backward": "gradient of ", "after": "after the step: "}.get(
            found.kind, ""
        )
        place = f"{what}`{found.name}`" if found.name else found.where
        print(f"| {bug} | {case.source} | {place} | {found.causes[0] if found.causes else ''} |", flush=True)
