"""torch.distributed.checkpoint.state_dict: states of models and optimizers by the plain model's names.

Parameters of which ranks hold parts (fully_shard, tensor parallelism, DTensor) come as they are, so that
`save` finds their place, or whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape import nn
from warptape.core import Tensor
from warptape.core.placed import Placed
from warptape.distributed.checkpoint.state import mark_buffer
from warptape.distributed.objects import broadcast_object_list
from warptape.distributed.state import peek_state

if TYPE_CHECKING:
    from warptape.optim import Optimizer

__all__ = [
    "StateDictOptions",
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "get_state_dict",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "set_state_dict",
]
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


@dataclass
class StateDictOptions:
    """How states are made and taken.

    Args:
        full_state_dict: of wholes; making them is collective.
        cpu_offload: tensors on the CPU; of wholes only rank 0 gets them.
        ignore_frozen_params: leaves out parameters without a gradient.
        keep_submodule_prefixes: makes no difference; submodules are not supported.
        strict: as load_state_dict's.
        broadcast_from_rank0: rank 0's whole state is loaded on all ranks; the others' is not looked at.
        flatten_optimizer_state_dict: "state.<parameter>.<name>" as keys, and
            "param_groups.<parameter>.<name>".
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fqn_modifiers"


@dataclass
class _Names:
    """Names of a model's tensors without those of wrappers: `own` is what the model calls them."""

    own: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)


def _clean(name: str, ddp: bool) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.") if ddp else name


def _names(model: nn.Module) -> tuple[_Names, dict[str, Any]]:
    ddp = isinstance(model, nn.parallel.DistributedDataParallel)
    for each in model.modules():
        if "_sharding" in each.__dict__:
            each.__dict__["_sharding"].group.reshard()  # of fully_shard: may be whole for the moment
    names = _Names()
    state: dict[str, Any] = _raw_state(model)
    for name in state:
        names.own[_clean(name, ddp)] = name
    for name, p in model.named_parameters(remove_duplicate=False):
        names.parameters[_clean(name, ddp)] = p
    names.buffers = {_clean(name, ddp) for name, _ in model.named_buffers(remove_duplicate=False)}
    return names, state


def _raw_state(model: nn.Module) -> dict[str, Any]:
    """state_dict() with the parameters themselves, whatever an FSDP wrapper would make of them."""
    settings = {id(m): (m, m._settings) for m in model.modules() if hasattr(type(m), "set_state_dict_type")}
    for m, before in settings.values():
        m.set_state_dict_type(m, type(before.state_dict_type).SHARDED_STATE_DICT)
    try:
        return model.state_dict(keep_vars=True)
    finally:
        for m, before in settings.values():
            m._settings = before


def _given(value: Any, options: StateDictOptions) -> Any:
    if not isinstance(value, Tensor):
        return value
    if options.full_state_dict and isinstance(value, Placed):
        value = value.full_tensor().detach()
    if options.cpu_offload and value.device.type != "cpu":
        value = value.cpu()
    return value if isinstance(value, Placed) else value.detach()


def _is_elsewhere(options: StateDictOptions) -> bool:
    """Whether wholes go to rank 0 alone, and this is another."""
    state = peek_state()
    return options.full_state_dict and options.cpu_offload and state is not None and state.rank > 0


def _checked(options: StateDictOptions | None, submodules: set[nn.Module] | None) -> StateDictOptions:
    if submodules:
        raise NotImplementedError("submodules: get the whole model's state, and pick by name")
    options = options or StateDictOptions()
    if options.broadcast_from_rank0 and not options.full_state_dict:
        raise ValueError("full_state_dict must be True when broadcast_from_rank0 is True.")
    return options


