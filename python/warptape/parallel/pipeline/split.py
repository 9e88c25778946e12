"""A model cut into stages where its modules begin or end: its exported graph, in parts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ... import _C, nn
from ... import core as wt
from ...compiler import fx
from ...compiler.export.exported import to_fx
from ...compiler.graphs import check_constants, record, unchanged
from ...core import Tensor
from ...core.pytree import tree_flatten
from .partition import shared_parameters
from .stage import PipelineStage, as_tuple

_MARK = "_pipe_split_"  # names constants that a recorded graph has between the calls of two stages
_MOST = 1024  # of these, in all runs of a forward that export needs
_local = threading.local()  # ranks may be threads


class SplitPoint(Enum):
    """Where a stage begins: before a module or after it."""

    BEGINNING = 1
    END = 2


def pipe_split() -> None:
    """Begins a stage where a forward calls it; outside of `pipeline` it does nothing."""
    tracer, spare = _C._tracer(), getattr(_local, "spare", None)
    if tracer is not None and spare:
        mark = spare.pop()
        tracer.set_name(mark, f"{_MARK}{len(spare)}")
        mark.neg()  # the graph numbers the constant as it is used; that call is dropped


def _parts(graph: Any) -> list[int]:
    """Of each call of a recorded graph, the stage."""
    marks = [i for i, value in enumerate(graph.values) if value[3].startswith(_MARK)]
    return [
        sum(mark < min(o for o in outputs if o is not None) for mark in marks)
        for _, _, outputs, _ in graph.calls
    ]


@dataclass(frozen=True)
class PipeInfo:
    """What is known of a pipeline without its stages.

    Args:
        graph: of all stages.
        num_stages: how many.
        has_loss_and_backward: always False: a schedule has the loss.
    """

    graph: fx.Graph
    num_stages: int
    has_loss_and_backward: bool = False


class Pipe(nn.Module):
    """A model in stages, which `pipeline` makes. Called, it runs them all, one after the other.

    Args:
        graph: of all stages.
        stages: modules; each is called with what the one before returned, the first as the model is.
    """

    def __init__(self, graph: fx.Graph, stages: list[nn.Module]) -> None:
        super().__init__()
        self.graph, self.stages = graph, nn.ModuleList(stages)

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.stages)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives.

        Args:
            *args, **kwargs: nested as the example was.
        """
        first, *others = self.stages
        out = first(*args, **kwargs)
        for stage in others:
            out = stage(*as_tuple(out))
        return out

    def get_stage_module(self, stage_idx: int) -> nn.Module:
        """One stage. Its parameters have the names and the memory of the model's.

        Args:
            stage_idx: its number.

        Raises: ValueError for a number that no stage has.
        """
        if not 0 <= stage_idx < len(self.stages):
            raise ValueError(f"Invalid stage index {stage_idx}: there are {len(self.stages)} stages")
        return self.stages[stage_idx]

    def build_stage(self, stage_index: int, device: Any = None, group: Any = None) -> PipelineStage:
        """A PipelineStage for a schedule. It keeps parameters that stages share alike.

        Args:
            stage_index: its number.
            device: to which it is moved; None leaves it where it is.
            group: the ranks of the pipeline.
        """
        shared = shared_parameters(list(self.stages))[stage_index]
        module = self.get_stage_module(stage_index)
        module = module if device is None else module.to(device)
        return PipelineStage(module, stage_index, len(self.stages), device, group=group, shared=shared)

    def info(self) -> PipeInfo:
        """What `build_stage` of this package takes."""
        return PipeInfo(self.graph, len(self.stages))

    def print_readable(self) -> None:
        """Prints the code of each stage."""
        for i, stage in enumerate(self.stages):
            print(f"# stage {i}\n{stage.code}")  # type: ignore[attr-defined]


def build_stage(
    stage_module: nn.Module, stage_index: int, pipe_info: PipeInfo, device: Any = None, group: Any = None
) -> PipelineStage:
    """A PipelineStage of a stage's module, which may have been changed since `pipeline` made it.

    Args:
        stage_module: of `Pipe.get_stage_module`.
        stage_index: its number.
        pipe_info: of `Pipe.info`.
        device: where it runs.
        group: the ranks of the pipeline.
    """
    return PipelineStage(stage_module, stage_index, pipe_info.num_stages, device, group=group)


