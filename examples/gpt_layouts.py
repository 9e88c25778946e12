"""train_gpt.py's model over the axes of a mesh: what --dp, --cp, --tp, --pp, --ep and --zero ask for.

Shapes: B batch, T block, C width, V vocabulary; V / n is the part of the vocabulary that a rank has.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import warptape as wt
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
import warptape.nn.functional as F
from warptape import nn
from warptape.parallel import ParallelModel, parallelize
from warptape.parallel.context import positions
from warptape.parallel.experts import MixtureOfExperts, SplitExperts, update_biases
from warptape.parallel.tensor import ColwiseParallel, RowwiseParallel, VocabParallelCrossEntropy, divide

AXES = ("dp", "cp", "tp", "pp")
# Queries, keys and values are one matrix; the head has the embedding's weight, so both split the vocabulary.
PLAN = {
    "tokens": RowwiseParallel(),
    "layers.*.attention": divide("heads", width_of_input=True),
    "layers.*.attention.qkv": ColwiseParallel(parts=3),
    "layers.*.attention.out": RowwiseParallel(),
    "layers.*.mlp.0": ColwiseParallel(),
    "layers.*.mlp.2": RowwiseParallel(),
    "head": ColwiseParallel(),
}


class Start(nn.Module):
    """What comes before the first layer: tokens [B, T] -> [B, T, C]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tokens, self.positions = model.tokens, model.positions

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        return self.tokens(tokens) + self.positions(positions(tokens.shape[1], tokens.device))


class Spread:
    """The model over the ranks, each of which keeps its part alone.

    share: which of how many parts of a batch is this rank's.
    Raises: ValueError, on every rank, for options that do not fit each other or the job.
    """

    def __init__(self, model: Any, layout: dict[str, int], batch: int, device: str) -> None:
        dp, cp, tp, pp = (layout[name] for name in AXES)
        depth = len(model.layers)
        check(layout, model, batch)
        if not dist.is_initialized():
            dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        names = ("pp", "dp", "cp", "tp")  # neighbours in the last one talk most
        mesh = dist.init_device_mesh(device.partition(":")[0], (pp, dp, cp, tp), mesh_dim_names=names)
        measure = VocabParallelCrossEntropy(mesh["tp"]) if tp > 1 else F.cross_entropy

        def loss_of(logits: wt.Tensor, targets: wt.Tensor) -> wt.Tensor:
            return measure(logits.float().flatten(0, 1), targets.flatten())  # [B, T, V / n], [B, T]

        balance = [depth // pp] * pp  # of the layers, and of the model's start and end
        balance[0] += 1
        balance[-1] += 1
        self.parallel = parallelize(
            model,
            mesh,
            loss_fn=loss_of,
            plan=plan_of(model),
            layers=[Start(model), *model.layers, nn.Sequential(model.norm, model.head)],
            balance=balance,
            n_microbatches=pp,
            zero=layout["zero"],
            ep=layout["ep"],
        )
        self.share = mesh.get_local_rank("dp"), dp

    def training_step(
        self, model: ParallelModel, optimizer: Any, batch: tuple[wt.Tensor, ...], cast: Any
    ) -> wt.Tensor:
        """As train_gpt's; the loss is that of the whole batch."""
        optimizer.zero_grad()
        with cast:
            loss = model.step(batch[0], target=batch[1])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        update_biases(model)
        return loss

    def validate(self, text: Any, batch: int, cast: Any) -> float:
        """As train_gpt's, on every rank. Rows that do not divide all ranks take, as often as there are
        micro-batches."""
        (at, dp), n = self.share, self.parallel.n_microbatches
        self.parallel.eval()
        total, rows = 0.0, 0
        for both in text.validation_batches(4 * batch):
            count = len(both[0])
            divides = count % (dp * n) == 0
            inputs, targets = (t.chunk(dp)[at] if divides else t.repeat(n, 1) for t in both)
            with cast:
                total += self.parallel.evaluate(inputs, target=targets).item() * count
            rows += count
        self.parallel.train()
        return total / rows

    def save(self, path: Path, optimizer: Any, generator: wt.Generator, known: dict[str, Any]) -> None:
        """All ranks save what they have. `known` is the same on all of them."""
        state = {"model": self.parallel, "optimizer": optimizer, "generator": generator}
        dcp.save({**state, "known": json.dumps(known)}, checkpoint_id=path)

    def restore(self, path: Path, optimizer: Any, generator: wt.Generator) -> None:
        """What any layout has saved."""
        state = {"model": self.parallel, "optimizer": optimizer, "generator": generator}
        dcp.load(state, checkpoint_id=path)


def is_there(path: Path) -> bool:
    """Whether that is a checkpoint, also if a kill left it aside."""
    try:
        dcp.metadata(path)
    except (dcp.CheckpointException, OSError):
        return False
    return True


def read(path: Path) -> dict[str, Any]:
    """What of a checkpoint is no tensor, and its path."""
    state = {"known": ""}
    dcp.load(state, checkpoint_id=path)
    return {**json.loads(state["known"]), "path": path}


def plan_of(model: Any) -> dict[str, Any]:
    """PLAN, or that of a model with experts."""
    if not experts_of(model):
        return PLAN
    return {k: v for k, v in PLAN.items() if ".mlp." not in k} | {"layers.*.mlp.experts": SplitExperts()}


def experts_of(model: Any) -> int:
    """How many each layer has."""
    mlp = model.layers[0].mlp
    return mlp.router.num_experts if isinstance(mlp, MixtureOfExperts) else 0


def check(layout: dict[str, int], model: Any, batch: int) -> None:
    """Raises ValueError that names the option to change."""
    sizes = dp, cp, tp, pp = [layout[name] for name in AXES]
    heads, depth, experts, ep = (
        model.layers[0].attention.heads,
        len(model.layers),
        experts_of(model),
        layout["ep"],
    )
    world = dist.get_world_size() if dist.is_initialized() else 1
    if min(sizes) < 1 or math.prod(sizes) != world:
        asked = " ".join(
            f"--{name} {n}" for name, n in zip(AXES, sizes, strict=True) if n != 1 or name != "cp"
        )
        raise ValueError(
            f"{asked} needs {math.prod(sizes)} processes and there are {world}; start "
            "warptape-run with --nproc-per-node as large as their product"
        )
    if ep < 1 or dp * cp % ep or (ep > 1 and (not experts or experts % ep)):
        raise ValueError(f"--ep {ep}: does not divide --dp {dp} times --cp {cp}, or --experts {experts}")
    if model.block % (2 * cp if cp > 1 else 1):
        raise ValueError(f"--block {model.block}: does not divide by 2 * --cp {cp}")
    if heads % tp:
        raise ValueError(f"--heads {heads}: does not divide by --tp {tp}")
    if depth % pp:
        raise ValueError(f"--layers {depth}: does not divide by --pp {pp}")
    if batch % (dp * pp):
        raise ValueError(
            f"--batch {batch}: does not divide by --dp {dp} times the {pp} micro-batches of --pp {pp}"
        )
