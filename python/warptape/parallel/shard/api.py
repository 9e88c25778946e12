"""`fully_shard` and what a module that went through it can do: torch.distributed.fsdp's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ... import core as wt
from ... import cuda, nn
from ... import distributed as dist
from ...core import Tensor
from ...core.pytree import tree_map_only
from ...distributed import DeviceMesh, init_device_mesh
from ...nn.parallel.distributed import _tensors_in
from ..dtensor.placement import Placement, Replicate, Shard
from ..dtensor.tensor import place
from .annotations import annotation_of
from .checks import CPUOffloadPolicy, DataParallelMeshDims, check_options, check_parameter, dim_of
from .group import Entry, MixedPrecisionPolicy, ParameterGroup
from .offload import HostShards
from .progress import Progress

Model = TypeVar("Model", bound=nn.Module)
_classes: dict[tuple[type, type], type] = {}


class UnshardHandle:
    """What unshard(async_op=True) returns.

    Args:
        group: what is put together.
    """

    def __init__(self, group: ParameterGroup) -> None:
        self.group = group

    def wait(self) -> None:
        """Modules have full parameters then."""
        self.group.unshard()
        self.group.fresh = True


class _Sharding:
    """What fully_shard adds to a module, or to several that share a group of parameters: the group, and hooks
    on forward and backward. Of several modules the first to run makes the group whole, the last lets it go.
    """

    optimizer_event: Any = None  # for the pass to come

    def __init__(
        self, modules: Sequence[nn.Module], group: ParameterGroup, reshard_after_forward: bool | int | None
    ) -> None:
        self.group, self.policy, self.reshard_given = group, group.policy, reshard_after_forward
        self.progress: Progress | None = None
        self.is_root = False
        self.ahead_forward: list[ParameterGroup] | None = None
        self.ahead_backward: list[ParameterGroup] | None = None
        self.modules = {id(module) for module in modules}
        self.to_run: set[int] = set()  # of a pass that has begun
        for module in modules:
            module.register_forward_pre_hook(self.before, prepend=True, with_kwargs=True)
            module.register_forward_hook(self.after, with_kwargs=True, always_call=True)
            module.register_state_dict_pre_hook(lambda *_: self.group.reshard())
            module.register_load_state_dict_pre_hook(lambda *_: self.group.reshard())
            module.register_load_state_dict_post_hook(lambda *_: self.group.take_moved())

    def lead(self, module: nn.Module) -> None:
        """This module's forward is the outermost: all below are put in its order.

        Args:
            module: the root.
        """
        self.progress, self.is_root = Progress(), True
        for each in _shardings(module):
            each.progress = each.group.progress = self.progress
            each.is_root = each is self
            # The root's parameters would be put together again at once for backward.
            each.group.reshard_after_forward = (
                each is not self if each.reshard_given is None else _frees(each.reshard_given)
            )
            self.progress.groups.append(each.group)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.progress is None:
            self.lead(module)
        assert self.progress is not None
        if self.to_run:  # another module of the group ran before
            self.group.unshard()
        else:
            if self.is_root:
                self.progress.optimizer_event, self.optimizer_event = self.optimizer_event, None
                self.progress.begin()
            self.progress.enter(self.group, self.ahead_forward)
            if not self.progress.backward and len(self.modules) > 1:
                self.to_run = set(self.modules)
        dtype = self.policy.param_dtype
        if dtype is not None and self.policy.cast_forward_inputs:
            args, kwargs = _cast((args, kwargs), dtype)
        frozen = self.group.trained() < len(self.group.entries)
        if frozen and wt.is_grad_enabled() and not self.progress.backward:
            args, kwargs = self.watched(args, kwargs)
        return args, kwargs

    def watched(self, args: Any, kwargs: Any) -> Any:
        """The inputs, such that backward tells when it has left the module.

        Args:
            args, kwargs: of the forward.
        """
        left = 0

        def note(gradient: Tensor) -> None:
            nonlocal left
            left -= 1
            if left == 0 and self.progress is not None:
                self.progress.inputs_done(self.group)

        def view(t: Tensor) -> Tensor:
            nonlocal left
            if not t.requires_grad:
                return t
            left += 1
            seen = t.view_as(t)
            seen.register_hook(note)
            return seen

        return tree_map_only(Tensor, view, (args, kwargs))

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        progress, dtype = self.progress, self.policy.output_dtype
        if progress is None:
            return output
        again = progress.backward
        self.to_run.discard(id(module))
        if not self.to_run:
            progress.leave(self.group)
        if dtype is not None:
            output = _cast(output, dtype)
        if wt.is_grad_enabled() and not again:
            for t in _tensors_in(output):
                if t.requires_grad and not t.is_leaf:
                    t.register_hook(self.before_backward)
        return output

    def before_backward(self, gradient: Tensor) -> None:
        if self.progress is not None:
            self.progress.enter_backward(self.group, self.ahead_backward)


class FSDPModule:
    """What fully_shard makes of a module's class, with methods of its own. A name that ends in `recurse`'s
    default True is set for the modules inside, too."""

    _sharding: _Sharding

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Puts this module's parameters together ahead of its forward. Collective. With `async_op` it returns
        a handle at once, whose wait() may be left to forward."""
        handle = UnshardHandle(self._sharding.group)
        if async_op:
            handle.group.start()
            handle.group.fresh = True
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """This module's parameters are shards again."""
        self._sharding.group.reshard()

    def _groups(self, recurse: bool) -> list[ParameterGroup]:
        return [s.group for s in _shardings(self)] if recurse else [self._sharding.group]  # type: ignore[arg-type]

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """With False, gradients stay whole, on this rank, and add up until a backward pass with True.

        Args:
            requires_gradient_sync: whether backward averages gradients.
            recurse: whether modules inside follow.
        """
        for group in self._groups(recurse):
            group.sync = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """On a mesh of two axes: with False, gradients are summed among the ranks that split parameters, and
        over the copies of these only in a backward pass with True."""
        for group in self._groups(recurse):
            group.all_reduce = requires_all_reduce

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Makes no difference: gradients of every backward pass have come when it returns.

        Args:
            is_last_backward: without effect.
        """

    def set_all_reduce_hook(self, hook: Callable[[Tensor], None], *, stream: Any = None) -> None:
        """hook(gradients) is called with the reduced gradients of this module's parameters, joined into one
        tensor or more, before they are added to `grad`; it may change them in place."""
        self._sharding.group.all_reduce_hook = hook

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """With False, parameters stay whole after backward. They must not be when an optimizer steps.

        Args:
            reshard_after_backward: whether memory of full tensors is freed then.
            recurse: whether modules inside follow.
        """
        for group in self._groups(recurse):
            group.reshard_after_backward = reshard_after_backward

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """As fully_shard's argument.

        Args:
            reshard_after_forward: whether memory of full tensors is freed then.
            recurse: whether modules inside follow.
        """
        for each in _shardings(self) if recurse else [self._sharding]:  # type: ignore[arg-type]
            each.reshard_given = each.group.reshard_after_forward = reshard_after_forward

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Sums of gradients over ranks are divided by this instead of by the number of ranks.

        Args:
            factor: a positive number.

        Raises: ValueError for any other.
        """
        if not factor > 0:
            raise ValueError(f"set_gradient_divide_factor: expected a positive number, got {factor}")
        self._sharding.group.divisor = float(factor)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Gradients are summed, and then divided by the number of ranks, by no collective that averages.

        Args:
            enable: for this module and all inside.
        """
        for group in self._groups(True):
            copies = group.copies.size() if group.copies is not None else 1
            group.divisor = float(group.ranks.size() * copies) if enable else None

    def set_custom_all_gather(self, comm: Any) -> None:
        """comm(output, input, group, async_op) puts parameters together; comm.allocate(size, dtype=, device=)
        makes the output."""
        group = self._sharding.group
        group.comms = comm, group.comms[1]

    def set_custom_reduce_scatter(self, comm: Any) -> None:
        """comm(output, input, group=, op=, async_op=) reduces gradients; comm.allocate as above."""
        group = self._sharding.group
        group.comms = group.comms[0], comm

    def set_post_optim_event(self, event: Any) -> None:
        """The outermost module's next forward waits for the event before parameters are put together."""
        self._sharding.optimizer_event = event

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """With False, parameters are not put together for backward, which must not need them: a table's."""
        self._sharding.group.unshard_in_backward = unshard_in_backward

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Makes no difference: groups have no allocator of their own."""

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Makes no difference: gathered parameters lie in ordinary memory."""

    def set_reduce_scatter_unused_params(
        self, reduce_scatter_unused_params: bool, *, recurse: bool = True
    ) -> None:
        """With True, ranks may use different parameters of a module: those without a gradient on a rank count
        as zeros there. Gradients are then reduced at the end of backward."""
        for group in self._groups(recurse):
            group.reduces_unused = reduce_scatter_unused_params

    def reset_iter_state(self) -> None:
        """After a pass that failed: parameters are shards, and what was under way is forgotten."""
        progress = self._sharding.progress
        if progress is not None:
            progress.forget()
        for group in self._groups(True):
            group.reshard()

    def set_modules_to_forward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """In forward, while this module computes, the parameters of these are put together.

        Args:
            modules: which come next.
        """
        self._sharding.ahead_forward = _groups_of(modules, "set_modules_to_forward_prefetch")

    def set_modules_to_backward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """The same in backward.

        Args:
            modules: which come next in backward.
        """
        self._sharding.ahead_backward = _groups_of(modules, "set_modules_to_backward_prefetch")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        for group in self._groups(True):
            group.reshard()
        super()._apply(fn, recurse)  # type: ignore[misc]
        for group in self._groups(True):
            group.take_moved()
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the shards, also between forward and backward, when modules have full parameters.

        Args:
            set_to_none: whether gradients go away.
        """
        for group in self._groups(True):
            group.reshard()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a module is copied before fully_shard, not after: its groups cannot be copied")


def _groups_of(modules: Any, where: str) -> list[ParameterGroup]:
    modules = list(modules)
    for each in modules:
        if not isinstance(each, FSDPModule):
            raise TypeError(f"{where}: expected modules after fully_shard, got {type(each).__name__}")
    return [each._sharding.group for each in modules]


def group_of(module: FSDPModule) -> ParameterGroup:
    """The parameters that are gathered and given back together with a module after fully_shard."""
    return module._sharding.group


def _shardings(module: nn.Module) -> list[_Sharding]:
    shardings = [m._sharding for m in module.modules() if isinstance(m, FSDPModule)]
    return list(dict.fromkeys(shardings))


def _cast(value: Any, dtype: Any) -> Any:
    """The same with all floating tensors in lists, tuples and dicts cast."""
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, value)


# ---- fully_shard ----


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Lets a method of a sharded module be called as its forward is, with full parameters. Of another module
    nothing changes."""
    if not isinstance(module, FSDPModule):
        return
    method = getattr(module, method_name)

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = module._sharding.before(module, args, kwargs)  # type: ignore[arg-type]
        return module._sharding.after(module, args, kwargs, method(*args, **kwargs))  # type: ignore[arg-type]

    setattr(module, method_name, call)


