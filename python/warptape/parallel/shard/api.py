"""`fully_shard` and what a module that went through it can do: torch.distributed.fsdp's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import warptape

from ... import nn
from ..._tensor import Tensor
from ...core.pytree import tree_map_only
from ...distributed import DeviceMesh, init_device_mesh
from ...nn.parallel.distributed import _tensors_in
from ..tensor.placement import ParallelParameter, Replicate, Shard, axis_of, check_mesh, place_again
from .group import Entry, MixedPrecisionPolicy, ParameterGroup
from .offload import HostParts
from .progress import Progress

Model = TypeVar("Model", bound=nn.Module)
_classes: dict[type, type] = {}


@dataclass
class OffloadPolicy:
    """Parameters stay on their device."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Parts, their gradients and so the optimizer's state lie on the CPU, wholes on the mesh's device for the
    time that a module needs them. With `pin_memory` parts and gradients are in page-locked memory, so that
    copies run while the device computes."""

    pin_memory: bool = True


class UnshardHandle:
    """What unshard(async_op=True) returns."""

    def __init__(self, group: ParameterGroup) -> None:
        self.group = group

    def wait(self) -> None:
        """Modules have whole parameters then."""
        self.group.make_whole()
        self.group.fresh = True


class _Sharding:
    """What fully_shard adds to a module, or to several that share a group of parameters: the group, and hooks
    on forward and backward. Of several modules the first to run makes the group whole, the last lets it go.
    """

    def __init__(
        self, modules: Sequence[nn.Module], group: ParameterGroup, reshard_after_forward: bool | None
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
        """This module's forward is the outermost: all below are put in its order."""
        self.progress, self.is_root = Progress(), True
        for each in _shardings(module):
            each.progress = each.group.progress = self.progress
            each.is_root = each is self
            # The root's parameters would be put together again at once for backward.
            each.group.reshard_after_forward = (
                each is not self if each.reshard_given is None else each.reshard_given
            )
            self.progress.groups.append(each.group)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.progress is None:
            self.lead(module)
        assert self.progress is not None
        if self.to_run:  # another module of the group ran before
            self.group.make_whole()
        else:
            if self.is_root:
                self.progress.begin()
            self.progress.enter(self.group, self.ahead_forward)
            if not self.progress.backward and len(self.modules) > 1:
                self.to_run = set(self.modules)
        dtype = self.policy.param_dtype
        if dtype is not None and self.policy.cast_forward_inputs:
            args, kwargs = _cast((args, kwargs), dtype)
        frozen = self.group.trained() < len(self.group.entries)
        if frozen and warptape.is_grad_enabled() and not self.progress.backward:
            args, kwargs = self.watched(args, kwargs)
        return args, kwargs

    def watched(self, args: Any, kwargs: Any) -> Any:
        """The inputs, such that backward tells when it has left the module."""
        left = 0

        def tell(gradient: Tensor) -> None:
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
            seen.register_hook(tell)
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
        if warptape.is_grad_enabled() and not again:
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
        """This module's parameters are parts again."""
        self._sharding.group.reshard()

    def _groups(self, recurse: bool) -> list[ParameterGroup]:
        return [s.group for s in _shardings(self)] if recurse else [self._sharding.group]  # type: ignore[arg-type]

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """With False, gradients stay whole, on this rank, and add up until a backward pass with True."""
        for group in self._groups(recurse):
            group.sync = requires_gradient_sync

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """With False, parameters stay whole after backward. They must not be when an optimizer steps."""
        for group in self._groups(recurse):
            group.reshard_after_backward = reshard_after_backward

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """As fully_shard's argument."""
        for each in _shardings(self) if recurse else [self._sharding]:  # type: ignore[arg-type]
            each.reshard_given = each.group.reshard_after_forward = reshard_after_forward

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Sums of gradients over ranks are divided by this instead of by the number of ranks."""
        if not factor > 0:
            raise ValueError(f"set_gradient_divide_factor: expected a positive number, got {factor}")
        self._sharding.group.divisor = float(factor)

    def set_modules_to_forward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """In forward, while this module computes, the parameters of these are put together."""
        self._sharding.ahead_forward = _groups_of(modules, "set_modules_to_forward_prefetch")

    def set_modules_to_backward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """The same in backward."""
        self._sharding.ahead_backward = _groups_of(modules, "set_modules_to_backward_prefetch")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        for group in self._groups(True):
            group.reshard()
        super()._apply(fn, recurse)  # type: ignore[misc]
        for group in self._groups(True):
            group.take_moved()
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the parts, also between forward and backward, when modules have whole parameters."""
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


