"""The class DTensor: an object that is what this rank holds, and answers for the whole.

The memory and the history of a DTensor are those of its local part, so that autograd and optimizers work on
it as on any tensor; what it says of itself (shape, size, ..), and every op on it, is taken over by
`HANDLERS`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import warptape
from warptape import _C

from ..._tensor import Tensor
from ...distributed import DeviceMesh
from ...overrides import _name_of as name_of
from ..tensor.placement import Partial, Placement, Replicate
from .layout import Layout, normalized
from .transfer import gradient_from, gradient_to, move, moved, of_gradient

# By the name of a function, method or property: handler(func, args, kwargs), called with subclasses off.
ANY_OP = ""  # the handler of all others
HANDLERS: dict[str, Callable[[Any, tuple, dict[str, Any]], Any]] = {}
_options = threading.local()


def replicates_plain() -> bool:
    """Whether plain tensors are taken for replicated ones: within implicit_replication()."""
    return getattr(_options, "replicate", False)


@contextlib.contextmanager
def implicit_replication() -> Iterator[None]:
    """Within it, plain tensors that meet a DTensor are taken for replicated."""
    before, _options.replicate = replicates_plain(), True
    try:
        yield
    finally:
        _options.replicate = before


class DTensor(Tensor):
    """A tensor whose parts lie on the ranks of a mesh.

    Made by distribute_tensor, DTensor.from_local and the factories. Ops run on the parts, with collectives
    where the placements ask for them, and are recorded; an op without a sharding rule raises
    NotImplementedError, unless all that it gets is replicated.
    """

    _spec: Layout

    def __new__(
        cls, local_tensor: Tensor, spec: Layout | None = None, *, requires_grad: bool = False
    ) -> DTensor:
        """This rank's part, by its layout; for code that has both."""
        if not isinstance(spec, Layout):
            raise TypeError("DTensor: make one with DTensor.from_local or distribute_tensor")
        made = Tensor._make_subclass(cls, local_tensor, requires_grad)
        made._spec = spec
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with _C.DisableTorchFunctionSubclass():
            return HANDLERS.get(name_of(func), HANDLERS[ANY_OP])(func, args, kwargs or {})

    @staticmethod
    def _autograd_grad(grad: Any, *args: Any) -> Any:
        with _C.DisableTorchFunctionSubclass():
            return HANDLERS["autograd.grad"](grad, args, {})

    # ---- between ranks and the whole ----

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
            shape: of the whole, for parts that are not all of one size.
            grad_placements: where the gradient that `local_tensor` gets shall lie, in place of Note
                [gradients].
        """
        mesh = _mesh(device_mesh, "DTensor.from_local")
        local = plain(local_tensor)
        where = normalized(placements, mesh, local.ndim, "DTensor.from_local")
        whole = list(local.shape)
        for axis, each in enumerate(where):
            if each.is_shard() and shape is None:
                whole[each.dim] *= mesh.size(axis)  # type: ignore[attr-defined]
        layout = Layout(mesh, where, tuple(whole if shape is None else shape), local.dtype)
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
                    with warptape.no_grad():
                        warptape.distributed.broadcast(local.detach(), group=group, group_src=0)
        if grad_placements is not None:
            given = normalized(grad_placements, mesh, local.ndim, "DTensor.from_local")
            local = gradient_to(local, layout, given)
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
        """The whole, on every rank; collective, differentiable."""
        whole = self.redistribute(placements=[Replicate()] * self._spec.mesh.ndim)
        return whole.to_local(grad_placements=grad_placements)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The DeviceMesh over which its parts lie."""
        return self._spec.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """A placement for each axis of the mesh."""
        return self._spec.placements

    @property
    def _local_tensor(self) -> Tensor:
        """What this rank holds, without history."""
        return plain(self).detach()

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
        """As Tensor.backward, of the whole. Collective."""
        whole = self.redistribute(placements=of_gradient(self.placements))
        if isinstance(gradient, DTensor):
            gradient = moved(plain(gradient), gradient._spec, whole.placements)
        with _C.DisableTorchFunctionSubclass():
            Tensor.backward(plain(whole), gradient, retain_graph, create_graph, inputs)

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """hook(gradient) -> gradient or None, of DTensors."""
        spec = self._spec

        def local_hook(g: Tensor) -> Any:
            want = spec.with_placements(of_gradient(spec.placements))
            out = hook(g if isinstance(g, DTensor) else wrap(g, want))
            if isinstance(out, DTensor):
                return moved(plain(out), out._spec, want.placements)
            return out

        return super().register_hook(local_hook)

    # ---- checkpoints: see warptape.distributed.checkpoint ----

    def like_whole(self, whole: Tensor) -> DTensor:
        """A whole tensor of this shape, which all ranks have, placed as this one."""
        if tuple(whole.shape) != self._spec.shape:
            raise ValueError(f"expected a tensor of {list(self._spec.shape)}, got {list(whole.shape)}")
        everywhere = self._spec.with_placements((Replicate(),) * self._spec.mesh.ndim)
        return wrap(move(plain(whole).detach(), everywhere, self._spec.placements).clone(), self._spec)

    def filled_as_whole(self, fill: Callable[[Tensor], Any]) -> DTensor:
        """Takes its part of a whole tensor that `fill` has filled, as initial values are that depend on the
        shape or are drawn."""
        local = plain(self)
        whole = warptape.empty(self._spec.shape, dtype=local.dtype, device=local.device)
        with warptape.no_grad(), _C.DisableTorchFunctionSubclass():
            fill(whole)
            local.copy_(plain(self.like_whole(whole)))
        return self

    def held_slices(self) -> tuple[tuple[int, ...], int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """As a ParallelParameter's: shape of the whole, and (start, shape) of what lies here."""
        if any(isinstance(p, Partial) for p in self.placements):
            raise ValueError(
                f"a tensor with placements {list(self.placements)} is still to be summed; redistribute it"
            )
        ranges = self._spec.ranges()
        return self._spec.shape, 0, [(tuple(s for s, _ in ranges), tuple(n for _, n in ranges))]


def _mesh(mesh: DeviceMesh | None, where: str) -> DeviceMesh:
    mesh = mesh or DeviceMesh.current()
    if not isinstance(mesh, DeviceMesh):
        raise ValueError(f"{where}: expected a device_mesh, got {mesh!r}; make one with init_device_mesh")
    return mesh


def plain(t: Tensor) -> Tensor:
    """What this rank holds, with its history, as a plain tensor."""
    return _C._as_subclass(t, Tensor) if type(t) is not Tensor else t


def wrap(local: Tensor, layout: Layout) -> DTensor:
    """A plain tensor, with its history, as a part of a whole."""
    made: Any = _C._as_subclass(local, DTensor)
    made._spec = layout
    return made


def _rebuilt(local: Tensor, mesh: Any, placements: Any, shape: Any, trained: bool, parameter: bool) -> Any:
    made: Any = DTensor(local, Layout(mesh, placements, shape, local.dtype), requires_grad=trained)
    if parameter:
        made._is_param = True
    return made
