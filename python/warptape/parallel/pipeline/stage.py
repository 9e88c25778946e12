"""One stage of a pipeline: a part of the model, what it keeps of each micro-batch, its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from warptape import core as wt

from ... import nn
from ...autograd import backward
from ...core import Tensor
from ...distributed import get_rank, get_world_size
from ...nn.parallel import DistributedDataParallel
from .split_backward import input_gradients

Meta = list[tuple[list[int], str, bool]]  # of each tensor: shape, dtype, whether its gradient comes back


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A module's output as the next one's arguments.

    Args:
        value: a tensor, or a tuple or list of them.
    """
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def meta_of(tensors: Sequence[Tensor]) -> Meta:
    """What a receiver needs to know of tensors.

    Args:
        tensors: what is sent.

    Returns: shape, dtype and whether it needs a gradient, of each.
    """
    return [(list(t.shape), str(t.dtype).rpartition(".")[2], bool(t.requires_grad)) for t in tensors]


class PipelineStage:
    """A part of a model that is a stage on this rank.

    Args:
        submodule: called with the tensors that the stage before returned (the first: with step()'s
            arguments), returns a tensor or a tuple of tensors. What a later stage needs too is passed on.
        stage_index, num_stages: which stage of how many; the schedule says which rank's it is (most have
            stage s on rank s % ranks of `group`).
        device: where it runs; if not given, where its first parameter is, else the CPU.
        input_args, output_args, get_mesh: taken and not needed: shapes, and the meshes of DTensors, travel
            with the first micro-batch.
        shared: parameters that other stages have too (tied embeddings): a name common to all of them -> the
            name in this submodule. They start as the first owner's, and their gradients are summed.

    Raises: ValueError for numbers that do not fit, and for an unknown shared name.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: Any = None,
        input_args: Any = None,
        output_args: Any = None,
        group: Any = None,
        *,
        get_mesh: Callable[..., Any] | None = None,
        shared: dict[str, str] | None = None,
    ) -> None:
        self.submod, self.stage_index, self.num_stages, self.group = submodule, stage_index, num_stages, group
        self.group_rank, self.group_size = get_rank(group), get_world_size(group)
        if not 0 <= stage_index < num_stages:
            raise ValueError(f"PipelineStage: stage_index {stage_index} is not below num_stages {num_stages}")
        if num_stages % self.group_size:
            raise ValueError(
                f"PipelineStage: num_stages {num_stages} is not a multiple of the group's "
                f"{self.group_size} ranks"
            )
        parameters = dict(submodule.named_parameters())
        for name in (shared or {}).values():
            if name not in parameters:
                raise ValueError(f"PipelineStage: shared parameter {name!r} is not in the submodule")
        self.shared = {name: parameters[inside] for name, inside in (shared or {}).items()}
        first = next(iter(parameters.values()), None)
        self.device = wt.device(device or (first.device if first is not None else "cpu"))
        self.clear()

    @property
    def is_first(self) -> bool:
        """Whether it takes step()'s arguments."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Whether its output goes to the loss."""
        return self.stage_index == self.num_stages - 1

    def own_parameters(self) -> list[Any]:
        """Those that no other stage has."""
        shared = {id(p) for p in self.shared.values()}
        return [p for p in self.submod.parameters() if id(p) not in shared]

    @property
    def replicas(self) -> list[DistributedDataParallel]:
        """The DistributedDataParallels in the module: they average the sums over all micro-batches."""
        return [m for m in self.submod.modules() if isinstance(m, DistributedDataParallel)]

    def clear(self) -> None:
        """Drops what is kept of micro-batches."""
        self.inputs: dict[int, list[Tensor]] = {}
        self.outputs: dict[int, list[Tensor]] = {}  # of the last stage: its loss
        self.output_gradients: dict[int, list[Tensor]] = {}  # of those outputs that require grad
        self.input_gradients: dict[int, list[Tensor]] = {}  # of those inputs that require grad
        self.rests: dict[int, Callable[[], None]] = {}
        self.undivided: set[int] = set()  # micro-batches whose whole backward is their rest

    def forward(self, j: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Micro-batch j through the module; its output is kept for backward.

        Args:
            j: the micro-batch's number.
            args, kwargs: what the module takes.
        """
        with ExitStack() as around:
            for replica in self.replicas:
                around.enter_context(replica.no_sync())
            out = self.submod(*args, **kwargs)
        outputs = list(as_tuple(out))
        for value in outputs:
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"pipeline stage {self.stage_index}: expected a tensor or a tuple of tensors as output, "
                    f"got {type(value).__name__}"
                )
        self.inputs[j] = [a for a in args if isinstance(a, Tensor)] if not self.is_first else []
        self.outputs[j] = outputs
        return out

    def _backward_of(self, j: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Roots, their gradients and the inputs that want one; none of them is kept."""
        roots = [o for o in self.outputs.pop(j) if o.requires_grad]
        wanted = [x for x in self.inputs.pop(j) if x.requires_grad]
        return roots, self.output_gradients.pop(j), wanted

    def backward(self, j: int) -> None:
        """Input and weight gradients of micro-batch j.

        Args:
            j: the micro-batch's number.
        """
        roots, gradients, wanted = self._backward_of(j)
        if roots:
            backward(roots, gradients)
        self._keep(j, wanted, [x.grad for x in wanted])
        for x in wanted:
            x.grad = None

    def backward_input(self, j: int) -> None:
        """The gradients of micro-batch j's inputs alone; what leads to the parameters is left for later.

        Args:
            j: the micro-batch's number.
        """
        roots, gradients, wanted = self._backward_of(j)
        if roots and wanted:
            grads, self.rests[j] = input_gradients(roots, wanted, gradients)
            self._keep(j, wanted, grads)
        else:  # a first stage, or one behind frozen ones: nobody waits for it
            self._keep(j, wanted, [None] * len(wanted))
            self.rests[j] = lambda: backward(roots, gradients) if roots else None
            self.undivided.add(j)

    def backward_weight(self, j: int) -> bool:
        """What backward_input left of micro-batch j; whether that was the whole backward.

        Args:
            j: the micro-batch's number.
        """
        for module in self.submod.modules():
            if "_sharding" in module.__dict__:  # its parameters were given back after the first half
                module.unshard()  # type: ignore[operator]
        self.rests.pop(j)()
        undivided = j in self.undivided
        self.undivided.discard(j)
        return undivided

    def reduce(self) -> None:
        """Averages gradients over replicas, once those of all micro-batches are there."""
        for replica in self.replicas:
            replica.reduce_accumulated()

    def _keep(self, j: int, wanted: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        # where nothing depends on an input, the stage before still waits for its gradient
        self.input_gradients[j] = [
            wt.zeros_like(x) if g is None else g.contiguous() for x, g in zip(wanted, grads, strict=True)
        ]
