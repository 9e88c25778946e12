"""Where the values of a tensor lie on a mesh axis, and the Parameter that carries it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import warptape
import warptape.distributed as dist

from ... import _C
from ..._tensor import Tensor
from ...distributed import DeviceMesh, functional
from ...distributed._state import state
from ...nn import Parameter
from ...nn.parameter import _rebuild_parameter


class Placement:
    """How a tensor lies on one axis of a mesh."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether it is split (along `dim`)."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Whether every rank holds all of it."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether the ranks hold what is still to be reduced (by `reduce_op`)."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True)
class Replicate(Placement):
    """Every rank holds the whole tensor, and the whole of its gradient."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True)
class Partial(Placement):
    """Every rank holds a summand of the tensor. A DTensor may also be what `reduce_op` makes of what the
    ranks hold: "avg", "max", "min" or "product".
    """

    reduce_op: str = "sum"

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"

    def __str__(self) -> str:
        return f"P({self.reduce_op})"


@dataclass(frozen=True)
class Shard(Placement):
    """Every rank holds a part along `dim`; where it does not divide, the last ranks hold less, or nothing.

    `parts` are the sizes of tensors that are joined along `dim` into one, such as queries, keys and values:
    each of them is split by itself, so that a rank holds a part of each. A single number is that of parts
    of one size.
    """

    dim: int
    parts: int | tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim}{'' if self.parts is None else f', parts={self.parts}'})"

    def __str__(self) -> str:
        return f"S({self.dim})"

    def sizes(self, size: int) -> list[int]:
        """The parts of a whole `size`."""
        if self.parts is None:
            return [size]
        if isinstance(self.parts, int):
            return [size // self.parts] * self.parts
        return list(self.parts)

    def check(self, size: int, ranks: int, what: str) -> None:
        """Raises ValueError if `what`, of that size, cannot be split."""
        if sum(self.sizes(size)) != size:
            raise ValueError(f"{what} is {size}, which is not what parts={self.parts} make up; change parts")
        for part in self.sizes(size):
            if part % ranks:
                of = f", in parts of {self.sizes(size)}," if self.parts else ""
                raise ValueError(
                    f"{what} is {size}{of} and does not divide among the {ranks} ranks of the mesh; make "
                    f"{'the part' if self.parts else 'it'} {-(-part // ranks) * ranks} instead of {part}, or "
                    "use another number of ranks"
                )

    def ranges(self, size: int, rank: int, ranks: int) -> list[tuple[int, int]]:
        """(start, length) in the whole of what a rank holds, in order."""
        out, start = [], 0
        for part in self.sizes(size):
            most = -(-part // ranks)
            before = min(rank * most, part)
            out.append((start + before, min(most, part - before)))
            start += part
        return out

    @staticmethod
    def local_shard_size_and_offset(curr_local_size: int, num_chunks: int, rank: int) -> tuple[int, int]:
        """(length, start) of a rank's part of a dim of that size."""
        [(start, length)] = Shard(0).ranges(curr_local_size, rank, num_chunks)
        return length, start

    def take(self, full: Tensor, rank: int, ranks: int) -> Tensor:
        """What a rank holds of the whole, in memory of its own."""
        ranges = self.ranges(int(full.shape[self.dim]), rank, ranks)
        return warptape.cat([full.narrow(self.dim, start, length) for start, length in ranges], self.dim)

    def join(self, held: Sequence[Tensor], size: int) -> Tensor:
        """The whole of that size, from what all ranks hold, `padded`."""
        parts = self.sizes(size)
        by_rank = [x.split([-(-part // len(held)) for part in parts], self.dim) for x in held]
        joined = [warptape.cat([x[i] for x in by_rank], self.dim) for i in range(len(parts))]
        cut = [x.narrow(self.dim, 0, part) for x, part in zip(joined, parts, strict=True)]
        return cut[0] if len(cut) == 1 else warptape.cat(cut, self.dim)

    def padded(self, held: Tensor, size: int, ranks: int) -> Tensor:
        """What a rank holds, as long along `dim` as what the first rank does."""
        most = sum(-(-part // ranks) for part in self.sizes(size))
        if held.shape[self.dim] == most:
            return held.contiguous()
        shape = list(held.shape)
        shape[self.dim] = most
        out = warptape.zeros(shape, dtype=held.dtype, device=held.device)
        out.narrow(self.dim, 0, held.shape[self.dim]).copy_(held)
        return out


Ranges = list[tuple[int, int]]  # (start, length) along a dim, in order


def _within(held: Ranges, start: int, length: int) -> Ranges:
    """Of what ranges make up, joined, a part, as ranges of the whole."""
    out, at = [], 0
    for begin, n in held:
        first, last = max(start, at), min(start + length, at + n)
        if first < last:
            out.append((begin + first - at, last - first))
        at += n
    return out


def _drawn_as_whole(name: str) -> Callable[..., Any]:
    """A method that draws: of a part, that part of what one process draws for the whole."""
    draw = getattr(Tensor, name)

    def method(self: ParallelTensor, *args: Any, **kwargs: Any) -> Any:
        return self.filled_as_whole(lambda whole: draw(whole, *args, **kwargs))

    method.__name__, method.__doc__ = name, draw.__doc__
    return method


class ParallelTensor(Tensor):
    """This rank's part of a tensor, or the whole where it is replicated. Ops on it return plain tensors of
    this rank's part: sums and norms, too. What draws numbers draws those of the whole.

    placements has an entry for each axis of device_mesh, full_shape is that of the whole.
    """

    __torch_function__ = _C._disabled_torch_function_impl

    device_mesh: DeviceMesh
    placements: tuple[Shard | Replicate, ...]
    full_shape: tuple[int, ...]
    # (mesh of one axis, placement, shape before), in the order in which it was split.
    splits: tuple[tuple[DeviceMesh, Shard | Replicate, tuple[int, ...]], ...]

    def full_tensor(self, local: Tensor | None = None) -> Tensor:
        """The whole, or the whole of another tensor that is split as this one is, such as its gradient or an
        optimizer's state. Collective; not recorded."""
        x = _values(self if local is None else local)
        for mesh, where, shape in reversed(self.splits):
            if isinstance(where, Shard):
                x = where.padded(x, shape[where.dim], mesh.size())
                held = warptape.empty((mesh.size(), *x.shape), dtype=x.dtype, device=x.device)
                dist.all_gather_into_tensor(held, x, mesh.get_group())
                x = where.join(list(held.unbind(0)), shape[where.dim])
        return x.clone() if all(isinstance(where, Replicate) for where in self.placements) else x

    def to_local(self) -> Tensor:
        """This rank's part as a plain tensor on the same memory; recorded."""
        return self.view_as(self)

    @property
    def data(self) -> Any:
        """The same part without history, on the same memory."""
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        _DATA.__set__(self, values)

    @property
    def _norm_groups(self) -> tuple[Any, ...]:
        """The groups of ranks among which it is split: over these a norm adds up."""
        shards = [mesh for mesh, where, _ in self.splits if isinstance(where, Shard) and mesh.size() > 1]
        return tuple(mesh.get_group() for mesh in shards)

    @property
    def _local_tensor(self) -> Tensor:
        """This rank's part as a plain tensor without history, on the same memory."""
        return _values(self)

    def filled_as_whole(self, fill: Callable[[Tensor], Any]) -> Any:
        """Takes this rank's part of a whole tensor that `fill` has filled, as with initial values that depend
        on the shape or are drawn. Ranks that have the same part take it from the first, by a collective.
        """
        if not self._norm_groups or self.is_meta:
            fill(self)
            return self
        whole = warptape.empty(self.full_shape, dtype=self.dtype, device=self.device)
        with warptape.no_grad():
            fill(whole)
            part = self.part_of(whole).contiguous()
            for mesh, where, _ in self.splits:
                if isinstance(where, Replicate) and mesh.size() > 1:
                    dist.broadcast(part, group=mesh.get_group(), group_src=0)
            return self.copy_(part)

    normal_ = _drawn_as_whole("normal_")
    uniform_ = _drawn_as_whole("uniform_")
    random_ = _drawn_as_whole("random_")
    bernoulli_ = _drawn_as_whole("bernoulli_")
    cauchy_ = _drawn_as_whole("cauchy_")
    exponential_ = _drawn_as_whole("exponential_")
    geometric_ = _drawn_as_whole("geometric_")
    log_normal_ = _drawn_as_whole("log_normal_")

    def _refuse_index(self, what: str) -> None:
        if self._norm_groups:
            raise RuntimeError(
                f"{what} of a tensor {list(self.full_shape)} of which this rank has a part "
                f"{list(self.shape)}, {list(self.placements)}: indices would count in the part; index "
                "full_tensor(), or to_local() for this rank's part"
            )

    def __getitem__(self, index: Any) -> Tensor:
        self._refuse_index("an index")
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._refuse_index("an assignment to indices")
        super().__setitem__(index, value)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        return (
            f"{type(self).__name__}(full_shape={list(self.full_shape)}, placements={self.placements}, "
            f"part={_values(self)!r})"
        )

    def part_of(self, full: Tensor) -> Tensor:
        """What this rank holds of a tensor of the full shape."""
        if tuple(full.shape) != self.full_shape:
            raise ValueError(f"expected a whole parameter of {list(self.full_shape)}, got {list(full.shape)}")
        for mesh, where, _ in self.splits:
            if isinstance(where, Shard):
                full = where.take(full, mesh.get_local_rank(), mesh.size())
        return full

    def own_part(self, value: Any) -> Any:
        """What this rank holds of a DTensor of the full shape, which may lie otherwise; anything else as it
        is. Collective."""
        if not hasattr(value, "full_tensor") or isinstance(value, ParallelTensor):
            return value
        return self.part_of(value.full_tensor().detach())

    def regions(self) -> dict[int, Ranges]:
        """For each dim that is split, what this rank holds of it."""
        out: dict[int, Ranges] = {}
        for mesh, where, shape in self.splits:
            if isinstance(where, Shard):
                dim = where.dim % len(shape)
                taken = where.ranges(shape[dim], mesh.get_local_rank(), mesh.size())
                held = out.get(dim, [(0, shape[dim])])
                out[dim] = [r for part in taken for r in _within(held, *part)]
        return out

    def held_slices(self) -> tuple[tuple[int, ...], int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """Where in the whole this rank's part lies, for checkpoints: the shape of the whole, and (start,
        shape) of the slices that lie one after the other along a dim of the part."""
        regions = {dim: ranges or [(0, 0)] for dim, ranges in self.regions().items()}
        along = max(regions, key=lambda d: len(regions[d]), default=0)  # of the others there is one range
        slices = []
        for here in regions.get(along, [(0, self.full_shape[along])]) if self.full_shape else [(0, 0)]:
            start, size = [0] * len(self.full_shape), list(self.full_shape)
            for dim, ranges in regions.items():
                start[dim], size[dim] = here if dim == along else ranges[0]
            slices.append((tuple(start), tuple(size)))
        return self.full_shape, along, slices

    def detach(self) -> ParallelTensor:
        """The same part without history, which knows the whole, too: what a state_dict has."""
        return ParallelTensor._moved(self, _values(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self._moved(_values(self).clone())
        return memo[id(self)]

    def _moved(self, values: Tensor) -> Any:
        """Another of these values, which may be on another device, that lies as this one."""
        out = Tensor._make_subclass(ParallelTensor, values)
        _describe(out, self.device_mesh, self.placements, self.full_shape, self.splits)
        return out

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A mesh means nothing to another process: a pickle has the values alone.
        return _values(self).__reduce_ex__(protocol)


class ParallelParameter(ParallelTensor, Parameter):
    """A parameter of which this rank has a part."""

    gradient_is_summed: bool
    reduced_by_group = (
        False  # fully_shard puts the gradient there; backward does not come through this tensor
    )

    def register_hook(self, hook: Callable[[Tensor], Any]) -> Any:
        """As a Tensor's. Raises RuntimeError for a parameter that fully_shard splits, whose gradient is not
        computed here."""
        if self.reduced_by_group:
            raise RuntimeError(
                "register_hook: fully_shard reduces this parameter's gradient outside of the tape, where no "
                "such hook is called; use register_post_accumulate_grad_hook"
            )
        return super().register_hook(hook)

    def sum_gradient(self) -> None:
        """From now on the gradient is summed over the ranks: each uses the parameter for a part of it."""
        if self.gradient_is_summed:
            return
        group = self.splits[0][0].get_group()
        on_gradient(self, lambda g: functional.all_reduce_pass_through(g, group))
        self.gradient_is_summed = True

    @property
    def grad(self) -> Any:
        """The gradient of this rank's part, which knows where it lies."""
        gradient = _GRAD.__get__(self)
        if type(gradient) is Tensor and gradient.shape == self.shape:
            part = _C._as_subclass(gradient, ParallelTensor)
            _describe(part, self.device_mesh, self.placements, self.full_shape, self.splits)
            _GRAD.__set__(self, part)  # the same object next time
            return part
        return gradient

    @grad.setter
    def grad(self, gradient: Any) -> None:
        _GRAD.__set__(self, gradient)

    @grad.deleter
    def grad(self) -> None:
        _GRAD.__set__(self, None)

    def _moved(self, values: Tensor) -> Any:
        if isinstance(values, ParallelTensor):
            values = _values(values)
        out = Parameter(values, self.requires_grad)
        _become_parameter(out, self.device_mesh, self.placements, self.full_shape, self.splits)
        if self.gradient_is_summed:
            out.sum_gradient()  # type: ignore[attr-defined]
        return out

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild_parameter, (_values(self), self.requires_grad)


_DATA: Any = Tensor.data
_GRAD: Any = Tensor.grad


def _values(t: Tensor) -> Tensor:
    """Its values as a plain tensor, on the same memory."""
    return _DATA.__get__(t)


def on_gradient(parameter: Tensor, hook: Callable[[Tensor], Tensor]) -> None:
    """Registers a hook, also where a parameter is frozen: it may be trained later."""
    trained = parameter.requires_grad
    parameter.requires_grad_().register_hook(hook)
    parameter.requires_grad_(trained)


def place(parameter: Any, mesh: DeviceMesh, where: Shard | Replicate) -> None:
    """Turns a Parameter into a ParallelParameter. It stays the same object, so that modules which share it
    go on sharing it and an optimizer that has it keeps it."""
    if isinstance(parameter, ParallelParameter):
        return
    shape = tuple(parameter.shape)
    if isinstance(where, Shard):
        _keep_part(parameter, mesh, where)
    _become_parameter(parameter, mesh, (where,), shape, ((mesh, where, shape),))


def place_again(
    parameter: Any, mesh: DeviceMesh, where: tuple[Shard | Replicate, ...], joined: DeviceMesh
) -> None:
    """As `place`, on each axis of `mesh`, of what may be split along other axes already. `joined` is the mesh
    of all these axes, those of `mesh` first."""
    axes = [axis_of(mesh, i) for i in range(mesh.ndim)]
    before = parameter.splits if isinstance(parameter, ParallelParameter) else ()
    full_shape = parameter.full_shape if before else tuple(parameter.shape)
    placements = (*where, *(parameter.placements if before else ()))
    splits = list(before)
    for axis, each in zip(axes, where, strict=True):
        splits.append((axis, each, tuple(parameter.shape)))
        if isinstance(each, Shard):
            _keep_part(parameter, axis, each)
    _become_parameter(parameter, joined, placements, full_shape, tuple(splits))


def _keep_part(parameter: Any, mesh: DeviceMesh, where: Shard) -> None:
    with warptape.no_grad():
        parameter.grad = None
        parameter.data = where.take(_values(parameter), mesh.get_local_rank(), mesh.size())


def _describe(part: Any, mesh: Any, placements: Any, full_shape: Any, splits: Any) -> None:
    part.device_mesh, part.placements, part.full_shape, part.splits = mesh, placements, full_shape, splits


def _become_parameter(parameter: Any, *where: Any) -> None:
    parameter.__class__ = ParallelParameter
    _describe(parameter, *where)
    if "gradient_is_summed" not in parameter.__dict__:
        parameter.gradient_is_summed = False


def axis_of(mesh: DeviceMesh, axis: int) -> DeviceMesh:
    """An axis of a mesh, which need not have names, as a mesh of its own."""
    if mesh.ndim == 1:
        return mesh
    at = mesh.get_coordinate()
    if at is None:
        raise RuntimeError(f"rank {mesh.get_rank()} is not in the mesh {mesh}")
    line = mesh.mesh[tuple(slice(None) if i == axis else at[i] for i in range(mesh.ndim))]
    names = mesh.mesh_dim_names
    return DeviceMesh(
        mesh.device_type,
        line,
        mesh_dim_names=names and names[axis : axis + 1],
        _groups=[mesh.get_group(axis)],
        _root=mesh._root,
    )


def check_mesh(mesh: DeviceMesh, where: str) -> DeviceMesh:
    """Raises ValueError for a mesh that tensor parallelism cannot use: the same on every rank."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"{where}: expected a DeviceMesh, got {type(mesh).__name__}")
    if mesh.ndim != 1:
        raise ValueError(
            f"{where}: expected a mesh of one axis, got {mesh}; pass one of its axes: mesh['tp']"
        )
    world, root = state().world_size, mesh._root
    if root.size() != world:
        raise ValueError(
            f"{where}: the mesh {root} has {root.size()} ranks and the job has {world}; make the product of "
            f"the mesh's axes {world}, or start {root.size()} processes"
        )
    return mesh
