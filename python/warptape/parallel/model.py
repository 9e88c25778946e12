"""What `parallelize` makes of a model: one module that trains, whatever the layout."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from .. import core as wt
from .. import nn
from ..autograd import Function
from ..core import Tensor
from ..core.placed import replicas
from ..core.pytree import tree_leaves, tree_map
from ..distributed import DeviceMesh, ReduceOp, all_gather_object, all_reduce, all_reduce_coalesced
from ..distributed.optim import ZeroRedundancyOptimizer
from ..nn.modules.state import _IncompatibleKeys
from ..nn.parallel import DistributedDataParallel
from ..optim import Optimizer
from .context import SharedSequence, shard_sequence
from .dtensor.tensor import DTensor, full_tensor_of, plain
from .pipeline import PipelineSchedule, rng
from .pipeline.partition import chunk_batch
from .tensor import split_randomness


class Names:
    """Of the whole model, taken before anything is split: parameters and modules stay the same objects.

    state: shapes of its state_dict; parameters: their names by identity; buffers: (name, module, its own
    name there) of those that are saved.
    """

    def __init__(self, model: nn.Module) -> None:
        self.state = {name: list(value.shape) for name, value in model.state_dict().items()}
        self.parameters: dict[int, list[str]] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            self.parameters.setdefault(id(p), []).append(name)
        self.buffers: list[tuple[str, nn.Module, str]] = []
        for path, module in model.named_modules(remove_duplicate=False):
            named = [(f"{path}.{own}" if path else own, own) for own in module._buffers]
            self.buffers += [(name, module, own) for name, own in named if name in self.state]

    def keep(self, modules: Iterable[nn.Module], elsewhere: Iterable[nn.Module]) -> None:
        """Lets go of modules that are elsewhere and not here. A buffer of none of them, of the model itself
        say, is kept everywhere."""
        others = {id(m) for each in elsewhere for m in each.modules()}
        others -= {id(m) for each in modules for m in each.modules()}
        self.buffers = [buffer for buffer in self.buffers if id(buffer[1]) not in others]


class _Nothing(Function):
    """0, whose gradients are zeros: those of a loss in which nothing counts, and which may be 0 / 0."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.like = [(t.shape, t.dtype, t.device) for t in tensors]
        return wt.zeros((), dtype=tensors[0].dtype, device=tensors[0].device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return tuple(wt.zeros(s, dtype=dtype, device=device) for s, dtype, device in ctx.like)


def weighted(loss_fn: Callable[..., Tensor], output: Any, target: tuple[Any, Tensor]) -> Tensor:
    """loss_fn of a target that has its factor [1] beside it. Where nothing counts it is not called: its
    gradient would be 0 * NaN."""
    factor = target[1].reshape(())
    if factor.item() == 0:
        return _Nothing.apply(
            *(t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point())
        )
    loss = loss_fn(output, target[0])
    return loss * factor.to(loss.dtype)


class ParallelModel(nn.Module):
    """What `parallelize` returns: a module to train by `step`, whatever its layout. Every rank calls the same
    methods. Its parameters are those of this rank's stages, or parts of them, with their names in the whole
    model; so is its state_dict.

    Args:
        modules: what this rank has: the model, or its stages.
        runner: the schedule of these stages, or the model as it is called.
        axes: those of more than one rank, and "copies", those along "dp" and "cp" as one; with experts shared
            out "ep" and "replicas", which make up "copies".
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        runner: Any,
        names: Names,
        axes: Mapping[str, DeviceMesh],
        loss_fn: Callable[..., Tensor],
        n_microbatches: int,
        zero: int,
        attention: str = "ring",
        counted: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(modules)
        self.n_microbatches, self.zero = n_microbatches, zero
        # Not assigned: a runner that is a module has the same modules inside.
        self.__dict__ |= {"_runner": runner, "_names": names, "_axes": axes, "_loss_fn": loss_fn}
        self.__dict__["_counted"] = counted
        self.attention = attention
        # Taken now: between forward and backward sharded modules have other, whole, ones.
        self._own = list({id(p): p for m in modules for p in m.parameters()}.values())
        self._device = self._own[0].device
        self._rows = -1  # of the last batch
        # What step averages, and over which ranks; of all else DDP and fully_shard do it in backward.
        self._averaged: dict[Any, Any] = {}
        if "copies" in axes and zero < 2:
            all_ = axes["copies"].get_group()
            for p in self._own:
                over = replicas(p, all_)
                if over is not all_ or "pp" in axes:
                    self._averaged[p] = over

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output. Raises RuntimeError with "pp", where one rank alone would have it, and with
        "cp", where none would."""
        for axis in ("pp", "cp"):
            if axis in self._axes:
                raise RuntimeError(
                    f"ParallelModel: with {axis!r} a model is not called; use step() or evaluate()"
                )
        with self._slice_of_batch():
            return self._runner(*args, **kwargs)

    def step(self, *args: Any, target: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of this rank's rows of a batch; adds to the parameters' gradients.

        `args`, `target` and `kwargs` are the same on all ranks but those along "dp", which have each its
        rows, as many, in order. Sequences are whole: ranks along "cp" take their slices.
        Returns the mean loss of the whole batch, float64, on every rank.
        Raises: ValueError on every rank, before anything runs, for rows that do not divide into
        micro-batches, where ranks along "dp" have not as many, and for sequences that do not divide.
        """
        args, kwargs, target, parts = self._cut(args, kwargs, target, self.n_microbatches)
        with self._slice_of_batch(), self._averaging() as average:
            if isinstance(self._runner, PipelineSchedule):
                losses: list[Tensor] = []
                self._runner.step(
                    *args, target=target, losses=losses, return_outputs=False, when_complete=average, **kwargs
                )
            else:
                losses = self._accumulate(parts)
        return self._mean(losses)

    def evaluate(self, *args: Any, target: Any, **kwargs: Any) -> Tensor:
        """As step, without gradients. The mode, train() or eval(), is yours to set.

        Args:
            *args, **kwargs: what the model takes.
            target: for the loss.
        """
        losses: list[Tensor] = []
        piped = isinstance(self._runner, PipelineSchedule)
        args, kwargs, target, _ = self._cut(args, kwargs, target, self.n_microbatches if piped else 1)
        with self._slice_of_batch(), wt.no_grad():
            if piped:
                self._runner.eval(*args, target=target, losses=losses, **kwargs)
            else:
                losses.append(self._loss_fn(self._runner(*args, **kwargs), target))
        return self._mean(losses)

    def optimizer(self, cls: type[Optimizer], params: Any = None, **options: Any) -> Optimizer:
        """cls(params, **options); with zero=1 each rank along "dp" and "cp" keeps the state of its share.

        Args:
            cls: an optimizer's class.
            params: this rank's parameters if None.
            **options: of the optimizer.
        """
        params = self._own if params is None else params
        if self.zero == 1 and "copies" in self._axes:
            return ZeroRedundancyOptimizer(params, cls, self._axes["copies"].get_group(), **options)
        return cls(params, **options)

    # ---- parameters and state ----

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Names are those in the whole model.

        Args:
            prefix: of all names.
            recurse: accepted, without effect.
            remove_duplicate: whether a shared parameter comes once.
        """
        for p in self._own:
            names = self._names.parameters[id(p)]
            for name in names[:1] if remove_duplicate else names:
                yield (f"{prefix}.{name}" if prefix else name), p

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As a module's.

        Args:
            set_to_none: whether gradients go away.
        """
        for stage in self.stages:
            stage.zero_grad(set_to_none)

    def state_dict(  # type: ignore[override]
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> Any:
        """What this rank has of the model's. warptape.distributed.checkpoint saves and loads the model.

        Args:
            destination: a dict to fill.
            prefix: of all names.
            keep_vars: whether tensors keep their history.
        """
        out = OrderedDict[str, Any]() if destination is None else destination
        local: dict[str, Any] = {}
        for name, p in self.named_parameters(remove_duplicate=False):
            local[name] = p if keep_vars else p.detach()
        for name, module, own in self._names.buffers:
            local[name] = module._buffers[own]
        out.update((prefix + name, local[name]) for name in self._names.state if name in local)
        return out

    def full_state_dict(self) -> dict[str, Tensor]:
        """The state_dict of the model in one process, on every rank. Collective."""
        out = self.state_dict()
        for p in self._own:
            if isinstance(p, DTensor):
                out |= dict.fromkeys(self._names.parameters[id(p)], full_tensor_of(p))
        if "pp" in self._axes:
            all_: list[Any] = [None] * self._axes["pp"].size()
            values = {name: value.detach() for name, value in out.items()}
            all_gather_object(all_, values, group=self._axes["pp"].get_group())
            out = {name: value for each in reversed(all_) for name, value in each.items()}
        return {name: out[name] for name in self._names.state}

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> _IncompatibleKeys:
        """Takes this rank's part of full_state_dict(), or of a model's state_dict in one process. Raises
        RuntimeError, with nothing loaded, for missing or, if strict, unexpected names, and for shapes."""
        shapes, faults = self._names.state, []
        unexpected = [name for name in state_dict if name not in shapes]
        missing = [name for name in shapes if name not in state_dict]
        if strict and (unexpected or missing):
            faults.append(f"missing: {missing}; unexpected: {unexpected}")
        for name, value in state_dict.items():  # also what other ranks have: all take it, or none does
            if name in shapes and list(value.shape) != shapes[name]:
                faults.append(f"{name} is {shapes[name]} as a whole, got {list(value.shape)}")
        if faults:
            raise RuntimeError(
                f"Error(s) in loading state_dict for {type(self).__name__}: {'; '.join(faults)}"
            )
        with wt.no_grad():
            for name, mine in self.state_dict(keep_vars=True).items():
                value = state_dict.get(name, mine)
                if value is not mine:
                    mine.copy_(mine.like_full(value) if isinstance(mine, DTensor) else value)
        return _IncompatibleKeys(missing, unexpected)

    # ---- parts of a step ----

    @contextmanager
    def _slice_of_batch(self) -> Iterator[None]:
        with ExitStack() as around:
            if "dp" in self._axes:
                around.enter_context(split_randomness(self._axes["dp"], 0))
            if "cp" in self._axes:
                around.enter_context(split_randomness(self._axes["cp"], 1, zigzag=True))
                around.enter_context(SharedSequence(self._axes["cp"], self.attention))
            yield

    def _slices(self, value: Any) -> Any:
        """This rank's part of each sequence, dim 1 of all tensors. Raises ValueError."""
        if "cp" not in self._axes:
            return value
        shapes = {str(list(t.shape)): t for t in tree_leaves(value) if isinstance(t, Tensor)}
        if any(t.ndim < 2 for t in shapes.values()) or len({t.shape[1] for t in shapes.values()}) > 1:
            raise ValueError(
                "with 'cp' inputs and targets are [rows, sequence, ..], of one length of sequence; got "
                + ", ".join(shapes)
            )
        group = self._axes["cp"].get_group()
        return tree_map(lambda t: shard_sequence(t, 1, group) if isinstance(t, Tensor) else t, value)

    def _cut(self, args: Any, kwargs: Any, target: Any, n: int) -> tuple[Any, Any, Any, list[list[Any]]]:
        """This rank's slices of each, and their micro-batches. Where a rank finds other rows than in the step
        before, it asks those along "dp", who find them, too; or else their next collective says that it is
        not this one."""
        problem, rows, parts = "", -1, []
        try:
            args, kwargs, target = self._slices((args, kwargs, target))
            named = (("input", args), ("keyword arguments", kwargs), ("target", target))
            parts = [chunk_batch(value, n, what) for what, value in named]
            tensors = [t for t in tree_leaves((args, kwargs, target)) if isinstance(t, Tensor)]
            rows = max((int(t.shape[0]) if t.ndim else 0 for t in tensors), default=0)
        except ValueError as error:
            problem = str(error)
        if "dp" in self._axes and (problem or rows != self._rows):
            most = wt.tensor([rows, -rows], dtype=wt.int64, device=self._device)
            all_reduce(most, ReduceOp.MAX, self._axes["dp"].get_group())
            largest, smallest = most[0].item(), -most[1].item()
            if not problem and smallest < largest:
                problem = f"ranks along 'dp' have batches of {smallest} to {largest} rows; give each as many"
                if smallest < 0:
                    problem = "another rank along 'dp' has a batch that does not divide into micro-batches"
        if problem:
            raise ValueError(f"ParallelModel: {problem}")
        self._rows = rows
        if self._counted is not None:
            factors = self._factors(parts[2])
            target = (target, factors)
            parts[2] = list(zip(parts[2], factors.chunk(n), strict=True))
        return args, kwargs, target, parts

    def _factors(self, targets: Sequence[Any]) -> Tensor:
        """By how much the mean loss of each micro-batch [n] counts, so that the mean over micro-batches and
        copies is the mean over all that they count."""
        counts = [float(self._counted(target)) for target in targets]
        here = wt.tensor(counts, dtype=wt.float64, device=self._device)
        total, copies = here.sum(), 1
        if "copies" in self._axes:
            copies = self._axes["copies"].size()
            all_reduce(total, group=self._axes["copies"].get_group())
        return here * (len(counts) * copies) / total

    def _accumulate(self, parts: list[list[Any]]) -> list[Tensor]:
        """Micro-batch after micro-batch; each drops what one process would drop in its rows."""
        n, losses = self.n_microbatches, []
        generator = rng.generator_of(self._device)
        calls = rng.get_calls(generator)
        for j, (inputs, named, wanted) in enumerate(zip(*parts, strict=True)):
            with ExitStack() as around:
                if n > 1:
                    rng.set_calls(generator, calls)
                    around.enter_context(rng.slice_of_batch(j, n))
                if j < n - 1 and isinstance(self._runner, DistributedDataParallel):
                    around.enter_context(self._runner.no_sync())
                loss = self._loss_fn(self._runner(*inputs, **named), wanted)
                (loss / n if n > 1 else loss).backward()
            losses.append(loss.detach())
        return losses

    @contextmanager
    def _averaging(self) -> Iterator[Callable[[Iterable[Any]], None]]:
        """Gives a function that begins to average gradients over their copies; at the end all are. What
        earlier steps left is averaged again, which leaves it."""
        left, travelling = dict(self._averaged), list[Any]()

        def begin(parameters: Iterable[Any]) -> None:
            grads: dict[Any, list[Tensor]] = {}
            for p in parameters:
                over = left.pop(p, None)
                if over is not None and p.grad is not None:
                    grads.setdefault((over, p.dtype), []).append(plain(p.grad))
            for (over, _), alike in grads.items():
                travelling.append(self._average(alike, over))

        yield begin
        begin(list(left))
        for work in travelling:
            work.wait()

    @staticmethod
    def _average(gradients: list[Tensor], group: Any) -> Any:
        return all_reduce_coalesced(gradients, ReduceOp.AVG, group, async_op=True)

    def _mean(self, losses: Sequence[Tensor]) -> Tensor:
        total = wt.zeros((), dtype=wt.float64, device=self._device)
        for loss in losses:
            total += loss.detach().double() / len(losses)
        if "pp" in self._axes:  # the last stage's rank has it
            all_reduce(total, group=self._axes["pp"].get_group())
        if "copies" in self._axes:
            all_reduce(total, ReduceOp.AVG, self._axes["copies"].get_group())
        return total
