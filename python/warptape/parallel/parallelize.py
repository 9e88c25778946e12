"""One call for every kind of parallelism at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import nn
from ..core import Tensor
from ..core.placed import set_replicas
from ..distributed import DeviceMesh, init_device_mesh
from ..distributed.state import state
from ..nn.parallel import DistributedDataParallel
from ..utils.checkpoint import checkpoint
from .context.api import ATTENTIONS
from .dtensor.tensor import DTensor
from .experts.layer import balance_over, check_experts, expert_parallel, mixtures
from .model import Names, ParallelModel, weighted
from .pipeline import PipelineScheduleMulti, get_schedule_class, split_into_stages
from .pipeline.partition import counts_of, named_layers
from .pipeline.schedules import rank_of
from .shard import FSDPModule, MixedPrecisionPolicy, fully_shard
from .shard.checks import check_options
from .tensor import parallelize_module
from .tensor.plan import check_plan

AXES = ("dp", "cp", "tp", "pp")
Layers = nn.Module | Sequence[nn.Module]


def parallelize(
    model: nn.Module,
    mesh: DeviceMesh | Any = None,
    *,
    loss_fn: Callable[..., Tensor],
    dp: int | None = None,
    cp: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    plan: Any = None,
    layers: Layers | None = None,
    schedule: str = "1F1B",
    n_microbatches: int = 1,
    chunks: int = 1,
    balance: str | Sequence[int] | None = None,
    example: Any = None,
    zero: int = 0,
    ep: int = 1,
    mp_policy: MixedPrecisionPolicy | None = None,
    attention: str = "ring",
    counted: Callable[[Any], Any] | None = None,
) -> ParallelModel:
    """Splits a model, in place, over the axes "dp", "cp", "tp" and "pp" of a mesh; a missing one is of 1.

    Ranks along "cp" share each sequence: the model takes positions from `warptape.parallel.context.positions`
    and calls scaled_dot_product_attention; every input and target is [rows, sequence, ..].

    All ranks give the same model with the same values, as from one seed; let go of it afterwards, or a rank
    keeps the stages of others.

    Args:
        mesh: or a Layout of `warptape.parallel.plan`, which brings its mesh, on the model's device, and in
            the place of the arguments its schedule, chunks, n_microbatches, zero and ep. With
            recompute="full" each element of the model's ModuleLists keeps its input alone.
        dp, cp, tp, pp: in a mesh's place the sizes of its axes, 1 where left out; dp is then what the others
            leave of the job's ranks. The axes lie as in a Layout's mesh, neighbours along "tp".
        loss_fn: loss_fn(output, target), a mean over the rows; of split logits VocabParallelCrossEntropy.
        plan: for "tp", as parallelize_module's, with the names of the whole model.
        layers: for "pp", the model as layers in a row, as split_into_stages takes them; they have all of the
            model's parameters. With zero 2 and 3 each layer is sharded by itself; without `layers`, each
            element of the model's ModuleLists is.
        schedule, chunks, balance, example: the pipeline's; chunks is the number of stages on a rank.
        n_microbatches: into how many parts a rank's rows are cut, with "pp" or without.
        zero: what ranks along "dp" and "cp" share: 1 optimizer state, 2 gradients too, 3 parameters too.
        ep: how many neighbours of the ranks along "dp" and "cp", as one, share out the experts of each
            MixtureOfExperts. Their routers count the tokens of all of these ranks, whatever ep is.
        mp_policy: fully_shard's, for zero 2 and 3.
        attention: along "cp" by "ring", or by "ulysses", for heads that divide.
        counted: counted(target), a number or a tensor of one element: over how much loss_fn's mean of a
            target is. For a loss with ignore_index `lambda t: (t != -100).sum()`, with weights of classes
            `lambda t: weight[t].sum()`. Each rank and micro-batch then counts by its share of the sum over
            all; without it all count alike.

    Raises: ValueError and TypeError on every rank, before any collective and with the model as it was, for
        what does not fit; they say which number to change.
    """
    recomputed = getattr(mesh, "recompute", "none") == "full"
    mesh = _mesh_of(model, mesh, {"pp": pp, "dp": dp, "cp": cp, "tp": tp})
    mesh, schedule, chunks, n_microbatches, zero, ep = _settings(
        model, mesh, schedule, chunks, n_microbatches, zero, ep
    )
    axes = _checked_axes(mesh, zero, n_microbatches)
    _check_model(model, loss_fn, mesh, zero, mp_policy)
    listed = [] if layers is None else list(named_layers(layers).values())
    if "tp" in axes:
        _check_tensor_plan(model, plan, axes["tp"].size(), listed if "pp" in axes else [])
    counts: list[int] = []
    if attention not in ATTENTIONS:
        raise ValueError(f"parallelize: expected attention of {ATTENTIONS}, got {attention!r}")
    if counted is not None:
        if not callable(counted):
            raise TypeError(f"parallelize: expected counted to be callable, got {type(counted).__name__}")
        loss_fn = partial(weighted, loss_fn)
    sharing = tuple(name for name in axes if name in ("dp", "cp"))
    _check_experts(model, [axes[name].size() for name in sharing], ep)
    _check_schedule(schedule, chunks)
    if "pp" in axes:
        placement = get_schedule_class(schedule).placement
        counts = _checked_layers(model, listed, axes["pp"].size(), chunks, placement, balance, example, zero)
    if recomputed:
        _recompute(_blocks(model))
    names = Names(model)
    # The order: tensor, experts, pipeline, data. A plan names modules of the whole model, and layers are to
    # be parts already when a stage takes them. Ranks along "cp" have copies of the model, as those along "dp"
    # have. Stages find the parameters that they share by identity, which all keep. Data comes last: it cuts,
    # or averages, what a rank has by then and nothing else, and gradients are averaged over copies after the
    # sums along "tp", which their hooks take.
    modules: list[nn.Module] = [model]
    runner: Any = model
    if "tp" in axes:
        parallelize_module(model, axes["tp"], plan)
    if sharing:
        axes["copies"] = mesh[sharing].flatten() if len(sharing) == 2 else axes[sharing[0]]
        axes |= _share_experts(model, mesh, axes["copies"], ep)
    for _, layer in mixtures(model):
        layer.loss_scale = 1 / n_microbatches
    if "pp" in axes:
        kind, group = get_schedule_class(schedule), axes["pp"].get_group()
        stages = split_into_stages(layers, chunks, placement=placement, balance=counts, group=group)  # type: ignore[arg-type]
        modules = [stage.submod for stage in stages]
        several: Any = stages if issubclass(kind, PipelineScheduleMulti) else stages[0]
        runner = kind(several, n_microbatches, loss_fn)  # type: ignore[call-arg]
        names.keep(modules, listed)
    if sharing and zero >= 2:
        for module in modules:
            _shard(module, listed or _blocks(module), axes, zero == 3, mp_policy)
    elif sharing and "pp" not in axes:
        # Stages average as the schedule says: its backward passes overlap, and each would start DDP's sums.
        runner = DistributedDataParallel(model, process_group=axes["copies"].get_group())
    return ParallelModel(modules, runner, names, axes, loss_fn, n_microbatches, zero, attention, counted)


def _check_tensor_plan(model: nn.Module, plan: Any, size: int, layers: list[nn.Module]) -> None:
    """Raises ValueError for a plan that is missing, or names modules of no layer of a pipeline's."""
    if plan is None:
        raise ValueError(f"parallelize: the mesh has {size} ranks along 'tp'; give a plan")
    planned = check_plan(model, plan, size)
    called = {id(m) for layer in layers for m in layer.modules()}
    left = [name or "''" for name, part in planned.items() if id(part) not in called]
    if layers and left:
        raise ValueError(
            f"parallelize: the plan names {', '.join(left)}, in none of `layers`: no stage calls it"
        )