def _shardings(module: nn.Module) -> list[_Sharding]:
    found = [m._sharding for m in module.modules() if isinstance(m, FSDPModule)]
    return list(dict.fromkeys(found))


def _cast(value: Any, dtype: Any) -> Any:
    """The same with all floating tensors in lists, tuples and dicts cast."""
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, value)


# ---- fully_shard ----


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Lets a method of a sharded module be called as its forward is, with whole parameters. Of another module
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
    reshard_after_forward: bool | None = None,
    shard_placement_fn: Callable[[Any], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008
    offload_policy: Any = None,
    ignored_params: Iterable[Any] | None = None,
) -> Model | Sequence[Model]:
    """Keeps of each parameter a part on each rank; whole they are for the time that the module needs them.

    Call it for the layers and then for the model: parameters of a module are put together at once, without
    those of modules inside that were sharded before. Returns the module, changed in place: it is an
    FSDPModule, too, and its parameters are ParallelParameters, the same objects as before.
    All ranks need the same values, as from one seed. Not collective.

    Args:
        module: or a list of modules, whose parameters are one group: they are put together before the first
            of them runs and given back after the last.
        mesh: one axis, among whose ranks parameters are split; or two, the first of which has copies
            (hybrid sharding). By default all ranks of the job.
        reshard_after_forward: True frees whole parameters between forward and backward (ZeRO 3), False keeps
            them (ZeRO 2). None is False for the outermost module alone.
        shard_placement_fn: of a parameter its Shard(dim), the dim along which it is split; None stands for
            Shard(0), which needs no copy to put the whole together. Sizes need not divide.
        mp_policy: dtypes of wholes, of reduced gradients and of outputs.
        offload_policy: CPUOffloadPolicy keeps parts, gradients and the optimizer's state on the CPU, while
            the mesh's device computes; parameters may be on either before. None or OffloadPolicy does not.
        ignored_params: parameters that are left as they are.

    Raises: TypeError and ValueError, the same on every rank and before any change.
    """
    modules: list[Any] = list(module) if isinstance(module, list | tuple) else [module]
    mesh = _checked_mesh(modules, mesh)
    check_options(reshard_after_forward, mp_policy, shard_placement_fn, offload_policy)
    places = _own_parameters(modules, {id(p) for p in ignored_params or ()})
    host = None
    if isinstance(offload_policy, CPUOffloadPolicy) and mesh.device_type != "cpu":
        device = warptape.device(mesh.device_type, warptape.cuda.current_device())
        host = HostParts(device, offload_policy.pin_memory)
    joined = [_check_parameter(p, where[0], mesh, host is not None) for p, where in places]
    dims = [_dim_of(p, where[0][1], shard_placement_fn) for p, where in places]
    entries = [
        Entry(p, [(m, name.rpartition(".")[2]) for m, name in where], dim, host and host.device)
        for (p, where), dim in zip(places, dims, strict=True)
    ]
    shard = mesh.ndim - 1
    copies = mesh.get_group(0) if shard and mesh.size(0) > 1 else None
    group = ParameterGroup(entries, mesh.get_group(shard), copies, mp_policy, host)
    for entry, whole_mesh in zip(entries, joined, strict=True):
        place_again(entry.part, mesh, (*[Replicate()] * shard, Shard(entry.dim)), whole_mesh)
        if host is not None:
            host.keep(entry.part)
    sharding = _Sharding(modules, group, reshard_after_forward)
    for each in modules:
        cls = type(each)
        if cls not in _classes:
            _classes[cls] = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {})
        object.__setattr__(each, "__class__", _classes[cls])  # a compiled module hands attributes on
        each.__dict__["_sharding"] = sharding
    return module