def pipeline(
    module: nn.Module,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: dict[str, SplitPoint] | None = None,
    split_policy: Callable[[fx.GraphModule], fx.GraphModule] | None = None,
) -> Pipe:
    """Cuts a model into stages, by its exported graph; the model itself stays as it is.

    The stages compute in the mode that the model is in, and for inputs of the example's sizes.

    Args:
        module: its forward calls `pipe_split` where stages begin, unless one of the last two says it.
        mb_args, mb_kwargs: the arguments of one micro-batch.
        split_spec: by a module's name, whether a stage begins before it or after it.
        split_policy: takes the whole graph, and puts calls of `pipe_split` into it.

    Raises: ValueError for both of the last two; AttributeError for a name of no module; what export raises.

    >>> from warptape.distributed.pipelining import SplitPoint, pipeline
    >>> layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    >>> pipe = pipeline(layers, (torch.ones(4, 2),), split_spec={"1": SplitPoint.BEGINNING})
    >>> pipe.num_stages, list(pipe.get_stage_module(1).state_dict())
    (2, ['1.weight', '1.bias'])
    """
    if split_spec is not None and split_policy is not None:
        raise ValueError("Cannot specify both `split_spec` and `split_policy`. Please use only one of them.")
    marked = [(module.get_submodule(name), where) for name, where in (split_spec or {}).items()]
    with ExitStack() as hooks:
        for m, where in marked:
            if where is SplitPoint.BEGINNING:
                handle = m.register_forward_pre_hook(lambda *_: pipe_split(), prepend=True)
            else:
                handle = m.register_forward_hook(lambda *_: pipe_split())
            hooks.callback(handle.remove)
        _local.spare = [wt.empty(0) for _ in range(_MOST)]  # made here: a graph would record how
        hooks.callback(_local.__dict__.clear)
        with unchanged(module):
            function = record(module, mb_args, mb_kwargs, strict=True)
            check_constants(module, function, mb_args, mb_kwargs or {})
    graph_module = to_fx(function)
    calls = [node for node in graph_module.graph.nodes if "source" in node.meta]
    parts = dict(zip(calls, _parts(function.graph), strict=True))
    if split_policy is not None:
        graph_module = split_policy(graph_module)
    return Pipe(graph_module.graph, _cut(graph_module, parts))


def _cut(whole: fx.GraphModule, known: dict[fx.Node, int]) -> list[nn.Module]:
    """The stages of a graph. A value that a later stage needs goes through those between.

    Args:
        whole: with calls of pipe_split, or none.
        known: the stages of some nodes; others are in that of the node before.
    """
    part, last = {}, 0
    for node in whole.graph.nodes:
        last = max(last + (node.target is pipe_split), known.get(node, 0))
        part[node] = last
    needed: dict[fx.Node, int] = {}  # the last stage that uses a value
    for node in whole.graph.nodes:
        for used in node.all_input_nodes:
            needed[used] = max(needed.get(used, 0), last if node.op == "output" else part[node])
    stages: list[nn.Module] = []
    inputs: list[fx.Node] = []
    for number in range(last + 1):
        graph, here = fx.Graph(), {}
        for node in inputs:
            here[node] = graph.placeholder(node.name)
        for node in whole.graph.nodes:
            own = part[node] == number and node.target is not pipe_split
            if node.op == "get_attr":
                if any(part[user] == number or user.op == "output" for user in node.users):
                    here[node] = graph.node_copy(node, here.__getitem__)
            elif node.op == "output":
                if number == last:
                    graph.output(fx.node.map_arg(node.args[0], here.__getitem__))
            elif own or (node.op == "placeholder" and number == 0):
                here[node] = graph.node_copy(node, here.__getitem__)
        if number < last:
            inputs = [n for n in here if n.op != "get_attr" and needed.get(n, 0) > number]
            graph.output(tuple(here[n] for n in inputs))
        stages.append(fx.GraphModule(whole, graph))
    for number, stage in enumerate(stages):
        hook = _positional if number else _flattened
        stage.register_forward_pre_hook(hook, with_kwargs=True)
    return stages


def _flattened(module: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The tensors among the model's arguments, which are the graph's inputs."""
    return tuple(x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)), {}


def _positional(module: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A schedule gives keyword arguments to all stages; the first one passes on what others need."""
    return args, {}
