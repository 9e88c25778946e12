"""The class DTensor: an object that is what this rank holds, and answers for the full tensor.

The memory and the history of a DTensor are those of its local part, so that autograd and optimizers work on
it as on any tensor; what it says of itself (shape, size, ..), and every op on it, is taken over by
`HANDLERS`.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ... import _C
from ... import core as wt
from ... import distributed as dist
from ...core import Tensor
from ...core.by_name import HandledTensor, Handlers
from ...core.placed import Placed
from ...core.protocols import OwnGradients
from ...distributed import DeviceMesh
from .layout import Layout, normalized
from .placement import Partial, Placement, Replicate, Shard, _StridedShard
from .transfer import gradient_from, gradient_to, move, moved, of_gradient

HANDLERS = Handlers(again=False)
_options = threading.local()


def replicates_plain() -> bool:
    """Whether plain tensors are taken for replicated ones: within implicit_replication()."""
    return getattr(_options, "replicate", False)


@contextlib.contextmanager
def implicit_replication() -> Iterator[None]:
    """Within it, plain tensors that meet a DTensor are taken for replicated.

    It is for tensors that every rank makes alike, as masks and constants.
    """
    before, _options.replicate = replicates_plain(), True
    try:
        yield
    finally:
        _options.replicate = before


class DTensor(Placed, OwnGradients, HandledTensor):
    """A tensor whose shards lie on the ranks of a mesh.

    Made by distribute_tensor, DTensor.from_local and the factories. Ops run on the shards, with collectives
    where the placements ask for them, and are recorded; an op without a sharding rule raises
    NotImplementedError, unless all that it gets is replicated.
    """

    handlers = HANDLERS
    _spec: Layout
    reduced_by_group = False  # its gradient does not come by the tape: fully_shard puts it there

    def __new__(
        cls, local_tensor: Tensor, spec: Layout | None = None, *, requires_grad: bool = False
    ) -> DTensor:
        """This rank's shard, by its layout; for code that has both."""
        if not isinstance(spec, Layout):
            raise TypeError("DTensor: make one with DTensor.from_local or distribute_tensor")
        tensor = Tensor._make_subclass(cls, local_tensor, requires_grad)
        tensor._spec = spec
        return tensor

    @staticmethod
    def autograd_grad(grad: Any, *args: Any) -> Any:
        """The gradients, placed as the inputs are; see OwnGradients."""
        with _C.DisableTorchFunctionSubclass():
            return HANDLERS["autograd.grad"](grad, args, {})

    # ---- between ranks and the full tensor ----

    @staticmethod
    def from_local(
        local_tensor: Tensor,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Any = None,
        stride: Any = None,
        grad_placements: Sequence[Placement] | None = None,
    ) -> DTensor:
        """The tensor of which this rank holds `local_tensor`; differentiable.

        Args:
            placements: for each axis of the mesh; replicated on all if None.
            run_check: sends rank 0's values to all ranks of an axis on which the tensor is replicated.
            shape: of the full tensor, for shards that are not all of one size.
            grad_placements: where the gradient that `local_tensor` gets shall lie, in place of Note
                [gradients].
        """
        mesh = _mesh(device_mesh, "DTensor.from_local")
        local = plain(local_tensor)
        where = normalized(placements, mesh, local.ndim, "DTensor.from_local")
        full_shape = list(local.shape)
        for axis, each in enumerate(where):
            if each.is_shard() and shape is None:
                full_shape[each.dim] *= mesh.size(axis)  # type: ignore[attr-defined]
        layout = Layout(mesh, where, tuple(full_shape if shape is None else shape), local.dtype)
        if mesh.get_coordinate() is None:
            local = local.new_empty((0,)) if local.numel() else local
        elif tuple(local.shape) != layout.local_shape():
            raise ValueError(
                f"DTensor.from_local: of a tensor {list(layout.shape)} with placements {list(where)} this "
                f"rank holds {list(layout.local_shape())}, got {list(local.shape)}; pass shape="
            )
        if run_check:
            local = local.view_as(local)
            for axis, each in enumerate(where):
                if isinstance(each, Replicate):
                    group = mesh.get_group(axis)
                    with wt.no_grad():
                        dist.broadcast(local.detach(), group=group, group_src=0)
        if grad_placements is not None:
            of_gradient = normalized(grad_placements, mesh, local.ndim, "DTensor.from_local")
            local = gradient_to(local, layout, of_gradient)
        return wrap(local, layout)

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """What this rank holds, differentiable. `grad_placements` is how its gradient will lie, where that is
        not as the tensor lies: [Partial()] for a replicated tensor of which every rank uses all for work of
        its own."""
        local, spec = plain(self), self._spec
        if grad_placements is None:
            return local
        where = normalized(grad_placements, spec.mesh, spec.ndim, "to_local")
        return gradient_from(local, spec, where)

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: Any = None,
        backward_dtype: Any = None,
    ) -> DTensor:
        """The same tensor with other placements; collective, differentiable. Raises NotImplementedError for
        another mesh."""
        spec = self._spec
        if device_mesh is not None and device_mesh != spec.mesh:
            raise NotImplementedError("redistribute: from one mesh to another is not supported")
        if placements is None:
            raise RuntimeError("placements is needed for redistribute!")
        if backward_dtype is not None:
            raise NotImplementedError("redistribute: backward_dtype is not supported")
        where = normalized(placements, spec.mesh, spec.ndim, "redistribute")
        local = plain(self)
        if forward_dtype is not None:
            local = local.to(forward_dtype)
        return wrap(moved(local, spec, where), spec.with_placements(where))

    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """The whole, on every rank; collective, differentiable.

        Args:
            grad_placements: how the gradient lies; replicated if None.
        """
        full_tensor = self.redistribute(placements=[Replicate()] * self._spec.mesh.ndim)
        return full_tensor.to_local(grad_placements=grad_placements)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The DeviceMesh over which its shards lie."""
        return self._spec.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """A placement for each axis of the mesh."""
        return self._spec.placements

    @property
    def _local_tensor(self) -> Tensor:
        """What this rank holds, without history."""
        return plain(self).detach()

    @property
    def norm_groups(self) -> tuple[Any, ...]:
        """The groups of ranks among which it is split: over these a norm adds up."""
        return self._spec.groups_of_shards()

    @property
    def data(self) -> Any:
        """The same values without history, on the same memory."""
        with _C.DisableTorchFunctionSubclass():
            return wrap(_DATA.__get__(self), self._spec)

    @data.setter
    def data(self, values: Tensor) -> None:
        _DATA.__set__(self, values)
        spec = values._spec if isinstance(values, DTensor) else self._spec
        self._spec = replace(spec, dtype=values.dtype)

    # ---- what Python asks of an object ----

    def __len__(self) -> int:
        if not self._spec.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._spec.shape[0]

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        return (
            f"DTensor(local_tensor={self._local_tensor!r}, device_mesh={self._spec.mesh!r}, "
            f"placements={self._spec.placements!r})"
        )

    def tolist(self) -> Any:  # noqa: D102
        return self.full_tensor().tolist()

    def numpy(self, *, force: bool = False) -> Any:  # noqa: D102
        return self.full_tensor().numpy(force=force)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.full_tensor().__array__(dtype, copy)

    def __bool__(self) -> bool:
        return bool(self.full_tensor())

    def __float__(self) -> float:
        return float(self.full_tensor())

    def __int__(self) -> int:
        return int(self.full_tensor())

    def __index__(self) -> int:
        return self.full_tensor().__index__()

    def __complex__(self) -> complex:
        return complex(self.full_tensor())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            local = plain(self)
            if not self.is_leaf:
                raise RuntimeError("deepcopy: only a DTensor that was not computed from others can be copied")
            copy = type(self)(local.detach().clone(), self._spec, requires_grad=self.requires_grad)
            copy.__dict__.update(
                {k: v for k, v in self.__dict__.items() if k not in ("_spec", "_post_hooks")}
            )
            memo[id(self)] = copy
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        spec, mesh = self._spec, self._spec.mesh
        state = (self._local_tensor, mesh, spec.placements, spec.shape, self.requires_grad)
        return _rebuilt, (*state, bool(getattr(self, "_is_param", False)))

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """As Tensor.backward, of the full tensor. Collective.

        Args:
            gradient: of the full tensor; 1 if None.
            retain_graph, create_graph, inputs: as of Tensor.backward.
        """
        full_tensor = self.redistribute(placements=of_gradient(self.placements))
        if isinstance(gradient, DTensor):
            gradient = moved(plain(gradient), gradient._spec, full_tensor.placements)
        with _C.DisableTorchFunctionSubclass():
            Tensor.backward(plain(full_tensor), gradient, retain_graph, create_graph, inputs)

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """hook(gradient) -> gradient or None, of DTensors.

        Args:
            hook: called when the gradient is there.

        Raises: RuntimeError for a parameter of fully_shard.
        """
        if self.reduced_by_group:
            raise RuntimeError(
                "register_hook: fully_shard reduces this parameter's gradient outside of the tape, where no "
                "such hook is called; use register_post_accumulate_grad_hook"
            )
        spec = self._spec

        def local_hook(g: Tensor) -> Any:
            want = spec.with_placements(of_gradient(spec.placements))
            out = hook(g if isinstance(g, DTensor) else wrap(g, want))
            if isinstance(out, DTensor):
                return moved(plain(out), out._spec, want.placements)
            return out

        return super().register_hook(local_hook)

    # ---- optimizers and checkpoints ----

    def like_local(self, local: Tensor) -> DTensor:
        """What this rank holds of another tensor that lies as this one.

        Args:
            local: this rank's shard.
        """
        return wrap(local, replace(self._spec, dtype=local.dtype))

    def like_full(self, full_tensor: Tensor) -> DTensor:
        """A tensor of this shape, which all ranks have or which is a DTensor, placed as this one. Collective
        for a DTensor that lies otherwise."""
        if tuple(full_tensor.shape) != self._spec.shape:
            raise ValueError(f"expected a tensor of {list(self._spec.shape)}, got {list(full_tensor.shape)}")
        spec = self._spec
        if isinstance(full_tensor, DTensor):
            if full_tensor.device_mesh != spec.mesh:
                return self.like_full(full_tensor_of(full_tensor))
            if full_tensor.placements == spec.placements:
                return full_tensor
            return self.like_local(move(plain(full_tensor).detach(), full_tensor._spec, spec.placements))
        everywhere = spec.with_placements((Replicate(),) * spec.mesh.ndim)
        return self.like_local(move(plain(full_tensor).detach(), everywhere, spec.placements).clone())

    def filled_as_full(self, fill: Callable[[Tensor], Any]) -> DTensor:
        """Takes its shard of a full tensor that `fill` has filled, as initial values are that depend on the
        shape or are drawn. Ranks that have the same shard take it from the first, by a collective."""
        local, spec = plain(self).detach(), self._spec
        with wt.no_grad(), _C.DisableTorchFunctionSubclass():
            if local.is_meta or all(isinstance(where, Replicate) for where in spec.placements):
                fill(local)
                return self
            full_tensor = wt.empty(spec.shape, dtype=local.dtype, device=local.device)
            fill(full_tensor)
            everywhere = spec.with_placements((Replicate(),) * spec.mesh.ndim)
            shard = move(full_tensor, everywhere, spec.placements).contiguous()
            for axis, where in enumerate(spec.placements):
                if isinstance(where, Replicate) and spec.mesh.size(axis) > 1:
                    dist.broadcast(shard, group=spec.mesh.get_group(axis), group_src=0)
            local.copy_(shard)
        return self

    def held_slices(self) -> tuple[tuple[int, ...], int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """Where in the full tensor this rank's shard lies: the shape of the full tensor, and (start, shape)
        of the slices that lie one after the other along a dim of the shard."""
        if any(isinstance(p, Partial) for p in self.placements):
            raise ValueError(
                f"a tensor with placements {list(self.placements)} is still to be summed; redistribute it"
            )
        regions = self._spec.regions()
        along = max(range(len(regions)), key=lambda d: len(regions[d]), default=0)  # others have one range
        slices = []
        for here in regions[along] if regions else [(0, 0)]:
            held = [here if d == along else ranges[0] for d, ranges in enumerate(regions)]
            slices.append((tuple(start for start, _ in held), tuple(n for _, n in held)))
        return self._spec.shape, along, slices


_DATA: Any = Tensor.data


def _mesh(mesh: DeviceMesh | None, where: str) -> DeviceMesh:
    mesh = mesh or DeviceMesh.current()
    if not isinstance(mesh, DeviceMesh):
        raise ValueError(f"{where}: expected a device_mesh, got {mesh!r}; make one with init_device_mesh")
    return mesh


def plain(t: Tensor) -> Tensor:
    """What this rank holds, with its history, as a plain tensor.

    Args:
        t: any tensor.
    """
    return _C._as_subclass(t, Tensor) if type(t) is not Tensor else t


def full_tensor_of(t: Tensor) -> Tensor:
    """The whole of a DTensor without history; any other tensor as it is. Collective.

    Args:
        t: any tensor.
    """
    return wrap(plain(t).detach(), t._spec).full_tensor() if isinstance(t, DTensor) else t


def wrap(local: Tensor, layout: Layout) -> DTensor:
    """A plain tensor, with its history, as a part of a full tensor.

    Args:
        local: what this rank holds.
        layout: of the full tensor.
    """
    tensor: Any = _C._as_subclass(local, DTensor)
    tensor._spec = layout
    return tensor


def _rebuilt(local: Tensor, mesh: Any, placements: Any, shape: Any, trained: bool, parameter: bool) -> Any:
    tensor: Any = DTensor(local, Layout(mesh, placements, shape, local.dtype), requires_grad=trained)
    if parameter:
        tensor._is_param = True
    return tensor


def place(parameter: Any, mesh: DeviceMesh, where: Sequence[Placement]) -> None:
    """Makes a DTensor of a Parameter that all ranks have alike, or splits one further. It stays the same
    object, so that modules which share it go on sharing it and an optimizer that has it keeps it.

    Args:
        mesh: of a DTensor, its own axes come last.
        where: placements on the first axes of `mesh`; on the others the parameter lies already.
    """
    own = isinstance(parameter, DTensor)
    if own and parameter.device_mesh.ndim == mesh.ndim:  # by another module that shares it
        return
    before = parameter.placements if own else ()
    values, at = plain(parameter).detach(), mesh.get_coordinate()
    added: list[Placement] = []
    for axis, each in enumerate(where):
        if isinstance(each, Shard):
            parts = [mesh.size(len(where) + i) for i, p in enumerate(before) if p.is_shard(each.dim)]
            if parts:
                each = _StridedShard(each.dim, split_factor=math.prod(parts))
            values = each.take(values, at[axis], mesh.size(axis))  # type: ignore[index]
        added.append(each)
    shape = parameter._spec.shape if own else tuple(parameter.shape)
    become(parameter, values, Layout(mesh, (*added, *before), shape, values.dtype))


def become(parameter: Any, values: Tensor, layout: Layout) -> None:
    """Makes a Parameter a DTensor; it stays the same object.

    Args:
        parameter: plain or a DTensor.
        values: what this rank holds.
        layout: how it lies.
    """
    parameter.grad = None
    _DATA.__set__(parameter, values)
    parameter.__class__ = DTensor
    parameter._spec = layout
    parameter._is_param = True
