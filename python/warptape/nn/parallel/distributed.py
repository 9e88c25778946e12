"""DistributedDataParallel: every rank has the model and a share of the batch; gradients are averaged."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ..._C import _distributed as _C
from ...core.pytree import tree_map_only
from ...distributed import all_gather_object
from ...distributed.algorithms.ddp_comm_hooks import default_hooks
from ...distributed.algorithms.join import Join, Joinable, JoinHook
from ...distributed.state import resolve
from ..modules.module import Module
from ..modules.sparse import Embedding, EmbeddingBag
from .backward_optimizers import BackwardOptimizers
from .options import (
    DelayedReducer,
    _MixedPrecision,
    cast_buffers,
    cast_floating,
    parameters_cast,
)
from .sparse_reducer import SparseReducer

__all__ = ["DistributedDataParallel"]

_MIB = 1 << 20
_BUILT_IN = {
    default_hooks.bf16_compress_hook: wt.bfloat16,
    default_hooks.fp16_compress_hook: wt.float16,
}


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in what forward returned, however nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors_in(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from _tensors_in(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors_in(getattr(value, field.name))


class _DDPJoinHook(JoinHook):
    """Takes part in the collectives of a forward and a backward pass, with gradients of zeros."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp

    def main_hook(self) -> None:
        ddp = self.ddp
        if ddp._any_joined_syncs(False):
            ddp._sync_buffers(joined=True)
            ddp.reducer.begin_forward()
            ddp.reducer.prepare([])
            used = [p for _, p in ddp._trained()]
            kept = [p.grad for p in used]
            for p in used:
                p.grad = None
            with wt.enable_grad():
                wt.stack([(p * 0).sum() for p in used]).sum().backward()
            for p, grad in zip(used, kept, strict=True):
                if not ddp.gradient_as_bucket_view:  # else the others' average, for a share of ZeRO's
                    p.grad = grad
            ddp._sparse.average()
        else:
            ddp._sync_buffers(joined=True)

    def post_hook(self, is_last_joiner: bool) -> None:
        """All get the model of those that trained for longest.

        Args:
            is_last_joiner: whether this rank was among the last to run out of inputs.
        """
        ddp = self.ddp
        root = ddp._last_rank(is_last_joiner)
        tensors = ddp._used(ddp.module.named_parameters()) + ddp._used(ddp.module.named_buffers())
        ddp._broadcast([t.detach() for _, t in tensors], root)


