"""How DTensors are made: of full tensors, of modules, and anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import core as wt
from ... import distributed as dist
from ... import nn
from ...core import Tensor
from ...distributed import DeviceMesh
from .layout import Layout, normalized
from .placement import Partial, Placement, Replicate
from .tensor import DTensor, _mesh, plain
from .transfer import move


def distribute_tensor(
    tensor: Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor:
    """A full tensor, split among the ranks of a mesh as the placements say; replicated by default.

    Args:
        src_data_rank: whose values count along each axis, as a rank of that axis: they are sent to all.
            None takes each rank's own, without a collective; they must be equal.

    Raises: ValueError for Partial, and for a DTensor with other placements: redistribute that.
    """
    mesh = _mesh(device_mesh, "distribute_tensor")
    where = normalized(placements, mesh, tensor.ndim, "distribute_tensor")
    if any(isinstance(p, Partial) for p in where):
        raise ValueError("distribute_tensor: expected Shard or Replicate; a whole is no partial sum")
    if isinstance(tensor, DTensor):
        if tensor.device_mesh != mesh or tensor.placements != where:
            raise ValueError("distribute_tensor: its placements differ; call its redistribute")
        return tensor
    if not tensor.is_leaf:
        raise RuntimeError(
            "`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf tensor!"
        )
    full_tensor = plain(tensor).detach()
    layout = Layout(mesh, (Replicate(),) * mesh.ndim, tuple(tensor.shape), tensor.dtype)
    if src_data_rank is not None and mesh.get_coordinate() is not None and not full_tensor.is_meta:
        full_tensor = full_tensor.clone(memory_format=wt.contiguous_format)
        for axis in range(mesh.ndim):
            if mesh.size(axis) > 1:
                dist.broadcast(full_tensor, group=mesh.get_group(axis), group_src=src_data_rank)
    if mesh.get_coordinate() is None:
        shard = full_tensor.new_empty((0,) * max(full_tensor.ndim, 1))
    else:
        shard = move(full_tensor, layout, where)
        # Ranks of one process may share the full tensor, and a part must not keep the memory of all.
        shard = (
            shard.clone() if shard.data_ptr() == plain(tensor).data_ptr() or shard is full_tensor else shard
        )
    out: Any = DTensor(shard, layout.with_placements(where), requires_grad=tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        out._is_param = True
    return out


def distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[[nn.Module, Any, DeviceMesh], Any] | None = None,
    output_fn: Callable[[nn.Module, Any, DeviceMesh], Any] | None = None,
) -> nn.Module:
    """Makes DTensors of a module's parameters and buffers, in place; returns it.

    Args:
        partition_fn: (name, module, mesh) for each module inside; replaces parameters by DTensors. What it
            leaves as it is is replicated.
        input_fn, output_fn: (module, inputs or outputs, mesh), before and after the forward.
    """
    mesh = _mesh(device_mesh, "distribute_module")
    for name, submodule in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
        for key, value in list(submodule._parameters.items()):
            if value is not None and not isinstance(value, DTensor):
                distributed = distribute_tensor(value.detach(), mesh)
                submodule.register_parameter(key, nn.Parameter(distributed, value.requires_grad))
        for key, value in list(submodule._buffers.items()):
            if value is not None and not isinstance(value, DTensor):
                submodule._buffers[key] = distribute_tensor(value, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda m, inputs: input_fn(m, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda m, inputs, outputs: output_fn(m, outputs, mesh))
    return module


def _sizes(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _factory(name: str, make: Callable[..., Tensor], random: bool, doc: str) -> Callable[..., DTensor]:
    def factory(
        *size: Any,
        requires_grad: bool = False,
        dtype: Any = None,
        layout: Any = wt.strided,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        **more: Any,
    ) -> DTensor:
        mesh = _mesh(device_mesh, name)
        if layout is not wt.strided:
            raise ValueError(f"{name}: expected layout strided, got {layout}")
        shape = _sizes(size) if "size" not in more else tuple(more.pop("size"))
        where = normalized(placements, mesh, len(shape), name)
        if any(isinstance(p, Partial) for p in where):
            raise ValueError(f"{name}: expected Shard or Replicate")
        lies = Layout(mesh, where, shape, dtype or wt.get_default_dtype())
        options = {"dtype": dtype, "device": mesh.device_type, **more}
        if random:
            replicated = lies.with_placements((Replicate(),) * mesh.ndim)
            local = move(make(shape, **options), replicated, where)
            local = local.clone()
        else:
            local = make(lies.local_shape(), **options)
        lies = Layout(mesh, where, shape, local.dtype)
        return DTensor(local, lies, requires_grad=requires_grad)

    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = doc
    return factory


_DRAWN = (
    "Every rank draws the whole, as one process would (the generators must be alike), and keeps its part."
)
zeros = _factory("zeros", wt.zeros, False, "Zeros, of the whole's size.")
ones = _factory("ones", wt.ones, False, "Ones, of the whole's size.")
empty = _factory("empty", wt.empty, False, "Memory that is not set, of the whole's size.")
rand = _factory("rand", wt.rand, True, f"Numbers from 0 to 1, of the whole's size. {_DRAWN}")
randn = _factory("randn", wt.randn, True, f"Normal numbers, of the whole's size. {_DRAWN}")


def full(size: Any, fill_value: Any, **options: Any) -> DTensor:
    """A DTensor of one value, of the full tensor's size.

    Args:
        size: of the full tensor.
        fill_value: a number.
        **options: device_mesh, placements, dtype and the like.
    """

    def make(shape: Any, **given: Any) -> Tensor:
        return wt.full(shape, fill_value, **given)

    return _factory("full", make, False, "")(size, **options)
