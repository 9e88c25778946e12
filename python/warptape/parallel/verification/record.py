"""One forward and backward pass on one rank, and all that is seen of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from warptape.distributed import get_rank, init_device_mesh

from ... import core as wt
from ... import nn
from ...core import Tensor
from ...core.pytree import tree_map_only
from ...nn.parallel import DistributedDataParallel
from ...nn.parallel.distributed import _tensors_in
from ..dtensor.tensor import DTensor, full_tensor_of
from ..pipeline.rng import slice_of_batch
from ..pipeline.runtime import PipelineSchedule
from ..tensor.layers import ColumnParallelLinear
from .layout import Layout


@dataclass
class ModuleCall:
    """One call of a module, and the names of the modules that were being called then.

    Args:
        inputs, outputs: tensors.
        inside: names of modules.
    """

    inputs: list[Tensor]
    outputs: list[Tensor]
    inside: tuple[str, ...]


@dataclass
class Seen:
    """What one rank saw.

    Args:
        calls: by name of module.
        order: names, as they were called.
        values: of parameters and buffers by name.
        gradients: of parameters by name.
        loss: of the pass.
        norm, state: what `after` returned, and parameters and buffers as it left them.
    """

    calls: dict[str, list[ModuleCall]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # of modules, as they returned
    values: dict[str, Tensor] = field(default_factory=dict)  # before the model is split
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # as a whole, as far as is known
    summed: set[str] = field(default_factory=set)  # parameters whose gradients are summed over ranks
    columns: dict[str, Any] = field(default_factory=dict)  # split Linears: (in, out, parts)
    loss: Tensor | None = None
    norm: Tensor | None = None
    state: dict[str, Tensor] = field(default_factory=dict)
    micro_batches: int = 1


class Recorder:
    """Hooks that record inputs and outputs of modules by their names in the unsplit model.

    Args:
        seen: gets all.
    """

    def __init__(self, seen: Seen) -> None:
        self.seen, self.on = seen, False
        self.open: list[tuple[str, list[Tensor]]] = []

    def watch(self, name: str, module: nn.Module) -> None:
        """Registered after all others: what the module is given before any hook, and gives after all.

        Args:
            name: in the unsplit model.
            module: this rank's.
        """

        def enter(_: Any, args: Any, kwargs: Any) -> None:
            if self.on:
                self.open.append((name, [_copy(_full_input(t)) for t in _tensors_in((args, kwargs))]))

        def leave(_: Any, args: Any, output: Any) -> None:
            if self.on:
                _, inputs = self.open.pop()
                call = ModuleCall(
                    inputs, [_copy(t) for t in _tensors_in(output)], tuple(n for n, _ in self.open)
                )
                self.seen.calls.setdefault(name, []).append(call)
                self.seen.order.append(name)

        module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
        module.register_forward_hook(leave)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Only in forward: checkpointed modules are called again in backward."""
        self.on = True
        try:
            yield
        finally:
            self.on = False


def _copy(t: Tensor) -> Tensor:
    return t.detach().clone()


def _full_input(t: Tensor) -> Tensor:
    """Of an input that stands for another (see tensor.redistribute.hand_over), that one."""
    ready = getattr(t, "_for_split_work", None)
    return t if ready is None or ready[3] != t._version else ready[0]


def make_model(build: Callable[[], nn.Module], seed: int, dtype: Any, training: bool) -> nn.Module:
    """The model of that seed. Parameters of one value (biases of 0, norms of 1) are disturbed: they would
    hide what is added or multiplied twice."""
    wt.manual_seed(seed)
    model = build().to(dtype).train(training)
    draw = wt.Generator().manual_seed(seed + 1)
    with wt.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and p.numel() and p.eq(p.flatten()[0]).all():
                p.add_(wt.randn(p.shape, generator=draw, dtype=wt.float64).to(p) * 0.1)
    wt.manual_seed(seed + 2)
    return model


def _tops(result: Any) -> list[nn.Module]:
    if isinstance(result, PipelineSchedule):
        return [stage.submod for stage in result.stages.values()]
    return [result.module if isinstance(result, DistributedDataParallel) else result]