class DistributedDataParallel(Module, Joinable):
    """The module, with gradients averaged over the ranks of a group while backward still runs.

    Every rank makes it from the same module; it starts from the parameters and buffers of rank 0. Gradients
    travel in buckets of about `bucket_cap_mb` MiB (default 25; the first is 1 MiB), in the order in which
    they come. `state_dict()` has the module's names after `module.`.

    Args:
        device_ids: for a module on one CUDA device, that device: inputs are moved to it. None on the CPU.
        forward_sync_buffers: before each forward pass buffers become those of rank 0, unless this is False.
        broadcast_buffers: the same by its old name; False also leaves them as they are at the start.
        init_sync: compare the parameters' shapes and take over those of rank 0; False if they are equal.
        find_unused_parameters: walk the graph from the outputs of each forward pass, so that parameters
            without a part in them are not waited for; one that no rank used keeps its gradient as it was.
        gradient_as_bucket_view: gradients lie in the buckets, which saves a copy of each (the default; in
            PyTorch it is not). A gradient kept over the next backward pass must then be cloned.
        batched_grad_copy: makes no difference.
        delay_all_reduce_named_params, param_to_hook_all_reduce: gradients of these (name, parameter) travel
            by themselves, at the end of a backward pass in which the other parameter got one.
        mixed_precision: a _MixedPrecision; parameters and their gradients keep their own dtype.
        static_graph: every pass uses the parameters that the first one used; which, is found by itself.

    Raises:
        RuntimeError: no parameter requires a gradient, or the ranks' parameters differ (naming the first that
            does); in forward, when the last backward pass gave no gradient to some (naming them).
        ValueError: the module is on several devices, or device_ids does not fit it.

    Gradients made with `create_graph=True` are averaged, but the average has no graph. Those of embeddings
    with `sparse=True` are averaged once backward is over; a communication hook does not see them.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[int | wt.device] | None = None,
        output_device: int | wt.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        delay_all_reduce_named_params: Sequence[tuple[str, Tensor]] | None = None,
        param_to_hook_all_reduce: Tensor | None = None,
        mixed_precision: _MixedPrecision | None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("skip_all_reduce_unused_params", skip_all_reduce_unused_params),
            ("bucket_cap_mb_list", bucket_cap_mb_list),
        ):
            if value:
                raise NotImplementedError(f"DistributedDataParallel: {name} is not supported")
        if device_mesh is not None:
            if process_group is not None:
                raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
            process_group = device_mesh.get_group()
        Joinable.__init__(self)
        if (delay_all_reduce_named_params is None) != (param_to_hook_all_reduce is None):
            raise ValueError(
                "delay_all_reduce_named_params and param_to_hook_all_reduce need to be set at the same time."
            )
        if mixed_precision is not None and not hasattr(mixed_precision, "buffer_dtype"):
            raise TypeError(
                "DistributedDataParallel: expected mixed_precision with param_dtype, reduce_dtype and "
                f"buffer_dtype, got {type(mixed_precision).__name__}"
            )
        self.process_group = resolve(process_group)
        self.module, self.dim = module, dim
        self.mixed_precision = mixed_precision
        self._delayed_names = {name for name, _ in delay_all_reduce_named_params or ()}
        wanted = forward_sync_buffers if broadcast_buffers is None else broadcast_buffers
        self.broadcast_buffers = wanted is not False
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view, self.static_graph = gradient_as_bucket_view, static_graph
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.bucket_bytes_cap = int((25 if bucket_cap_mb is None else bucket_cap_mb) * _MIB)
        named = self._used(module.named_parameters())
        if not any(p.requires_grad for _, p in named):
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters that "
                "require a gradient."
            )
        self._check_devices([p for _, p in named], device_ids, output_device)
        if init_sync:
            self._check_same_parameters(named)
            buffers = [] if broadcast_buffers is False else self._used(module.named_buffers())
            self._broadcast([t.detach() for _, t in named + buffers])
        self._join_scales: list[Any] = []
        if mixed_precision is not None:
            cast_buffers((b for _, b in self._used(module.named_buffers())), mixed_precision.buffer_dtype)
        self._make_reducer()
        self._delayed: DelayedReducer | None = None
        if param_to_hook_all_reduce is not None:
            late = [p for n, p in named if n in self._delayed_names and p.requires_grad]
            self._delayed = DelayedReducer(self.process_group, late, param_to_hook_all_reduce)
        self._early = BackwardOptimizers(p for _, p in named)

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: Module, params_and_buffers_to_ignore: Iterable[str]
    ) -> None:
        """Names of parameters and buffers of a module that are left alone once it is wrapped."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore[assignment]

    def _used(self, named: Iterator[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        ignored = set(getattr(self.module, "_ddp_params_and_buffers_to_ignore", ()))
        return [(name, tensor) for name, tensor in named if name not in ignored]

    def _buffers_of_now(self) -> list[Tensor]:
        """Those of now: modules may have replaced them. What is saved for backward stays valid."""
        if getattr(self.module, "_ddp_params_and_buffers_to_ignore", ()):
            return [b.data for _, b in self._used(self.module.named_buffers())]
        buffers: dict[int, Tensor] = {}  # as named_buffers(), whose names take time
        seen: set[Module | None] = {None}
        open_ = [self.module]
        while open_:
            module = open_.pop()
            seen.add(module)
            for b in module._buffers.values():
                if b is not None:
                    buffers[id(b)] = b
            open_ += [m for m in reversed(module._modules.values()) if m not in seen]  # type: ignore[misc]
        return [b.data for b in buffers.values()]

    def _trained(self) -> list[tuple[str, Tensor]]:
        """The parameters whose gradients the reducer averages."""
        named = self._used(self.module.named_parameters())
        late = self._delayed_names
        return [(n, p) for n, p in named if p.requires_grad and p not in self._sparse and n not in late]

    def _make_reducer(self) -> None:
        modules = self.module.modules()
        looked_up = {id(m.weight) for m in modules if isinstance(m, Embedding | EmbeddingBag) and m.sparse}
        named = self._used(self.module.named_parameters())
        sparse = [p for _, p in named if p.requires_grad and id(p) in looked_up]
        self._sparse = SparseReducer(self.process_group, sparse)
        trained = self._trained()
        self.reducer = _C._Reducer(
            self.process_group,
            [p for _, p in trained],
            [n for n, _ in trained],
            min(_MIB, self.bucket_bytes_cap),
            self.bucket_bytes_cap,
            self.find_unused_parameters,
            self.gradient_as_bucket_view,
            self.static_graph,
        )
        if self.mixed_precision is not None and self.mixed_precision.on_the_way is not None:
            self.reducer.set_compression(self.mixed_precision.on_the_way)

    def _check_devices(
        self,
        parameters: list[Tensor],
        device_ids: Sequence[int | wt.device] | None,
        output_device: int | wt.device | None,
    ) -> None:
        devices = sorted({str(p.device) for p in parameters})
        self.device_type = parameters[0].device.type
        self.device_ids = None if not device_ids else [wt.device(d) for d in device_ids]
        self.output_device = output_device
        if self.device_ids is None:
            return
        if len(self.device_ids) > 1 or self.device_type == "cpu" or len(devices) > 1:
            raise ValueError(
                "DistributedDataParallel device_ids and output_device arguments only work with single-device "
                f"GPU modules, but got device_ids {device_ids}, and module parameters on "
                f"{', '.join(devices)}; pass None"
            )
        if self.output_device is None:
            self.output_device = self.device_ids[0]

    def _check_same_parameters(self, named: list[tuple[str, Tensor]]) -> None:
        mine = [[n, str(p.dtype), list(p.shape), p.requires_grad] for n, p in named]
        every: list[Any] = [None] * self.process_group.size()
        all_gather_object(every, mine, self.process_group)
        for rank, of_rank in enumerate(every):
            if len(of_rank) != len(every[0]):
                raise RuntimeError(
                    f"DDP expects same model across all ranks, but Rank 0 has {len(every[0])} params, while "
                    f"rank {rank} has inconsistent {len(of_rank)} params."
                )
            for i, (here, there) in enumerate(zip(every[0], of_rank, strict=True)):
                if here[1:] != there[1:]:
                    said = (f"{n}: {d}{s}{'' if g else ', frozen'}" for n, d, s, g in (here, there))
                    raise RuntimeError(
                        "DDP expects same model across all ranks, but parameter {} is {} on rank 0 and {} on "
                        "rank {}".format(i, *said, rank)
                    )

    def _broadcast(self, tensors: list[Tensor], root: int = 0) -> None:
        """The values of one rank, in one call for each dtype and device."""
        kinds: dict[Any, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, str(tensor.device)), []).append(tensor)
        for same in kinds.values() if self.process_group.size() > 1 else ():
            self.process_group._run(_C._Op.broadcast, [], same, root=root)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the module returns.

        Args:
            *inputs, **kwargs: what the module takes.
        """
        reduces = wt.is_grad_enabled() and self.require_backward_grad_sync
        if self._join_config.enable and wt.is_grad_enabled():
            Join.notify_join_context(self)
            self._any_joined_syncs(reduces)
            self._sync_buffers(joined=False)
        elif self.require_forward_param_sync and self.broadcast_buffers:
            self._broadcast(self._buffers_of_now())
        if reduces:
            self.reducer.begin_forward()
        if self.device_ids:
            device = self.device_ids[0]
            inputs, kwargs = tree_map_only(Tensor, lambda t: t.to(device), (inputs, kwargs))
        if self._delayed is not None:
            self._delayed.reduces = reduces
        output = self._output(inputs, kwargs)
        self.require_forward_param_sync = reduces
        if not reduces:
            self.reducer.prepare_without_reduction()
        elif self.find_unused_parameters and not self.static_graph:
            outputs = [t for t in _tensors_in(output) if t.requires_grad]
            self.reducer.prepare(outputs)
            reducer = self.reducer
            for t in outputs:
                if not t.is_leaf:
                    t.register_hook(lambda _: reducer.begin_backward())
        else:
            self.reducer.prepare([])
        if reduces:
            self._sparse.prepare(_tensors_in(output))
            self._early.prepare(_tensors_in(output))
        return output

    def _output(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module returns, in low precision if that is wanted."""
        if self.mixed_precision is None:
            return self.module(*inputs, **kwargs)
        dtype = self.mixed_precision.param_dtype
        inputs, kwargs = cast_floating((inputs, kwargs), dtype)
        with parameters_cast(self.module, (p for _, p in self._used(self.module.named_parameters())), dtype):
            return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes within it leave the gradients of their backward on this rank, to be accumulated.

        The first backward outside of it averages all that was accumulated. Every rank must enter it for the
        same steps.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def reduce_accumulated(self) -> None:
        """Averages what backward passes of forward passes within no_sync left on this rank. Collective."""
        self.reducer.reduce()
        self._sparse.average()
        self.require_forward_param_sync = True

    def register_comm_hook(self, state: object, hook: Callable[[Any, Any], Any]) -> None:
        """From now on hook(state, bucket) -> Future of the reduced bucket takes the average's place.

        Raises: TypeError for what cannot be called, RuntimeError the second time. What the hook or its
        future raises comes out of backward().
        """
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if hook in _BUILT_IN and (state is None or state is self.process_group):
            self.reducer.set_compression(_BUILT_IN[hook])
            return
        self._comm_hook = (state, hook)
        # The collector does not see into the reducer: so nothing there may hold what may hold this module.
        here = weakref.ref(self)

        def call(bucket: Any) -> Any:
            state, hook = here()._comm_hook  # type: ignore[union-attr]
            return hook(state, bucket)

        self.reducer.set_hook(call, getattr(hook, "__qualname__", type(hook).__name__))

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Any:
        """`with ddp.join():` around a loop over batches of which ranks may have different numbers: see
        distributed.algorithms.join.Join.

        Args:
            divide_by_initial_world_size: gradients are averaged over all ranks, those without inputs with
                zeros; with False over those that had inputs.
            enable, throw_on_early_termination: as Join's.
        """
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank without inputs does. With divide_by_initial_world_size=False gradients are scaled up,
        before they are averaged, to make good for the ranks that have none."""
        if not kwargs.get("divide_by_initial_world_size", True) and not self._join_scales:
            here = weakref.ref(self)
            for _, p in self._used(self.module.named_parameters()):
                if p.requires_grad:
                    self._join_scales.append(p.register_hook(lambda g: here()._scaled(g)))  # type: ignore[union-attr]
        return _DDPJoinHook(self)

    def _scaled(self, g: Tensor) -> Tensor:
        config = self._join_config
        if not config.enable or config.kwargs.get("divide_by_initial_world_size", True):
            return g
        return g * (self.process_group.size() / config.nonjoined)

    @property
    def join_device(self) -> Any:
        """Of the parameters."""
        return next(self.module.parameters()).device

    @property
    def join_process_group(self) -> Any:
        """The group that gradients are averaged in."""
        return self.process_group

    def _any_joined_syncs(self, mine: bool) -> bool:
        """Whether this iteration's backward reduces gradients: ranks without inputs ask the others."""
        flag = wt.tensor(float(mine), device=self.join_device)
        self.process_group._run(_C._Op.all_reduce, [], [flag], reduce=_C.ReduceOp.SUM)
        return bool(flag.item())

    def _last_rank(self, mine: bool) -> int:
        """The highest of the ranks that say so."""
        rank = self.process_group.rank() if mine else -1
        highest = wt.tensor(float(rank), device=self.join_device)
        self.process_group._run(_C._Op.all_reduce, [], [highest], reduce=_C.ReduceOp.MAX)
        return int(highest.item())

    def _sync_buffers(self, joined: bool) -> None:
        """Within Join buffers are those of a rank that still has inputs."""
        if self.broadcast_buffers and (buffers := self._buffers_of_now()):
            self._broadcast(buffers, self._last_rank(not joined))

    def _set_static_graph(self) -> None:
        self.static_graph = True
        self.reducer.set_static_graph()

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """What was done: bucket sizes in bytes, passes, whether buckets were rebuilt, seconds waited."""
        return {
            "world_size": self.process_group.size(),
            "rank": self.process_group.rank(),
            "module_name": type(self.module).__name__,
            "find_unused_parameters": self.find_unused_parameters,
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
            "static_graph": self.static_graph,
            "bucket_cap_bytes": self.bucket_bytes_cap,
            **self.reducer.stats(),
        }

    def __getstate__(self) -> dict[str, Any]:
        left = {
            "process_group",
            "reducer",
            "_sparse",
            "_delayed",
            "_early",
            "_comm_hook",
            "_join_config",
            "_join_scales",
        }
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy belongs to the default group and has no communication hook."""
        self.__dict__.update(state)
        Joinable.__init__(self)
        self._join_scales = []
        self.process_group = resolve(None)
        self._delayed, self._delayed_names = None, set()
        self._early = BackwardOptimizers(self.module.parameters())
        self._make_reducer()