def get_model_state_dict(
    model: nn.Module, *, submodules: set[nn.Module] | None = None, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """The model's state, by the plain model's names.

    Args:
        model: plain, or wrapped by DDP, FSDP or a pipeline.
        submodules: not supported; None.
        options: whether tensors are gathered, moved to the CPU, and more.
    """
    options = _checked(options, submodules)
    names, state = _names(model)
    out = {}
    for name, own in names.own.items():
        value = state[own]
        if options.ignore_frozen_params and name in names.parameters and not value.requires_grad:
            continue
        out[name] = _given(value, options)
        if name in names.buffers and isinstance(out[name], Tensor) and out[name] is not value:
            mark_buffer(out[name])
    return {} if _is_elsewhere(options) else out


def set_model_state_dict(
    model: nn.Module, model_state_dict: Mapping[str, Any], *, options: StateDictOptions | None = None
) -> Any:
    """Loads what get_model_state_dict gave, parts or wholes; returns what load_state_dict does.

    Args:
        model: plain, or wrapped by DDP, FSDP or a pipeline.
        model_state_dict: by the plain model's names.
        options: whether rank 0's is broadcast, and whether names may be missing.
    """
    options = _checked(options, None)
    names, state = _names(model)
    if options.broadcast_from_rank0:
        model_state_dict = _from_rank0(dict(model_state_dict))
    own = {}
    for name, value in model_state_dict.items():
        target = state.get(names.own.get(name, name))
        own[names.own.get(name, name)] = _part(value, target)
    load = super(type(model), model).load_state_dict if hasattr(type(model), "set_state_dict_type") else None
    if any(isinstance(t, Tensor) and t.is_meta for t in state.values()):  # whose memory is what is loaded
        return (load or model.load_state_dict)(own, strict=options.strict, assign=True)
    return (load or model.load_state_dict)(own, strict=options.strict)


def _part(value: Any, target: Any) -> Any:
    """A value, whole or a DTensor, as the target is."""
    if not isinstance(value, Tensor) or target is None or value.shape != target.shape:
        return value
    if isinstance(target, Placed):
        placed = target.detach().like_full(value)
        return placed.to(target.device_mesh.device_type) if target.is_meta else placed
    return value.full_tensor() if isinstance(value, Placed) else value


def _from_rank0(state: dict[str, Any]) -> dict[str, Any]:
    """Rank 0's nested dict on all ranks. Collective."""
    group = peek_state()
    if group is None or group.world_size == 1:
        return state

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach().as_subclass(Tensor)
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    shared = [plain(state) if group.rank == 0 else None]
    broadcast_object_list(shared, 0)
    assert shared[0] is not None
    return shared[0]


def _listed(optimizers: Optimizer | Iterable[Optimizer]) -> list[Any]:
    return [optimizers] if hasattr(optimizers, "param_groups") else list(optimizers)


def get_optimizer_state_dict(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: set[nn.Module] | None = None,
    options: StateDictOptions | None = None,
) -> dict[str, Any]:
    """The state of one or several optimizers by names of parameters: {"state": {name: {..}}, "param_groups"}.
    An optimizer that has made no step gets its state, so that `load` has where to read it.

    Raises: ValueError for a parameter that the model does not have.
    """
    options = _checked(options, submodules)
    names = {id(p): name for name, p in reversed(_names(model)[0].parameters.items())}
    out: dict[str, Any] = {"state": {}, "param_groups": []}
    for optimizer in _listed(optimizers):
        _init_optim_state(optimizer)
        for group in optimizer.param_groups:
            members = []
            for p in group["params"]:
                if id(p) not in names:
                    raise ValueError(
                        f"get_optimizer_state_dict: a parameter of shape {list(p.shape)} is not the model's"
                    )
                members.append(names[id(p)])
                if p in optimizer.state:
                    state = optimizer.state[p]
                    out["state"][names[id(p)]] = {k: _given(v, options) for k, v in state.items()}
            kept = {k: v for k, v in group.items() if k not in ("params", "param_names")}
            out["param_groups"].append({**kept, "params": members})
    if options.flatten_optimizer_state_dict:
        out = _flat(out)
    return {} if _is_elsewhere(options) else out


def _flat(state: dict[str, Any]) -> dict[str, Any]:
    out = {f"state.{name}.{k}": v for name, values in state["state"].items() for k, v in values.items()}
    for group in state["param_groups"]:
        for name in group["params"]:
            out |= {f"param_groups.{name}.{k}": v for k, v in group.items() if k != "params"}
    return out


def _nested(flat: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What _flat was given, with a group for each parameter."""
    out: dict[str, Any] = {"state": {}, "param_groups": []}
    for name in names:
        group: dict[str, Any] = {"params": [name]}
        for key, value in flat.items():
            if key.startswith(f"state.{name}.") and "." not in key.removeprefix(f"state.{name}."):
                out["state"].setdefault(name, {})[key.removeprefix(f"state.{name}.")] = value
            elif key.startswith(f"param_groups.{name}."):
                group[key.removeprefix(f"param_groups.{name}.")] = value
        out["param_groups"].append(group)
    return out


def set_optimizer_state_dict(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer],
    optim_state_dict: Mapping[str, Any],
    *,
    options: StateDictOptions | None = None,
) -> None:
    """Loads what get_optimizer_state_dict gave, parts or wholes.

    Raises: KeyError for a parameter that is in no group there.
    """
    options = _checked(options, None)
    given: Any = dict(optim_state_dict)
    if options.broadcast_from_rank0:
        given = _from_rank0(given)
    parameters = _names(model)[0].parameters
    names = {id(p): name for name, p in reversed(parameters.items())}
    if given and "param_groups" not in given:
        given = _nested(given, parameters)
    group_of = {name: group for group in given.get("param_groups", ()) for name in group["params"]}
    for optimizer in _listed(optimizers):
        packed: dict[str, Any] = {"state": {}, "param_groups": []}
        count = 0
        for group in optimizer.param_groups:
            there = [group_of[names[id(p)]] for p in group["params"]]
            values = {k: v for k, v in group.items() if k != "params"}
            values |= {k: v for k, v in (there[0] if there else {}).items() if k != "params"}
            packed["param_groups"].append({**values, "params": list(range(count, count + len(there)))})
            for p in group["params"]:
                state = given["state"].get(names[id(p)])
                if state is not None:
                    packed["state"][count] = {k: _part_of_state(v, p) for k, v in state.items()}
                count += 1
        optimizer.load_state_dict(packed)


def _init_optim_state(optimizer: Optimizer) -> None:
    """Makes an optimizer's state by a step that moves nothing: gradients of zero, a learning rate of zero.

    An optimizer that has state, or gradients to step with, is left alone. Programs that load the states of
    parts by hand call it by this name.
    """
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    if optimizer.state or any(p.grad is not None for p in parameters):
        return
    rates = [group.get("lr") for group in groups]
    for p in parameters:
        p.grad = wt.zeros_like(p) if p.requires_grad else None
    for group, rate in zip(groups, rates, strict=True):
        if rate is not None:
            group["lr"] = 0.0 * rate  # a tensor stays one
    optimizer.step()
    for group, rate in zip(groups, rates, strict=True):
        if rate is not None:
            group["lr"] = rate
    for state in optimizer.state.values():
        if "step" in state:  # none was made: training goes on as if this had not been
            state["step"] = state["step"] * 0
    optimizer.zero_grad()


def _part_of_state(value: Any, p: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 0:
        return value
    return _part(value, p)


def get_state_dict(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: set[nn.Module] | None = None,
    options: StateDictOptions | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of a model and of its optimizers.

    Args:
        model: plain, or wrapped by DDP, FSDP or a pipeline.
        optimizers: one or several.
        submodules: not supported; None.
        options: whether tensors are gathered, moved to the CPU, and more.

    Returns: (the model's state, the optimizers' state).
    """
    state = get_model_state_dict(model, submodules=submodules, options=options)
    return state, get_optimizer_state_dict(model, optimizers, submodules=submodules, options=options)


def set_state_dict(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    model_state_dict: Mapping[str, Any],
    optim_state_dict: Mapping[str, Any],
    options: StateDictOptions | None = None,
) -> Any:
    """Loads what get_state_dict gave; returns what load_state_dict does.

    Args:
        model: plain, or wrapped by DDP, FSDP or a pipeline.
        optimizers: one or several.
        model_state_dict, optim_state_dict: by the plain model's names.
        options: whether rank 0's is broadcast, and whether names may be missing.
    """
    keys = set_model_state_dict(model, model_state_dict, options=options)
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return keys