def run(
    make: Callable[[], nn.Module],
    inputs: tuple[Any, ...],
    target: Any,
    loss_fn: Any,
    after: Callable[[Any], Any] | None,
    layout: Layout | None,
) -> Seen:
    """One pass on this rank, of the whole model or by a layout.

    Args:
        make: makes the model.
        inputs, target: of the pass.
        loss_fn: of (output, target).
        after: what follows backward.
        layout: None for one process.
    """
    seen, model = Seen(), make()
    known = {id(m): (name, m) for name, m in model.named_modules()}
    parameters = {id(p): (name, p) for name, p in model.named_parameters()}
    seen.values = {name: _copy(t) for name, t in [*parameters.values(), *model.named_buffers()]}
    result: Any = model
    around: Any = nullcontext()
    if layout is not None:
        mesh = init_device_mesh("cpu", layout.sizes, mesh_dim_names=layout.axes)
        result = layout.apply(model, mesh) or model
        copies, at = layout.copies, layout.copy_of(get_rank())
        if copies > 1:
            inputs, target = tree_map_only(Tensor, lambda t: t.chunk(copies)[at], (inputs, target))
            around = slice_of_batch(at, copies)
        loss_fn = layout.loss_fn(mesh) if layout.loss_fn else loss_fn
        after = layout.after or after
    recorder, trained = Recorder(seen), {}
    for top in _tops(result):
        for path, m in top.named_modules():
            name = known[id(m)][0] if id(m) in known else path
            if name or id(m) in known:
                recorder.watch(name, m)
            if isinstance(m, ColumnParallelLinear):
                seen.columns[name] = (m.in_features, m.out_features, m.parts)
        for path, p in top.named_parameters():
            trained[parameters[id(p)][0] if id(p) in parameters else path] = p
    seen.summed = {name for name, p in trained.items() if getattr(p, "gradient_is_summed", False)}
    try:
        with around:
            seen.loss = _step(result, inputs, target, loss_fn, layout, recorder)
    except Exception as error:
        error.in_module = recorder.open[-1][0] if recorder.open else ""  # type: ignore[attr-defined]
        raise
    seen.gradients = {name: _full_gradient(p) for name, p in trained.items()}
    if after is not None:
        norm = after(result)
        seen.norm = _copy(full_tensor_of(norm)) if isinstance(norm, Tensor) else None
        buffers = {path: b for top in _tops(result) for path, b in top.named_buffers()}
        seen.state = {name: _copy(full_tensor_of(t)) for name, t in {**trained, **buffers}.items()}
    return seen


def _step(
    model: Any, inputs: tuple[Any, ...], target: Any, loss_fn: Any, layout: Layout | None, recorder: Recorder
) -> Tensor | None:
    if isinstance(model, PipelineSchedule):
        recorder.seen.micro_batches = model.n_microbatches
        for stage in model.stages.values():
            stage.forward = _recorded(stage.forward, recorder)  # type: ignore[method-assign]
        losses: list[Tensor] = []
        model.step(*inputs, target=target, losses=losses)
        return wt.stack(losses).mean() if losses else None
    if layout is not None and layout.step is not None:
        recorder.seen.micro_batches = layout.micro_batches
        with recorder.recording():
            return _copy(layout.step(model, inputs, target))
    with recorder.recording():
        output = model(*inputs)
    loss = loss_fn(output, target)
    loss.backward()
    return _copy(loss)


def gradient_of_own_shards(
    make: Callable[[], nn.Module],
    inputs: tuple[Any, ...],
    target: Any,
    loss_fn: Any,
    parameter: str,
    dims: tuple[int, int],
    ranks: int,
) -> Tensor | None:
    """A gradient in one process, without what one part of the outputs owes to another part of what the
    parameter's module gives: as if each rank had cut off what it does for the others.

    Args:
        make: makes the model.
        inputs, target: of the pass.
        loss_fn: of (output, target).
        parameter: its name.
        dims: along which the module's output and the model's are cut.
        ranks: into how many parts.
    """
    model, at = make(), 0

    def own(g: Tensor, dim: int) -> Tensor:
        parts = [shard if i == at else wt.zeros_like(shard) for i, shard in enumerate(g.chunk(ranks, dim))]
        return wt.cat(parts, dim)

    def cut(_: Any, args: Any, output: Any) -> None:
        output.register_hook(lambda g: own(g, dims[0]))

    model.get_submodule(parameter.rpartition(".")[0]).register_forward_hook(cut)
    output = model(*inputs)
    end = output.detach().requires_grad_()
    loss_fn(end, target).backward()
    for at in range(ranks):  # noqa: B007  # `own` reads it
        output.backward(own(end.grad, dims[1]), retain_graph=True)
    return model.get_parameter(parameter).grad


def _recorded(forward: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with recorder.recording():
            return forward(*args)

    return call


def _full_gradient(p: Any) -> Tensor | None:
    """Collective for parameters that are split."""
    if not p.requires_grad or not isinstance(p, DTensor):
        return None if p.grad is None else _copy(p.grad)
    gradient: Any = wt.zeros_like(p) if p.grad is None else p.grad
    full_tensor = full_tensor_of(gradient)
    return None if p.grad is None else _copy(full_tensor)