def _checked_mesh(modules: Sequence[Any], mesh: Any) -> DeviceMesh:
    if not modules:
        raise ValueError("fully_shard: expected a Module or a list of them, got an empty list")
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(f"fully_shard: expected a Module, got {type(module).__name__}")
        name = type(module).__name__
        if isinstance(module, FSDPModule):
            raise ValueError(f"fully_shard: {name} was sharded before; call it once for a module")
        if type(module).forward is nn.Module.forward and "forward" not in module.__dict__:
            raise ValueError(
                f"fully_shard: {name} has no forward of its own; shard the modules in it, one by one"
            )
        if sum(module is m for each in modules for m in each.modules()) > 1:
            raise ValueError(f"fully_shard: {name} is twice in the list, or inside of another module there")
    if mesh is None:
        device = next((p.device.type for module in modules for p in module.parameters()), "cpu")
        if device == "meta":  # whose values come later, with to_empty
            device = "cuda" if warptape.cuda.is_available() else "cpu"
        mesh = init_device_mesh(device, (warptape.distributed.get_world_size(),))
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"fully_shard: expected a DeviceMesh, got {type(mesh).__name__}")
    if mesh.ndim > 2:
        raise ValueError(f"fully_shard: expected a mesh of one axis, or of two (copies, parts), got {mesh}")
    if mesh.get_coordinate() is None:
        raise ValueError(f"fully_shard: rank {mesh.get_rank()} is not in the mesh {mesh}")
    for axis in range(mesh.ndim):
        check_mesh(axis_of(mesh, axis), "fully_shard")
    return mesh


def check_options(reshard: Any, policy: Any, placement: Any, offload: Any) -> None:
    """Raises TypeError and NotImplementedError for fully_shard's options."""
    if reshard is not None and not isinstance(reshard, bool):
        raise TypeError(f"fully_shard: reshard_after_forward is True, False or None, got {reshard!r}")
    if not isinstance(policy, MixedPrecisionPolicy):
        raise TypeError(f"fully_shard: expected a MixedPrecisionPolicy, got {type(policy).__name__}")
    for name in ("param_dtype", "reduce_dtype", "output_dtype"):
        dtype = getattr(policy, name)
        if dtype is not None and not (isinstance(dtype, warptape.dtype) and dtype.is_floating_point):
            raise TypeError(f"fully_shard: {name} is a floating dtype or None, got {dtype!r}")
    if placement is not None and not callable(placement):
        raise TypeError(
            f"fully_shard: shard_placement_fn is called with a parameter, got {type(placement).__name__}"
        )
    if offload is not None and not isinstance(offload, OffloadPolicy):
        raise TypeError(f"fully_shard: expected an OffloadPolicy, got {type(offload).__name__}")


def _own_parameters(
    modules: Sequence[nn.Module], ignored: set[int]
) -> list[tuple[Any, list[tuple[nn.Module, str]]]]:
    """(parameter, [(module that has it, its full name)]) of all that no sharded module inside has."""
    out: dict[int, tuple[Any, list[tuple[nn.Module, str]]]] = {}
    taken = {id(entry.part) for m in modules for s in _shardings(m) for entry in s.group.entries}
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


def _dim_of(p: Any, name: str, placement: Callable[[Any], Shard | None] | None) -> int:
    """Along which dim a parameter is to be split. Raises TypeError and ValueError."""
    where = None if placement is None else placement(p)
    if where is None:
        return 0
    if not isinstance(where, Shard) or where.parts is not None:
        raise TypeError(f"fully_shard: shard_placement_fn gives Shard(dim) or None, got {where!r} for {name}")
    if not -p.ndim <= where.dim < p.ndim:
        raise ValueError(f"fully_shard: {name} is {list(p.shape)}, and shard_placement_fn gives {where!r}")
    return where.dim % p.ndim


def _check_parameter(p: Any, place: tuple[nn.Module, str], mesh: DeviceMesh, offloaded: bool) -> DeviceMesh:
    """Raises ValueError for one that cannot be split; returns the mesh of all axes along which it then is."""
    name = f"fully_shard: {place[1]}"
    if p.ndim == 0:
        raise ValueError(f"{name} has no dims; make it a parameter of shape [1]")
    if p.device.type not in (mesh.device_type, "meta", "cpu" if offloaded else "meta"):
        raise ValueError(f"{name} is on {p.device} and the mesh is of {mesh.device_type!r}; move one of them")
    if not isinstance(p, ParallelParameter):
        return mesh
    own, before = mesh.mesh_dim_names, p.device_mesh.mesh_dim_names
    if own is None or before is None or mesh._root is not p.device_mesh._root or set(own) & set(before):
        raise ValueError(
            f"{name} is split along {p.device_mesh}; take the axes for it and for fully_shard from one mesh, "
            "init_device_mesh(..., mesh_dim_names=('dp', 'tp'))"
        )
    axes: tuple[str, ...] = (*own, *before)
    return mesh._root[axes]