def _mesh_of(model: nn.Module, mesh: Any, sizes: dict[str, int | None]) -> Any:
    """The mesh or Layout as given, or a mesh of these sizes."""
    axes = {name: size for name, size in sizes.items() if size is not None}
    if mesh is not None or not axes:
        if axes:
            raise ValueError(f"parallelize: got a mesh and sizes of axes, {axes}; give one of them")
        return mesh
    for name, size in axes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"parallelize: expected {name} to be a whole number above 0, got {size!r}")
    world = state().world_size
    others = math.prod(axes.values())
    if "dp" not in axes and world % others == 0:
        axes["dp"] = world // others
    if math.prod(axes.values()) != world:
        raise ValueError(
            f"parallelize: {' * '.join(f'{name} {n}' for name, n in axes.items())} are {others} ranks, and "
            f"the job has {world}; make the product {world}, or start another number of processes"
        )
    if not isinstance(model, nn.Module):
        return mesh  # refused by what follows
    device = next((p.device.type for p in model.parameters()), "cpu")
    shape = {name: axes.get(name, 1) for name in sizes}
    return init_device_mesh(device, tuple(shape.values()), mesh_dim_names=tuple(shape))


def _settings(
    model: nn.Module, mesh: Any, schedule: str, chunks: int, n_microbatches: int, zero: int, ep: int
) -> tuple[DeviceMesh, str, int, int, int, int]:
    """The arguments as they are, or those of a Layout in the mesh's place with a mesh that it makes."""
    if not hasattr(mesh, "arguments"):  # a Layout has; to name its class here would import the planner
        return mesh, schedule, chunks, n_microbatches, zero, ep
    arguments = mesh.arguments()
    device = next((p.device.type for p in model.parameters()), "cpu")
    names = ("schedule", "chunks", "n_microbatches", "zero", "ep")
    return mesh.mesh(device), *(arguments[name] for name in names)