def fully_shard(
    module: Model | Sequence[Model],
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[Any], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008
    offload_policy: Any = None,
    ignored_params: Iterable[Any] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> Model | Sequence[Model]:
    """Keeps of each parameter a shard on each rank; whole they are for the time that the module needs them.

    Call it for the layers and then for the model: parameters of a module are put together at once, without
    those of modules inside that were sharded before. Returns the module, changed in place: it is an
    FSDPModule, too, and its parameters are DTensors, the same objects as before.
    All ranks need the same values, as from one seed. Not collective.

    Args:
        module: or a list of modules, whose parameters are one group: they are put together before the first
            of them runs and given back after the last.
        mesh: one axis, among whose ranks parameters are split; or two, the first of which has copies
            (hybrid sharding). By default all ranks of the job.
        reshard_after_forward: True frees full parameters between forward and backward (ZeRO 3), False keeps
            them (ZeRO 2). None is False for the outermost module alone. A number, which divides that of the
            ranks, keeps a whole between as many neighbours, who put it together for backward.
        shard_placement_fn: of a parameter its Shard(dim), the dim along which it is split; None stands for
            Shard(0), which needs no copy to put the full tensor together. Sizes need not divide.
        mp_policy: dtypes of full tensors, of reduced gradients and of outputs.
        offload_policy: CPUOffloadPolicy keeps parts, gradients and the optimizer's state on the CPU, while
            the mesh's device computes; parameters may be on either before. None or OffloadPolicy does not.
        ignored_params: parameters that are left as they are.
        dp_mesh_dims: which axes of `mesh` are taken. Along the others parameters lie already: as DTensors, or
            as plain tensors that the package spmd_types has annotated; these are plain in forward, too.

    Raises: TypeError and ValueError, the same on every rank and before any change.
    """
    modules: list[Any] = list(module) if isinstance(module, list | tuple) else [module]
    others = None
    if dp_mesh_dims is not None:
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(f"fully_shard: dp_mesh_dims are of a mesh, got {type(mesh).__name__}")
        mesh, others = dp_mesh_dims.split(mesh)
    mesh = _checked_mesh(modules, mesh)
    check_options(reshard_after_forward, mp_policy, shard_placement_fn, offload_policy)
    near = _near_ranks(mesh, reshard_after_forward)
    splits = dp_mesh_dims is None or bool(dp_mesh_dims.shard_names)
    options = (shard_placement_fn, mp_policy, offload_policy, ignored_params)
    group = _grouped(modules, mesh, splits, *options, others)
    group.near = near
    _join(modules, group, reshard_after_forward, FSDPModule, "FSDP")
    return module


class ReplicateModule(FSDPModule):
    """What replicate makes of a module's class."""


def replicate(
    module: Model | Sequence[Model],
    *,
    mesh: DeviceMesh | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008
    offload_policy: Any = None,
    ignored_params: Iterable[Any] | None = None,
) -> Model | Sequence[Model]:
    """Data parallelism by fully_shard's means: every rank of a mesh of one axis has all of each parameter, as
    a DTensor that is Replicate(), and gradients are averaged. Arguments, methods and errors as fully_shard's.

    >>> from warptape.parallel import replicate
    >>> def run():
    ...     model = replicate(torch.nn.Linear(2, 1, bias=False))
    ...     model(torch.full((1, 2), float(torch.distributed.get_rank()))).sum().backward()
    ...     return model.weight.grad.to_local().tolist()
    >>> torch.distributed.simulate(2, run)
    [[[0.5, 0.5]], [[0.5, 0.5]]]
    """
    modules: list[Any] = list(module) if isinstance(module, list | tuple) else [module]
    mesh = _checked_mesh(modules, mesh, "replicate")
    if mesh.ndim != 1:
        raise ValueError(f"replicate: expected a mesh of one axis, got {mesh}")
    check_options(None, mp_policy, None, offload_policy)
    group = _grouped(modules, mesh, False, None, mp_policy, offload_policy, ignored_params)
    _join(modules, group, False, ReplicateModule, "Replicate")
    return module


class _Alone:
    """This rank as a group, for parameters that are not split."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def _frees(reshard_after_forward: bool | int) -> bool:
    """Whether full tensors go after forward: a single rank that keeps a whole keeps it as it is."""
    return reshard_after_forward if isinstance(reshard_after_forward, bool) else reshard_after_forward > 1


def _near_ranks(mesh: DeviceMesh, count: bool | int | None) -> Any:
    """The group of `count` neighbours on the axis that splits; None where it is no number, or all or one."""
    n = mesh.size(mesh.ndim - 1)
    if count is None or isinstance(count, bool) or count in (1, n):
        return None
    if n % count:
        raise ValueError(
            f"fully_shard: reshard_after_forward={count} does not divide the {n} ranks that split parameters"
        )
    ranks = dist.get_process_group_ranks(mesh.get_group(mesh.ndim - 1))
    first = mesh.get_local_rank(mesh.ndim - 1) // count * count
    near = tuple(ranks[first : first + count])
    groups = mesh.__dict__.setdefault("_near", {})
    if near not in groups:
        groups[near] = dist.new_group(list(near), use_local_synchronization=True)
    return groups[near]


def _grouped(
    modules: Sequence[Any],
    mesh: DeviceMesh,
    splits: bool,
    shard_placement_fn: Any,
    mp_policy: MixedPrecisionPolicy,
    offload_policy: Any,
    ignored_params: Iterable[Any] | None,
    others: DeviceMesh | None = None,
) -> ParameterGroup:
    """The group of what the modules have, whose parameters it makes DTensors. Raises before any change."""
    places = _own_parameters(modules, {id(p) for p in ignored_params or ()})
    host = None
    if isinstance(offload_policy, CPUOffloadPolicy) and mesh.device_type != "cpu":
        device = wt.device(mesh.device_type, cuda.current_device())
        host = HostShards(device, offload_policy.pin_memory)
    noted = [annotation_of(p, where[0][1], others) for p, where in places]
    joined = [
        check_parameter(p, where[0], mesh, host is not None, note)
        for (p, where), note in zip(places, noted, strict=True)
    ]
    dims = [dim_of(p, where[0][1], shard_placement_fn) for p, where in places]
    entries = []
    for (p, homes), dim, note in zip(places, dims, noted, strict=True):
        if note is not None:
            note.adopt(p)
        named = [(m, name.rpartition(".")[2]) for m, name in homes]
        entries.append(Entry(p, named, dim, host and host.device, note))
    shard = mesh.ndim - 1 if splits else mesh.ndim
    copies = mesh.get_group(0) if shard and mesh.size(0) > 1 else None
    group = ParameterGroup(entries, mesh.get_group(shard) if splits else _Alone(), copies, mp_policy, host)
    for entry, full_mesh in zip(entries, joined, strict=True):
        where: list[Placement] = [*[Replicate()] * shard, *[Shard(entry.dim)] * splits]
        place(entry.shard, full_mesh, where)
        if host is not None:
            host.keep(entry.shard)
    return group


def _join(
    modules: Sequence[Any], group: ParameterGroup, reshard: bool | int | None, kind: type, name: str
) -> None:
    """Makes modules of that kind, which share a group."""
    sharding = _Sharding(modules, group, reshard)
    for each in modules:
        cls = type(each)
        if (kind, cls) not in _classes:
            _classes[kind, cls] = type(f"{name}{cls.__name__}", (kind, cls), {})
        object.__setattr__(each, "__class__", _classes[kind, cls])  # a compiled module hands attributes on
        each.__dict__["_sharding"] = sharding


def _checked_mesh(modules: Sequence[Any], mesh: Any, what: str = "fully_shard") -> DeviceMesh:
    if not modules:
        raise ValueError(f"{what}: expected a Module or a list of them, got an empty list")
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(f"{what}: expected a Module, got {type(module).__name__}")
        name = type(module).__name__
        if isinstance(module, FSDPModule):
            raise ValueError(f"{what}: {name} was sharded before; call it once for a module")
        if type(module).forward is nn.Module.forward and "forward" not in module.__dict__:
            raise ValueError(f"{what}: {name} has no forward of its own; shard the modules in it, one by one")
        if sum(module is m for each in modules for m in each.modules()) > 1:
            raise ValueError(f"{what}: {name} is twice in the list, or inside of another module there")
    if mesh is None:
        device = next((p.device.type for module in modules for p in module.parameters()), "cpu")
        if device == "meta":  # whose values come later, with to_empty
            device = "cuda" if cuda.is_available() else "cpu"
        mesh = init_device_mesh(device, (dist.get_world_size(),))
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"{what}: expected a DeviceMesh, got {type(mesh).__name__}")
    if mesh.ndim > 2:
        raise ValueError(f"{what}: expected a mesh of one axis, or of two (copies, parts), got {mesh}")
    if mesh.get_coordinate() is None:
        raise ValueError(f"{what}: rank {mesh.get_rank()} is not in the mesh {mesh}")
    return mesh


def _own_parameters(
    modules: Sequence[nn.Module], ignored: set[int]
) -> list[tuple[Any, list[tuple[nn.Module, str]]]]:
    """(parameter, [(module that has it, its full name)]) of all that no sharded module inside has."""
    out: dict[int, tuple[Any, list[tuple[nn.Module, str]]]] = {}
    taken = {id(entry.shard) for m in modules for s in _shardings(m) for entry in s.group.entries}
    named = [pair for module in modules for pair in module.named_modules()]
    inside = {id(x) for _, m in named if isinstance(m, FSDPModule) for x in m.modules()}
    for path, m in named:
        if id(m) in inside:
            continue
        for name, p in m._parameters.items():
            if p is None or id(p) in ignored:
                continue
            full = f"{path}.{name}" if path else name
            if isinstance(m, nn.Embedding | nn.EmbeddingBag) and (m.sparse or m.max_norm is not None):
                option = "sparse gradients" if m.sparse else "max_norm, which changes it in forward,"
                raise ValueError(
                    f"fully_shard: {full}, a table with {option} cannot be split; pass it in ignored_params"
                )
            if id(p) in taken:
                raise ValueError(
                    f"fully_shard: {full} is shared with a module that was sharded by itself; call "
                    "fully_shard only for a module that has both"
                )
            out.setdefault(id(p), (p, []))[1].append((m, full))
    return list(out.values())
