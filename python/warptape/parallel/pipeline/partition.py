"""Which layers make which stage: by a list, by number, by parameters or by measured time."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warptape import autograd
from warptape import core as wt
from warptape.core import random

from ... import nn
from ...core import Tensor
from ...core.pytree import tree_map
from ...distributed import broadcast_object_list, get_rank, get_world_size
from .schedules import rank_of
from .stage import PipelineStage, as_tuple


class Chain(nn.Module):
    """Layers in a row, each called with what the one before returned (a tuple as several arguments).

    They keep the names that they have in the whole model, so that state_dict keys do.
    """

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *values: Any, **kwargs: Any) -> Any:
        """`kwargs` go to every layer.

        Args:
            *values: what the first layer takes.
        """
        out: Any = values if len(values) != 1 else values[0]
        for layer in self.children():
            out = layer(*as_tuple(out), **kwargs)
        return out


def partition(costs: Sequence[float], parts: int) -> list[int]:
    """How many layers in a row make each part, so that the costliest part costs as little as can be; no part
    is empty. Raises ValueError when there are fewer layers than parts."""
    n = len(costs)
    if not 1 <= parts <= n:
        raise ValueError(f"partition: {n} layers do not make {parts} stages; use at most {n} stages")
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    # best[k][i]: the least costliest part of the first i layers in k parts, and where the last one begins.
    best: list[list[tuple[float, int]]] = [[(0.0, 0)] + [(float("inf"), 0)] * n]
    for k in range(1, parts + 1):
        row = [(float("inf"), 0)] * (n + 1)
        for i in range(k, n + 1):
            row[i] = min((max(best[k - 1][a][0], total[i] - total[a]), a) for a in range(k - 1, i))
        best.append(row)
    counts, end = [], n
    for k in range(parts, 0, -1):
        start = best[k][end][1]
        counts.append(end - start)
        end = start
    return counts[::-1]


def measure_layers(layers: Sequence[nn.Module], example: Any, rounds: int = 3) -> list[float]:
    """Seconds of forward and backward of each layer, the least of some rounds, from inputs of the first one.

    The layers, their gradients and the random state stay as they are.
    """
    seconds, values = [], as_tuple(example)
    with random.fork_rng():
        for layer in layers:
            trial = copy.deepcopy(layer)
            least = float("inf")
            for _ in range(rounds):
                ins = [v.detach().requires_grad_(v.is_floating_point()) for v in values]
                start = time.perf_counter()
                outs = as_tuple(trial(*ins))
                roots = [o for o in outs if o.requires_grad]
                if roots:
                    autograd.backward(roots, [wt.ones_like(o) for o in roots])
                least = min(least, time.perf_counter() - start)
            seconds.append(least)
            values = tuple(o.detach() for o in outs)
    return seconds


def counts_of(
    layers: Sequence[nn.Module], stages: int, balance: str | Sequence[int] | None, example: Any, group: Any
) -> list[int]:
    """How many layers each stage takes. See split_into_stages.

    Args:
        layers: in order.
        stages: how many.
        balance: counts, or by what they are chosen; None for equal ones.
        example: an input, where layers are measured.
        group: the ranks.
    """
    n = len(layers)
    if balance is None:
        if n % stages:
            raise ValueError(
                f"pipeline: {n} layers do not divide into {stages} stages; make the number of layers a "
                f'multiple of {stages}, or give balance="parameters", "time" or numbers of layers'
            )
        return [n // stages] * stages
    if balance == "parameters":
        return partition([sum(p.numel() for p in layer.parameters()) for layer in layers], stages)
    if balance == "time":
        if example is None:
            raise ValueError('pipeline: balance="time" needs `example`, inputs of one micro-batch')
        if n < stages:
            partition([0.0] * n, stages)  # says so, on every rank
        return _measured_by_first(layers, stages, example, group)
    if isinstance(balance, str):
        raise ValueError(f'pipeline: expected balance "parameters", "time" or numbers, got {balance!r}')
    counts = [int(c) for c in balance]
    if len(counts) != stages or sum(counts) != n or min(counts) < 1:
        raise ValueError(
            f"pipeline: expected {stages} positive numbers of layers that sum to {n}, got balance={counts}"
        )
    return counts


def _measured_by_first(layers: Sequence[nn.Module], stages: int, example: Any, group: Any) -> list[int]:
    """Ranks that measure each for itself would not agree; nor may one fail alone."""
    out: list[Any] = [None]
    if get_rank(group) == 0:
        try:
            out[0] = partition(measure_layers(layers, example), stages)
        except Exception as error:
            out[0] = f"{type(error).__name__}: {error}"
    broadcast_object_list(out, group=group, group_src=0)
    if isinstance(out[0], str):
        raise ValueError(f"pipeline: the layers do not run on `example`: {out[0]}")
    return list(out[0])


def shared_parameters(parts: Sequence[nn.Module]) -> list[dict[str, str]]:
    """For each part, its parameters that other parts have too: a common name -> the name in the part.

    Args:
        parts: one for each stage.
    """
    where: dict[int, dict[int, str]] = {}
    for at, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            where.setdefault(id(parameter), {})[at] = name
    out: list[dict[str, str]] = [{} for _ in parts]
    for places in where.values():
        for at, name in places.items():
            if len(places) > 1:
                out[at][min(places.items())[1]] = name
    return out


def split_into_stages(
    layers: nn.Module | Sequence[nn.Module],
    chunks: int = 1,
    *,
    placement: str = "loop",
    balance: str | Sequence[int] | None = None,
    example: Any = None,
    device: Any = None,
    group: Any = None,
) -> list[PipelineStage]:
    """This rank's stages of a model that is layers in a row; every rank gives the whole model.

    Args:
        layers: nn.Sequential, nn.ModuleList or a list of modules; a layer may take and return several
            tensors, as a tuple.
        chunks: stages on each rank; more than one for a PipelineScheduleMulti.
        placement: the schedule's `placement`: "loop", stage s on rank s % ranks, or "v", which turns at the
            last rank: rank r has r and 2 * ranks - 1 - r.
        balance: how many layers each stage takes: None, all the same number; "parameters" or "time", so that
            the largest stage is as small as can be; or a number for each stage.
        example: inputs of one micro-batch, for balance="time".

    A parameter that layers of several stages have (tied embeddings) stays one: see PipelineStage's `shared`.
    Raises: ValueError for numbers that do not fit, before anything is sent; TypeError for a module that is no
    list of layers.
    """
    named = named_layers(layers)
    if placement not in ("loop", "v"):
        raise ValueError(f"split_into_stages: expected placement 'loop' or 'v', got {placement!r}")
    rank, ranks = get_rank(group), get_world_size(group)
    stages = ranks * chunks
    counts = counts_of(list(named.values()), stages, balance, example, group)
    names, parts = list(named), []
    for count in counts:
        parts.append(Chain({name: named[name] for name in names[:count]}))
        names = names[count:]
    shared = shared_parameters(parts)
    mine = [s for s in range(stages) if rank_of(s, ranks, placement) == rank]
    return [PipelineStage(parts[s], s, stages, device, group=group, shared=shared[s]) for s in mine]


def named_layers(layers: nn.Module | Sequence[nn.Module]) -> dict[str, nn.Module]:
    """Layers by the names that they have. Raises TypeError for a module that is no list of layers.

    Args:
        layers: a Sequential, a ModuleList or a list.
    """
    if isinstance(layers, nn.Sequential | nn.ModuleList):
        return {name: layer for name, layer in layers._modules.items() if layer is not None}
    if isinstance(layers, nn.Module):
        raise TypeError(
            f"split_into_stages: expected nn.Sequential, nn.ModuleList or a list of layers, got "
            f"{type(layers).__name__}; give the layers in the order in which forward calls them"
        )
    return {str(i): layer for i, layer in enumerate(layers)}


def chunk_batch(values: Any, n: int, what: str) -> list[Any]:
    """A tensor, or tensors in tuples, lists and dicts, cut into n along dim 0; what is no tensor goes to all.

    Raises: ValueError when a batch does not divide.
    """
    if isinstance(values, Tensor):
        rows = values.shape[0] if values.ndim else 0
        if rows == 0 or rows % n:
            fits = max(d for d in range(1, n + 1) if rows % d == 0) if rows else 1
            raise ValueError(
                f"pipeline: {what} of shape {tuple(values.shape)} does not divide into {n} micro-batches; "
                f"make dim 0 a multiple of {n}, or n_microbatches a divisor of {rows} (as {fits})"
            )
        return list(values.chunk(n))
    if isinstance(values, dict):
        cut = {k: chunk_batch(v, n, f"{what}[{k!r}]") for k, v in values.items()}
        return [{k: v[j] for k, v in cut.items()} for j in range(n)]
    if isinstance(values, list | tuple):
        parts = [chunk_batch(v, n, f"{what}[{i}]") for i, v in enumerate(values)]
        return [type(values)(part[j] for part in parts) for j in range(n)]
    return [values] * n


@dataclass
class Batch:
    """What step() gets on one rank: of the whole batch, or `_mbs`, cut already.

    Args:
        args, kwargs, target: of the whole batch.
        loss_kwargs: of the loss, the same for each micro-batch.
        arg_mbs, kwarg_mbs, target_mbs: for each micro-batch, in the place of the first three.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    loss_kwargs: dict[str, Any]
    arg_mbs: Sequence[tuple[Any, ...]] | None = None
    kwarg_mbs: Sequence[dict[str, Any]] | None = None
    target_mbs: Sequence[Any] | None = None

    def check(self, n: int) -> None:
        """Raises ValueError where it is cut into another number of micro-batches.

        Args:
            n: of micro-batches.
        """
        for name in ("arg_mbs", "kwarg_mbs", "target_mbs"):
            parts = getattr(self, name)
            if parts is not None and len(parts) != n:
                raise ValueError(f"pipeline: expected {n} micro-batches in {name}, got {len(parts)}")

    @property
    def has_target(self) -> bool:
        """Whether there is something for the loss."""
        return self.target is not None or self.target_mbs is not None

    def cut_args(self, n: int) -> list[Any]:
        """Of each micro-batch what the first stage takes. Raises ValueError.

        Args:
            n: of micro-batches.
        """
        if self.arg_mbs is not None:
            return list(self.arg_mbs)
        if not self.args:
            raise ValueError("pipeline: step() needs the model's inputs on the first stage's rank")
        return chunk_batch(self.args, n, "input")

    def cut_kwargs(self, n: int) -> list[dict[str, Any]]:
        """Of each micro-batch what every stage takes. Raises ValueError.

        Args:
            n: of micro-batches.
        """
        parts = self.kwarg_mbs
        return [{**part} for part in parts or chunk_batch(self.kwargs, n, "keyword arguments")]

    def cut_target(self, n: int) -> list[Any]:
        """Of each micro-batch what the loss takes. Raises ValueError.

        Args:
            n: of micro-batches.
        """
        if not self.has_target:
            raise ValueError("pipeline: step() needs target on the last stage's rank")
        return list(self.target_mbs) if self.target_mbs is not None else chunk_batch(self.target, n, "target")


def describe(values: Any) -> Any:
    """Shapes and dtypes of the tensors in nested values; of what is no tensor, its type.

    Args:
        values: tensors in nested containers.

    >>> from warptape.parallel.pipeline.partition import describe
    >>> describe([torch.ones(2), 1])
    [((2,), 'torch.float32'), 'int']
    """
    return tree_map(
        lambda v: (tuple(v.shape), str(v.dtype)) if isinstance(v, Tensor) else type(v).__name__, values
    )