def _checked_axes(mesh: DeviceMesh, zero: int, n_microbatches: int) -> dict[str, DeviceMesh]:
    """The axes of more than one rank. Raises ValueError and TypeError."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"parallelize: expected a DeviceMesh or sizes of axes, got {type(mesh).__name__}")
    names = mesh.mesh_dim_names or ()
    if not names or set(names) - set(AXES):
        raise ValueError(f"parallelize: expected a mesh with axes named of {AXES}, got {mesh}")
    world = state().world_size
    if mesh.size() != world:
        sizes = " * ".join(f"{name} {n}" for name, n in zip(names, mesh.shape, strict=True))
        raise ValueError(
            f"parallelize: the mesh has {sizes} = {mesh.size()} ranks and the job has {world}; make the "
            f"product {world}, or start {mesh.size()} processes"
        )
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"parallelize: expected zero to be 0, 1, 2 or 3, got {zero!r}")
    if zero and not {"dp", "cp"} & set(names):
        raise ValueError(
            f"parallelize: zero={zero} is of ranks along 'dp' and 'cp', and the mesh has {names} alone"
        )
    if n_microbatches < 1:
        raise ValueError(f"parallelize: expected n_microbatches of at least 1, got {n_microbatches}")
    return {name: mesh[name] for name in names if mesh.size(name) > 1}


def _check_model(
    model: nn.Module, loss_fn: Any, mesh: DeviceMesh, zero: int, policy: MixedPrecisionPolicy | None
) -> None:
    """Raises ValueError and TypeError for what no layout can train."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"parallelize: expected a Module, got {type(model).__name__}")
    if not callable(loss_fn):
        raise TypeError(f"parallelize: expected loss_fn to be callable, got {type(loss_fn).__name__}")
    if policy is not None:
        if zero < 2:
            raise ValueError(f"parallelize: mp_policy is for zero=2 and zero=3, got zero={zero}")
        check_options(None, policy, None, None)
    if any(isinstance(m, FSDPModule | ParallelModel | DistributedDataParallel) for m in model.modules()):
        raise ValueError("parallelize: modules of the model are parallel already; give the model as it was")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("parallelize: no parameter of the model requires grad; thaw what is to be trained")
    for name, p in model.named_parameters():
        if isinstance(p, DTensor):
            raise ValueError(f"parallelize: {name} is already sharded; give the model as it was")
        if p.device.type != mesh.device_type:
            raise ValueError(
                f"parallelize: {name} is on {p.device} and the mesh is of {mesh.device_type!r}; move one"
            )
        if p.ndim == 0 and zero >= 2:
            raise ValueError(f"parallelize: {name} has no dims; for zero={zero} make it of shape [1]")
    extra = [name for name in model.state_dict() if name.endswith("_extra_state")]
    if extra:
        raise ValueError(f"parallelize: {', '.join(extra)} would not be saved; make tensors of it")


def _check_experts(model: nn.Module, sharing: Sequence[int], ep: int) -> None:
    """Raises ValueError for experts that do not divide among `ep` of these ranks."""
    copies = math.prod(sharing)
    if ep < 1 or copies % ep:
        raise ValueError(
            f"parallelize: expected ep to divide the {copies} ranks along 'dp' and 'cp', which share the "
            f"experts out; got ep={ep}"
        )
    if ep > 1 and not mixtures(model):
        raise ValueError(f"parallelize: the model has no MixtureOfExperts for ep={ep}; leave ep out")
    check_experts(model, ep, "parallelize")


def _share_experts(model: nn.Module, mesh: DeviceMesh, copies: DeviceMesh, ep: int) -> dict[str, DeviceMesh]:
    """Copies are replicas x ep: ranks along "replicas" have the same experts, along "ep" different ones."""
    if ep > 1:
        names = mesh.mesh_dim_names or ()
        last = [i for i, name in enumerate(names) if name in ("dp", "cp")]
        rest = [i for i in range(mesh.ndim) if i not in last]
        grid = mesh.mesh.permute(rest + last).reshape([*(mesh.size(i) for i in rest), -1, ep])
        named = (*(names[i] for i in rest), "replicas", "ep")
        split = DeviceMesh(mesh.device_type, grid, mesh_dim_names=named, _groups=[])
        split._groups = [mesh.get_group(i) for i in rest] + [split._make(i) for i in (-2, -1)]
        expert_parallel(model, split["ep"])
        for _, layer in mixtures(model):
            for p in layer.experts.parameters():
                set_replicas(p, split["replicas"].get_group())
    balance_over(model, copies.get_group())
    return {name: split[name] for name in ("replicas", "ep")} if ep > 1 else {}


