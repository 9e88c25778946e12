"""A decoder split by its layers among the ranks of a job: each stage has some of them, and their pages.

"GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", without the backward pass: a
step of many tokens is cut into batches of whole requests, which the stages compute one behind the other.
Rows do not depend on each other, so no number changes.

N tokens of R requests in a step, L rows whose logits are wanted, C width, V vocabulary.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import warptape.distributed as dist
from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..models import Decoder
from .tensor_parallel import full_config

if TYPE_CHECKING:
    from warptape.core.types import Device

Batch = dict[str, Any]  # csrc/inference/engine.h
# Tokens of a batch from which on a stage's time grows with them. With fewer it is that of reading the
# weights, which every batch does again.
ENOUGH = 64


def layers_of_stage(layers: int, stages: int, stage: int) -> range:
    """Which of a model's layers a stage has; the first stages have one more where they do not divide.

    Args:
        layers, stages: how many.
        stage: its number.

    >>> from warptape.inference.pipeline_parallel import layers_of_stage
    >>> [list(layers_of_stage(5, 2, stage)) for stage in (0, 1)]
    [[0, 1, 2], [3, 4]]
    """
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


class Stage:
    """A rank's place in a pipeline, of which `group` has the ranks in order.

    Attributes:
        layers: those of the whole model that it has.
        most_layers: of any stage. A page is counted with so many on all, which then have as many pages.
    """

    def __init__(self, group: Any, layers: int) -> None:
        self.group, self.number, self.count = group, dist.get_rank(group), group.size()
        self.layers = layers_of_stage(layers, self.count, self.number)
        self.most_layers = -(-layers // self.count)
        self.first, self.last = self.number == 0, self.number == self.count - 1
        self._sent: list[tuple[Any, Tensor]] = []

    def name_of(self, name: str) -> str | None:
        """What a module of the whole model's layers or its head is called here; None where it is not.

        Args:
            name: in the whole model.
        """
        if not name.startswith("layers."):
            return name if self.last else None
        _, number, rest = name.split(".", 2)
        return f"layers.{self.layers.index(int(number))}.{rest}" if int(number) in self.layers else None

    def receive(self, tokens: int, like: Tensor) -> Tensor:
        """What the stage before this one made of so many tokens, [1, N, C], of the dtype and on the device of
        `like` [*, C]."""
        x = like.new_empty(1, tokens, like.shape[-1])
        dist.recv(x, group=self.group, group_src=self.number - 1)
        return x

    def send(self, x: Tensor) -> None:
        """Hands [1, N, C] to the next stage, without waiting until it takes it.

        Args:
            x: the last layer's output.
        """
        x = x.contiguous()
        self._sent.append((dist.isend(x, group=self.group, group_dst=self.number + 1), x))

    def share(self, logits: Tensor | None, rows: int, vocabulary: int, device: Device) -> Tensor:
        """The last stage's logits [L, V] on every stage, at the end of a step.

        Args:
            logits: None on other stages.
            rows, vocabulary: L and V.
            device: where the result lies.
        """
        for work, _ in self._sent:
            work.wait()
        self._sent = []
        if logits is None:
            logits = wt.empty(rows, vocabulary, dtype=wt.float32, device=device)
        dist.broadcast(logits, group=self.group, group_src=self.count - 1)
        return logits


def full_name(model: object, name: str) -> str:
    """What a weight of a rank's part of a model is called in the whole one.

    Args:
        model: whole, or a part.
        name: of the weight here.
    """
    name, stage = name.replace(".part.", "."), stage_of(model)
    if stage is None or not name.startswith("layers."):
        return name
    _, number, rest = name.split(".", 2)
    return f"layers.{stage.layers[int(number)]}.{rest}"


def stage_of(model: object) -> Stage | None:
    """Where a model is in a pipeline; None for a whole one.

    Args:
        model: whole, or a stage.
    """
    stage: Stage | None = getattr(model, "pipeline_stage", None)
    return stage


def mesh_of(model: Decoder, ranks: int, stages: int = 1) -> Any:
    """The ranks of the job, all of them, by the axes "pipeline" and "tensor", the latter the closest.

    Raises: ValueError where this process has joined no job, the job has another number of ranks, or the model
    has fewer layers than there are stages or is a stage already.
    """
    if stage_of(model) is not None:
        raise ValueError("pipeline_parallel_size: the model is a stage of a pipeline already")
    named = f"tensor_parallel_size {ranks}" + (f" and pipeline_parallel_size {stages}" if stages > 1 else "")
    if not dist.is_initialized():
        raise ValueError(
            f"{named}: this process has joined no job; start {ranks * stages} ranks with "
            f"warptape-run --nproc-per-node={ranks * stages} and call init_process_group() in each"
        )
    if dist.get_world_size() != ranks * stages:
        options = "tensor_parallel_size is" if stages == 1 else "tensor_ and pipeline_parallel_size make"
        raise ValueError(f"{options} {ranks * stages}, but the job has {dist.get_world_size()} ranks")
    if stages > model.config.num_hidden_layers:
        layers = model.config.num_hidden_layers
        raise ValueError(f"pipeline_parallel_size {stages}: the model has only {layers} layers")
    names, kind = ("pipeline", "tensor"), model.embed_tokens.weight.device.type
    if stages == 1:
        return dist.init_device_mesh(kind, (ranks,), mesh_dim_names=names[1:])
    return dist.init_device_mesh(kind, (stages, ranks), mesh_dim_names=names)


def stage_(model: Decoder, group: Any) -> Decoder:
    """Leaves a stage's part of a model that all ranks of `group` have alike; returns it. The first stage
    keeps the embeddings, the last one norm and head. No collective runs here.

    The model may be packed or stored in few bits, and split among the ranks of another group.
    """
    config = model.config
    stage = Stage(group, config.num_hidden_layers)
    own = stage.layers
    if not stage.first:
        weight = model.embed_tokens.weight
        # One row, that nothing reads: it says the model's dtype, width and device.
        model.embed_tokens = nn.Embedding(1, weight.shape[-1], dtype=weight.dtype, device=weight.device)
        model.embed_positions = None
    if not stage.last:
        absent: Any = nn.Identity()
        model.norm, model.lm_head = absent, absent
    model.layers = nn.ModuleList(model.layers[i] for i in own)
    by_layer: dict[str, Any] = {
        name: None if getattr(config, name) is None else getattr(config, name)[own.start : own.stop]
        for name in ("layer_types", "rotary_layers")
    }
    if config.experts is not None and config.experts.layers is not None:
        own_experts = config.experts.layers[own.start : own.stop]
        by_layer["experts"] = replace(config.experts, layers=own_experts)
    model.config_of_full_model = full_config(model)
    model.config = replace(config, num_hidden_layers=len(own), **by_layer)
    model.pipeline_stage = stage
    return model.eval()


def divided(batch: Batch, parts: int) -> list[Batch]:
    """A step's batch as at most so many of whole requests, one after the other, none without tokens; each
    with the keys that ModelRunner reads."""
    starts = batch["starts"].tolist()
    requests, tokens = len(starts) - 1, starts[-1]
    cuts = [0]
    for part in range(1, parts):
        wanted = tokens * part / parts
        nearest = min(range(requests + 1), key=lambda r: abs(starts[r] - wanted))
        if starts[nearest] > starts[cuts[-1]] and nearest < requests:
            cuts.append(nearest)
    cuts.append(requests)
    rows = batch["logit_rows"]
    out = []
    for first, end in itertools.pairwise(cuts):
        begin, stop = starts[first], starts[end]
        out.append(
            {
                "tokens": batch["tokens"][begin:stop],
                "page_table": batch["page_table"][first:end].contiguous(),
                "starts": batch["starts"][first : end + 1] - begin,
                "lengths": batch["lengths"][first:end].contiguous(),
                "logit_rows": rows[(rows >= begin) & (rows < stop)] - begin,
                "adapters": batch["adapters"][first:end],
            }
        )
    return out
