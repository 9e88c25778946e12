"""FullyShardedDataParallel: the older class, over fully_shard."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape import distributed as dist
from warptape import nn
from warptape.core import Tensor
from warptape.distributed import DeviceMesh, broadcast, get_process_group_ranks
from warptape.distributed.state import resolve
from warptape.parallel.dtensor.tensor import DTensor, full_tensor_of, plain
from warptape.parallel.shard.api import FSDPModule, fully_shard, group_of
from warptape.parallel.shard.checks import CPUOffloadPolicy
from warptape.parallel.shard.group import MixedPrecisionPolicy
from warptape.parallel.tensor.state import load_full_state_dict

from ..algorithms._checkpoint.checkpoint_wrapper import NamelessWrapper
from ..checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from . import api as config
from .api import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from .wrap import Policy, _recursive_wrap

if TYPE_CHECKING:
    from warptape.core.types import Device
    from warptape.distributed.state import Group
    from warptape.optim import Optimizer

_FULL = StateDictType.FULL_STATE_DICT
_defaults: dict[StateDictType, tuple[type[StateDictConfig], type[OptimStateDictConfig]]] = {
    _FULL: (FullStateDictConfig, FullOptimStateDictConfig),
    StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}
_inside = threading.local()  # a state_dict of a wrapper that has this one is being made


class FullyShardedDataParallel(NamelessWrapper):
    """A module of whose parameters each rank keeps a part: fully_shard, by wrapping.

    Args:
        module: with the same values on all ranks, or see `sync_module_states`.
        process_group: the ranks that share; for HYBRID_SHARD (those that split, those that have copies).
        sharding_strategy: FULL_SHARD (the default) frees wholes after forward, SHARD_GRAD_OP keeps them until
            backward, NO_SHARD splits nothing, HYBRID_SHARD splits within and copies between groups.
        auto_wrap_policy: which modules inside are wrapped by themselves: see `wrap`.
        mixed_precision, ignored_modules, ignored_states, param_init_fn, device_mesh: as PyTorch's.
        sync_module_states: sends rank 0's values to all first.
        device_id: where the module is moved first.
        cpu_offload: for modules on the CPU it changes nothing.
        backward_prefetch, forward_prefetch, limit_all_gathers, use_orig_params: make no difference;
        parameters
            are the module's own, as with use_orig_params=True.

    `state_dict()` has wholes on every rank, unless `state_dict_type` says otherwise.

    Raises: as fully_shard.
    """

    _held = "_fsdp_wrapped_module"

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: ShardingStrategy | None = None,
        cpu_offload: CPUOffload | None = None,
        auto_wrap_policy: Policy | None = None,
        backward_prefetch: Any = config.BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: MixedPrecision | None = None,
        ignored_modules: Iterable[nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        device_id: Any = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        ignored_states: Any = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        ignored = _ignored(ignored_modules, ignored_states)
        _materialize(module, param_init_fn, device_id)
        mesh = _mesh_of(module, process_group, strategy, device_mesh)
        if sync_module_states:
            for t in [*module.parameters(), *module.buffers()]:
                broadcast(t.detach(), 0)
        if auto_wrap_policy is not None:
            own = {
                "process_group": process_group,
                "sharding_strategy": sharding_strategy,
                "cpu_offload": cpu_offload,
                "mixed_precision": mixed_precision,
                "ignored_states": list(ignored),
                "device_mesh": mesh,
            }
            modules = set(ignored_modules or ())
            _recursive_wrap(module, auto_wrap_policy, type(self), modules, ignored, True, **own)
        offload = CPUOffloadPolicy() if cpu_offload is not None and cpu_offload.offload_params else None
        frees = strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD)
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=None if frees else False,
            mp_policy=_policy(module, mixed_precision),
            offload_policy=offload,
            ignored_params=ignored,
        )
        super().__init__(module)
        self.process_group = mesh.get_group(mesh.ndim - 1)
        self.rank, self.world_size = self.process_group.rank(), self.process_group.size()
        self.sharding_strategy, self.mixed_precision, self.cpu_offload = (
            strategy,
            mixed_precision,
            cpu_offload,
        )
        self._settings = StateDictSettings(_FULL, FullStateDictConfig(), FullOptimStateDictConfig())

    @property
    def module(self) -> nn.Module:
        """The module that was wrapped."""
        return super().__getattr__(self._held)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns.

        Args:
            *args, **kwargs: what the module takes.
        """
        return self.module(*args, **kwargs)

    @staticmethod
    def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[FullyShardedDataParallel]:
        """The wrappers in a module; with root_only those that lie in no other.

        Args:
            module: searched.
            root_only: whether inner ones are left out.
        """
        wrappers = [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]
        if not root_only:
            return wrappers
        inner = {id(x) for m in wrappers for x in m.modules() if x is not m}
        return [m for m in wrappers if id(m) not in inner]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes within it stay on this rank, whole, and add up."""
        held: Any = self.module
        held.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            held.set_requires_gradient_sync(True)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """As nn.utils.clip_grad_norm_, of the whole gradients.

        Args:
            max_norm: the largest norm allowed.
            norm_type: its order.

        Returns: the norm before.
        """
        return nn.utils.clip_grad_norm_(list(self.parameters()), max_norm, norm_type)

    # ---- whole parameters ----

    @staticmethod
    @contextlib.contextmanager
    def summon_full_params(
        module: nn.Module,
        recurse: bool = True,
        writeback: bool = True,
        rank0_only: bool = False,
        offload_to_cpu: bool = False,
        with_grads: bool = False,
    ) -> Iterator[None]:
        """Within it modules have full parameters; what is changed in them is kept if `writeback`.
        Collective. Raises NotImplementedError for with_grads."""
        if with_grads:
            raise NotImplementedError("summon_full_params: with_grads is not supported")
        modules: list[Any] = [m for m in module.modules() if isinstance(m, FSDPModule)]
        if not recurse:
            modules = modules[:1]
        for each in modules:
            each.unshard()
        try:
            yield
        finally:
            for each in modules:
                group = group_of(each)
                entries = group.entries
                written = [plain(entry.full).detach().clone() for entry in entries] if writeback else []
                for entry in entries:
                    entry.version = entry.full._version  # what was written is kept, or not wanted
                each.reshard()
                with wt.no_grad():
                    for entry, full in zip(entries, written, strict=False):
                        entry.write_back(full, group.ranks)

    # ---- checkpoints ----

    @staticmethod
    def set_state_dict_type(
        module: nn.Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: OptimStateDictConfig | None = None,
    ) -> StateDictSettings:
        """What state_dict() of the wrappers in a module makes; returns what it made before.

        Args:
            module: with wrappers.
            state_dict_type: whole, split or local.
            state_dict_config, optim_state_dict_config: the type's defaults if None.
        """
        settings = _defaults[state_dict_type]
        new = StateDictSettings(
            state_dict_type, state_dict_config or settings[0](), optim_state_dict_config or settings[1]()
        )
        before = FullyShardedDataParallel.get_state_dict_type(module)
        for each in FullyShardedDataParallel.fsdp_modules(module):
            each._settings = new
        return before

    @staticmethod
    def get_state_dict_type(module: nn.Module) -> StateDictSettings:
        """What state_dict() of the wrappers in a module makes.

        Args:
            module: with wrappers.
        """
        for each in FullyShardedDataParallel.fsdp_modules(module):
            return each._settings
        return StateDictSettings(_FULL, FullStateDictConfig(), FullOptimStateDictConfig())

    @staticmethod
    @contextlib.contextmanager
    def state_dict_type(
        module: nn.Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: OptimStateDictConfig | None = None,
    ) -> Iterator[None]:
        """set_state_dict_type for a while.

        Args:
            module: with wrappers.
            state_dict_type: whole, split or local.
            state_dict_config, optim_state_dict_config: the type's defaults if None.
        """
        wrapped = FullyShardedDataParallel
        before = wrapped.set_state_dict_type(
            module, state_dict_type, state_dict_config, optim_state_dict_config
        )
        try:
            yield
        finally:
            for each in wrapped.fsdp_modules(module):
                each._settings = before

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the settings say: see `state_dict_type`. Of wholes it is collective.

        Args:
            *args, **kwargs: of Module.state_dict.
        """
        if getattr(_inside, "depth", 0):
            return super().state_dict(*args, **kwargs)
        keep = kwargs.pop("keep_vars", False)
        _inside.depth = 1
        try:
            state = super().state_dict(*args, keep_vars=True, **kwargs)
        finally:
            _inside.depth = 0
        kind, options = self._settings.state_dict_type, self._settings.state_dict_config
        prefix = kwargs.get("prefix", "")
        rank0 = kind is _FULL and getattr(options, "rank0_only", False) and dist.get_rank()
        for name in [name for name in state if name.startswith(prefix)]:
            value = state[name]
            if kind is _FULL and isinstance(value, DTensor):
                value = full_tensor_of(value)
            elif isinstance(value, Tensor) and not keep and kind is not StateDictType.SHARDED_STATE_DICT:
                value = value.detach()
            if options.offload_to_cpu and isinstance(value, Tensor) and value.device.type != "cpu":
                value = value.cpu()
            if rank0:
                del state[name]
            else:
                state[name] = value
        return state

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Takes what state_dict() gave: wholes, or this rank's parts, as the settings say.

        Args:
            state_dict: of the same kind.
            strict: whether names must agree.
            assign: without effect.
        """
        if self._settings.state_dict_type is _FULL:
            return load_full_state_dict(_Raw(self), state_dict, strict)  # type: ignore[arg-type]
        return super().load_state_dict(state_dict, strict)

    @staticmethod
    def optim_state_dict(
        model: nn.Module, optim: Optimizer, optim_state_dict: Any = None, group: Group = None
    ) -> dict[str, Any]:
        """The optimizer's state by names of parameters, of wholes or parts as the settings say.

        Args:
            model: with wrappers.
            optim: of its parameters.
            optim_state_dict: None.
            group: without effect.
        """
        if optim_state_dict is not None:
            raise NotImplementedError("optim_state_dict: pass the optimizer alone")
        settings = FullyShardedDataParallel.get_state_dict_type(model)
        options = settings.optim_state_dict_config
        state = get_optimizer_state_dict(
            model, optim, options=StateDictOptions(full_state_dict=settings.state_dict_type is _FULL)
        )
        if getattr(options, "rank0_only", False) and dist.get_rank():
            return {}
        return state

    @staticmethod
    def full_optim_state_dict(
        model: nn.Module,
        optim: Optimizer,
        optim_input: Any = None,
        rank0_only: bool = True,
        group: Group = None,
    ) -> dict[str, Any]:
        """The optimizer's state of wholes, by names of parameters; with `rank0_only` {} on other ranks.

        Args:
            model: with wrappers.
            optim: of its parameters.
            optim_input: without effect.
            rank0_only: whether the others get an empty dict.
            group: the ranks.
        """
        _replaced("full_optim_state_dict", "optim_state_dict")
        state = get_optimizer_state_dict(model, optim, options=StateDictOptions(full_state_dict=True))
        return {} if rank0_only and dist.get_rank(group) else state

    @staticmethod
    def sharded_optim_state_dict(model: nn.Module, optim: Optimizer, group: Group = None) -> dict[str, Any]:
        """The optimizer's state of this rank's parts, by names of parameters.

        Args:
            model: with wrappers.
            optim: of its parameters.
            group: without effect.
        """
        _replaced("sharded_optim_state_dict", "optim_state_dict")
        return get_optimizer_state_dict(model, optim)

    @staticmethod
    def shard_full_optim_state_dict(
        full_optim_state_dict: dict[str, Any],
        model: nn.Module,
        optim_input: Any = None,
        optim: Optimizer | None = None,
    ) -> dict[str, Any]:
        """What optim.load_state_dict() takes on this rank, of a state of wholes that every rank has.

        Raises: ValueError without `optim`, whose order of parameters it follows.
        """
        _replaced("shard_full_optim_state_dict", "optim_state_dict_to_load")
        return _to_load(model, optim, full_optim_state_dict, StateDictOptions(full_state_dict=True))

    @staticmethod
    def scatter_full_optim_state_dict(
        full_optim_state_dict: dict[str, Any] | None,
        model: nn.Module,
        optim_input: Any = None,
        optim: Optimizer | None = None,
        group: Group = None,
    ) -> dict[str, Any]:
        """As shard_full_optim_state_dict, of the first rank's state; the others' is not looked at.

        Args:
            full_optim_state_dict: on the first rank.
            model: with wrappers.
            optim: of its parameters.
            optim_input, group: without effect.
        """
        _replaced("scatter_full_optim_state_dict", "optim_state_dict_to_load")
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        return _to_load(model, optim, full_optim_state_dict or {}, options)

    @staticmethod
    def optim_state_dict_to_load(
        model: nn.Module,
        optim: Optimizer,
        optim_state_dict: dict[str, Any],
        is_named_optimizer: bool = False,
        load_directly: bool = False,
        group: Group = None,
    ) -> dict[str, Any]:
        """What optim.load_state_dict() takes, of what optim_state_dict() gave.

        Args:
            model: with wrappers.
            optim: of its parameters.
            optim_state_dict: of the kind that is set.
            is_named_optimizer, group: without effect.
            load_directly: whether it is loaded, too.
        """
        full = FullyShardedDataParallel.get_state_dict_type(model).state_dict_type is _FULL
        return _to_load(model, optim, optim_state_dict, StateDictOptions(full_state_dict=full), load_directly)


def _replaced(name: str, by: str) -> None:
    """Warns of an older method, as PyTorch does."""
    warnings.warn(
        f"``FullyShardedDataParallel.{name}``is being deprecated and is replaced by "
        f"``FullyShardedDataParallel.{by}``. ``FullyShardedDataParallel.{name}`` may be removed after "
        "PyTorch 2.2.",
        FutureWarning,
        stacklevel=3,
    )


def _to_load(
    model: nn.Module,
    optim: Optimizer | None,
    state: dict[str, Any],
    options: StateDictOptions,
    keep: bool = False,
) -> dict[str, Any]:
    """What optim.load_state_dict() takes, of a state by names; `keep` leaves the state in the optimizer."""
    if optim is None:
        raise ValueError("FullyShardedDataParallel: expected optim, the optimizer that will load the state")
    before = optim.state_dict()
    set_optimizer_state_dict(model, optim, state, options=options)
    state_of_optim = optim.state_dict()
    if not keep:
        optim.load_state_dict(before)
    return state_of_optim


class _Raw:
    """A wrapper as load_full_state_dict sees it: its parts, and plain loading."""

    def __init__(self, wrapper: FullyShardedDataParallel) -> None:
        self.modules, self.named_parameters = wrapper.modules, wrapper.named_parameters
        self.load_state_dict = super(FullyShardedDataParallel, wrapper).load_state_dict


def _ignored(modules: Any, states: Any) -> set[Any]:
    out = {p for m in modules or () for p in m.parameters()}
    for each in states or ():
        out.update(each.parameters() if isinstance(each, nn.Module) else [each])
    return out


def _materialize(module: nn.Module, init: Any, device: Device) -> None:
    """Gives memory to modules on the meta device, and moves the module."""
    for each in module.modules():
        tensors = [*each.parameters(recurse=False), *each.buffers(recurse=False)]
        if any(t.is_meta for t in tensors):
            if init is not None:
                init(each)
            else:
                each.to_empty(device=device if device is not None else "cpu", recurse=False)
                each.reset_parameters()  # type: ignore[operator]
    if device is not None:
        module.to(device)


def _mesh_of(
    module: nn.Module, group: Any, strategy: ShardingStrategy, mesh: DeviceMesh | None
) -> DeviceMesh:
    """The mesh that a strategy means: (copies, parts), or parts alone."""
    if mesh is not None:
        return mesh
    device = next((p.device.type for p in module.parameters()), "cpu")
    hybrid = strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
    if hybrid:
        if not isinstance(group, tuple):
            raise ValueError(
                "FullyShardedDataParallel: HYBRID_SHARD expects device_mesh of two axes, (copies, parts), or "
                "process_group=(group that splits, group of copies)"
            )
        parts, copies = map(resolve, group)
        mine, others = get_process_group_ranks(parts), get_process_group_ranks(copies)
        step = [r - others[copies.rank()] for r in others]
        return DeviceMesh(device, [[r + s for r in mine] for s in step], _groups=[copies, parts])
    ranks = get_process_group_ranks(resolve(group))
    if strategy is ShardingStrategy.NO_SHARD:
        return DeviceMesh(device, [[r] for r in ranks])
    return DeviceMesh.from_group(resolve(group), device)


def _policy(module: nn.Module, mixed: MixedPrecision | None) -> MixedPrecisionPolicy:
    if mixed is None:
        return MixedPrecisionPolicy()
    if mixed.buffer_dtype is not None:
        for b in module.buffers():
            if b.is_floating_point():
                b.data = b.data.to(mixed.buffer_dtype)
    casts = mixed.cast_forward_inputs or mixed.cast_root_forward_inputs
    return MixedPrecisionPolicy(
        mixed.param_dtype, mixed.reduce_dtype or mixed.param_dtype, None, cast_forward_inputs=casts
    )