def _check_schedule(schedule: str, chunks: int) -> None:
    """Raises ValueError for a schedule that is not there, or that does not go with these numbers."""
    kind = get_schedule_class(schedule)
    if chunks < 1 or (chunks > 1 and not issubclass(kind, PipelineScheduleMulti)):
        raise ValueError(
            f"parallelize: schedule {schedule!r} has one stage on a rank, got chunks={chunks}; make it 1, or "
            "use 'Interleaved1F1B'"
        )
    if kind.placement == "v" and chunks != 2:
        raise ValueError(f"parallelize: schedule {schedule!r} has two stages on a rank, got chunks={chunks}")


def _checked_layers(
    model: nn.Module,
    layers: Sequence[nn.Module],
    ranks: int,
    chunks: int,
    placement: str,
    balance: Any,
    example: Any,
    zero: int,
) -> list[int]:
    """How many layers each stage has. Raises ValueError for a number that does not fit, for parameters that
    are in no layer and would not be trained, and for a rank without any."""
    stages = ranks * chunks
    if not layers:
        raise ValueError(
            f"parallelize: for {stages} stages give `layers`, the model's in the order of forward"
        )
    known, held = dict(model.named_parameters()), [{id(p) for p in layer.parameters()} for layer in layers]
    left = [name for name, p in known.items() if not any(id(p) in own for own in held)]
    if left:
        raise ValueError(f"parallelize: {', '.join(left)} of the model are in none of `layers`; add theirs")
    strange = set().union(*held) - {id(p) for p in known.values()}
    if strange:
        raise ValueError(f"parallelize: `layers` have {len(strange)} parameters that the model has not")
    # Before tensors are split, so that one rank alone can measure; for all ranks of the job alike.
    counts = counts_of(layers, stages, balance, example, None)
    starts = [sum(counts[:s]) for s in range(stages + 1)]
    of_stage = [set[int]().union(*held[a:b]) for a, b in itertools.pairwise(starts)]
    for rank in range(ranks):
        mine = [part for s, part in enumerate(of_stage) if rank_of(s, ranks, placement) == rank]
        if not any(mine):
            raise ValueError(
                f"parallelize: rank {rank} along 'pp' would have no parameters with {counts} layers in the "
                "stages; change `balance`, or use fewer ranks"
            )
        if zero >= 2 and sum(map(len, mine)) > len(set().union(*mine)):
            raise ValueError(
                f"parallelize: two stages of rank {rank} along 'pp' share a parameter, which zero={zero} "
                "cannot split; use chunks=1, or zero=1"
            )
    return counts


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The elements of a model's outermost ModuleLists."""
    out: list[nn.Module] = []
    inside: set[int] = set()
    for each in model.modules():
        if isinstance(each, nn.ModuleList) and id(each) not in inside:
            out += [m for m in each if type(m).forward is not nn.Module.forward]
            inside |= {id(m) for m in each.modules()}
    return out


def _recompute(layers: Sequence[nn.Module]) -> None:
    """Has each keep its input alone, and run again in backward; names of parameters stay."""
    for layer in layers:
        run: Any = layer.forward
        layer.__dict__["forward"] = partial(checkpoint, run, use_reentrant=False)


def _shard(
    root: nn.Module, layers: Sequence[nn.Module], axes: dict[str, DeviceMesh], reshard: bool, policy: Any
) -> None:
    """fully_shard for each layer in a module and then for the module, which keeps what layers share; experts
    that are shared out lie among their replicas."""
    inside = {id(m) for m in root.modules()} - {id(root)}
    owners: dict[int, set[int]] = {}
    for m in root.modules():
        for p in m._parameters.values():
            owners.setdefault(id(p), set()).add(id(m))
    options = {"reshard_after_forward": reshard, "mp_policy": policy or MixedPrecisionPolicy()}
    for _, mixture in mixtures(root) if "ep" in axes else ():
        fully_shard(mixture.experts, mesh=axes["replicas"], **options)  # type: ignore[arg-type]
    options["mesh"] = axes["copies"]
    for layer in {id(m): m for m in layers if id(m) in inside}.values():
        own = {id(m) for m in layer.modules()}
        if all(owners[id(p)] <= own for p in layer.parameters()):
            fully_shard(layer, **options)  # type: ignore[arg-type]
    fully_shard(root, **options)  # type: ignore[arg-type]
