"""Ranks as a grid with named axes: what parallel plans are written on."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from ..core import Tensor
from . import groups
from .mesh_layout import _FlatLayout, _MeshLayout, _of_ranks
from .state import GroupMember, peek_state, state

if TYPE_CHECKING:
    pass

_here = threading.local()  # ranks may be threads


def _entered() -> list[DeviceMesh]:
    return _here.__dict__.setdefault("entered", [])


def _known() -> list[weakref.ref[DeviceMesh]]:
    return _here.__dict__.setdefault("known", [])


def _unpickled(device_type: str, grid: Any, names: tuple[str, ...] | None) -> DeviceMesh:
    """A mesh of these ranks: one that is there, else a new one, which is collective."""
    alive = {id(g) for g in (*state().groups.values(), state().world)}
    for ref in _known():
        mesh = ref()
        if mesh is None or not all(isinstance(g, int) or id(g) in alive for g in mesh._groups):
            continue  # of a job that has ended
        if (mesh.device_type, mesh.mesh.tolist(), mesh.mesh_dim_names) == (device_type, grid, names):
            return mesh
    return DeviceMesh(device_type, grid, mesh_dim_names=names)


class DeviceMesh:
    """A grid of ranks; along each axis, the ranks that differ in it alone form a group.

    Args:
        device_type: "cpu" or "cuda".
        mesh: int tensor or nested lists of ranks of the job, each at most once. Collective: all ranks of the
            job make the same meshes in the same order.
        mesh_dim_names: a name for each axis.

    Raises: ValueError for ranks that are not in the job or are there twice, and for names that do not fit.
    """

    _flattened_from: tuple[str, ...] = ()  # names of the axes that became this one

    def __init__(
        self,
        device_type: str,
        mesh: Any,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        _groups: Any = None,
        _root: DeviceMesh | None = None,
        _whole: DeviceMesh | None = None,
    ) -> None:
        grid = mesh if isinstance(mesh, Tensor) else wt.tensor(mesh, dtype=wt.int64)
        self.mesh = grid.to(wt.int64).cpu()
        self.device_type = device_type
        self.root = _root or self  # of which this is a part, or another grid of the same ranks
        self._whole = _whole or self  # the grid that has its axes and more
        self.mesh_dim_names = tuple(mesh_dim_names) if mesh_dim_names is not None else None
        ranks = self.mesh.flatten().tolist()
        if len(set(ranks)) != len(ranks) or any(not 0 <= r < state().world_size for r in ranks):
            raise ValueError(f"DeviceMesh: expected distinct ranks below {state().world_size}, got {ranks}")
        names = self.mesh_dim_names
        if names is not None and (len(names) != self.mesh.ndim or len(set(names)) != len(names)):
            raise ValueError(f"DeviceMesh: expected {self.mesh.ndim} distinct names, got {list(names)}")
        self._groups = _groups if _groups is not None else [self._make(d) for d in range(self.mesh.ndim)]
        _known().append(weakref.ref(self))

    def _make(self, dim: int) -> Any:
        """The group of this rank along an axis; all ranks make those of all lines."""
        if self.mesh.ndim == 1 and self.mesh.tolist() == list(range(state().world_size)):
            return state().world
        lines = self.mesh.movedim(dim, -1).flatten(0, -2).tolist() if self.ndim > 1 else [self.mesh.tolist()]
        named = f", mesh_dim_names={self.mesh_dim_names}" if self.mesh_dim_names else ""
        of = f" of a DeviceMesh of {list(self.mesh.shape)}{named}"
        groups_of_lines = [groups._make(line, None, None, of=of) for line in lines]
        mine = [g for g in groups_of_lines if g != GroupMember.NON_GROUP_MEMBER]
        return mine[0] if mine else GroupMember.NON_GROUP_MEMBER

    @property
    def ndim(self) -> int:
        """How many axes the mesh has."""
        return self.mesh.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each axis."""
        return tuple(self.mesh.shape)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """Ranks along an axis, or in all.

        Args:
            mesh_dim: an axis by number or name; None for all.
        """
        return math.prod(self.shape) if mesh_dim is None else self.shape[self._dim(mesh_dim)]

    def _dim(self, mesh_dim: int | str) -> int:
        if isinstance(mesh_dim, int):
            if not -self.ndim <= mesh_dim < self.ndim:
                raise IndexError(f"DeviceMesh: no axis {mesh_dim} in a mesh of {self.ndim}")
            return mesh_dim % self.ndim
        if self.mesh_dim_names is None or mesh_dim not in self.mesh_dim_names:
            raise KeyError(f"DeviceMesh: no axis named {mesh_dim!r}; there are {self.mesh_dim_names}")
        return self.mesh_dim_names.index(mesh_dim)

    def get_coordinate(self) -> list[int] | None:
        """This rank's place in the grid; None when it is not in it.

        It has one number for each axis.
        """
        at = (self.mesh == state().rank).nonzero().tolist()
        return at[0] if at else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This rank's number along an axis. Raises RuntimeError when it is not in the mesh.

        Args:
            mesh_dim: an axis by number or name; needed where there are several.
        """
        if mesh_dim is None and self.ndim > 1:
            raise RuntimeError(f"get_local_rank: expected mesh_dim for a mesh of {self.ndim} axes")
        at = self.get_coordinate()
        if at is None:
            raise RuntimeError(f"get_local_rank: rank {state().rank} is not in the mesh")
        return at[self._dim(mesh_dim or 0)]

    def get_rank(self) -> int:
        """This process's rank in the job.

        Raises:
            ValueError: the job has not begun: see `init_process_group`.
        """
        return state().rank

    def get_group(self, mesh_dim: int | str | None = None) -> Any:
        """The group along an axis (of a mesh of one axis: the only one).

        Args:
            mesh_dim: an axis by number or name; needed where there are several.

        Raises: RuntimeError where it is needed and not given.
        """
        if mesh_dim is None and self.ndim > 1:
            raise RuntimeError(f"get_group: expected mesh_dim for a mesh of {self.ndim} axes")
        return self._groups[self._dim(mesh_dim or 0)]

    def get_all_groups(self) -> list[Any]:
        """The groups of all axes, in order."""
        return list(self._groups)

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The part of the mesh along some axes, or axes that were flattened to one, in which this rank lies;
        no group is made anew."""
        chosen = (names,) if isinstance(names, str) else tuple(names)
        known = self.root.__dict__.get("_flattened_names", {})
        flat = {name: known[name] for name in chosen if name in known.keys() - set(self.mesh_dim_names or ())}
        if len(chosen) == 1 and flat:
            return flat[chosen[0]]
        inside = [flat[name]._flattened_from if name in flat else (name,) for name in chosen]
        dims = [self._dim(name) for each in inside for name in each]
        at = self.get_coordinate()
        if at is None:
            raise RuntimeError(f"rank {state().rank} is not in the mesh")
        index = tuple(slice(None) if d in dims else at[d] for d in range(self.ndim))
        kept = sorted(dims)
        part = self.mesh[index].permute([kept.index(d) for d in dims])
        part = part.reshape([math.prod(self.size(name) for name in each) for each in inside])
        kept_groups = [
            flat[name].get_group() if name in flat else self._groups[self._dim(name)] for name in chosen
        ]
        return DeviceMesh(
            self.device_type,
            part,
            mesh_dim_names=chosen,
            _groups=kept_groups,
            _root=self.root,
            _whole=self._whole,
        )

    def __enter__(self) -> DeviceMesh:
        _entered().append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _entered().pop()

    @staticmethod
    def current() -> DeviceMesh | None:
        """The mesh of the innermost `with mesh:` block.

        Functions that get no mesh take it.

        Returns:
            None outside of such a block.
        """
        return _entered()[-1] if _entered() else None

    @classmethod
    def from_group(
        cls,
        group: Any,
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """A mesh of one axis whose ranks are those of a group; or of groups that are there, one for each axis
        of `mesh`. No group is made anew."""
        groups_of_axes = list(group) if isinstance(group, list | tuple) else [group]
        if mesh is None:
            if len(groups_of_axes) != 1:
                raise ValueError(f"DeviceMesh.from_group: expected mesh for {len(groups_of_axes)} groups")
            mesh = groups.get_process_group_ranks(groups_of_axes[0])
        return cls(device_type, mesh, mesh_dim_names=mesh_dim_names, _groups=groups_of_axes)

    def flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """All axes as one. Collective.

        Args:
            mesh_dim_name: of the one axis; the names joined by "_" if None.
        """
        name = mesh_dim_name or "_".join(self.mesh_dim_names or [])
        flattened = self.root.__dict__.setdefault("_flattened", {})
        named = self.root.__dict__.setdefault("_flattened_names", {})
        key = tuple(self.mesh.flatten().tolist())
        if key not in flattened:
            lines: Any = [list(key)]
            if self._whole is not self and self.mesh_dim_names and self._whole.mesh_dim_names:
                dims = [self._whole._dim(n) for n in self.mesh_dim_names]
                lines = self._whole.mesh.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
                lines = lines.reshape(-1, len(key)).tolist()
            is_world = len(lines) == 1 and sorted(lines[0]) == list(range(state().world_size))
            groups_of_lines = [state().world if is_world else groups.new_group(line) for line in lines]
            flattened[key] = next(g for g in groups_of_lines if g != GroupMember.NON_GROUP_MEMBER)
        if name not in named or named[name].mesh.tolist() != list(key):
            flat = DeviceMesh(
                self.device_type,
                list(key),
                mesh_dim_names=(name,) if name else None,
                _groups=[flattened[key]],
                _root=self.root,
            )
            flat._flattened_from = self.mesh_dim_names or ()
            named[name] = flat
        return named[name]

    _flatten = flatten  # PyTorch's name

    def _unflatten(
        self,
        dim: int | str,
        mesh_sizes: Sequence[int],
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Any = None,
    ) -> DeviceMesh:
        """The same ranks with several axes in the place of one. Collective. Axes that have the same lines of
        ranks share their groups.

        Args:
            dim: the axis.
            mesh_sizes, mesh_dim_names: of the new axes; their product is its size.
            backend_override: makes no difference: a "fake" axis has a group like any other.

        Raises: ValueError for sizes and names that do not fit.
        """
        at, sizes = self._dim(dim), tuple(mesh_sizes)
        if math.prod(sizes) != self.shape[at]:
            raise ValueError(f"_unflatten: {sizes} do not make the {self.shape[at]} ranks of axis {dim!r}")
        names, new = self.mesh_dim_names, tuple(mesh_dim_names or ())
        if bool(names) != bool(new) or (new and len(new) != len(sizes)):
            raise ValueError(f"_unflatten: expected names for {len(sizes)} axes, as the mesh has, got {new}")
        mesh = DeviceMesh(
            self.device_type,
            self.mesh.unflatten(at, sizes),
            mesh_dim_names=(*names[:at], *new, *names[at + 1 :]) if names else None,
            _groups=[],
            _root=self.root,
        )
        known = self.root.__dict__.setdefault("_lines", {})
        groups: list[Any] = []
        for axis in range(at, at + len(sizes)):
            lines = str(mesh.mesh.movedim(axis, -1).flatten(0, -2).tolist() if mesh.ndim > 1 else None)
            groups.append(known[lines] if lines in known else known.setdefault(lines, mesh._make(axis)))
        mesh._groups = [*self._groups[:at], *groups, *self._groups[at + 1 :]]
        return mesh

    @staticmethod
    def concatenate(device_mesh_list: Sequence[DeviceMesh]) -> DeviceMesh:
        """The axes of several meshes of this rank as one mesh, in that order; no group is made anew.

        Raises:
            RuntimeError: they are not of one root, or have a rank in two places.
        """
        first, at = device_mesh_list[0], state().rank
        if any(mesh.root is not first.root for mesh in device_mesh_list):
            raise RuntimeError(f"concatenate: expected meshes of one root, got {list(device_mesh_list)}")
        place = {rank: i for i, rank in enumerate(first.root.mesh.flatten().tolist())}
        places = wt.tensor(place[at])
        for mesh in device_mesh_list:
            steps = [place[rank] - place[at] for rank in mesh.mesh.flatten().tolist()]
            places = places.reshape(*places.shape, *[1] * mesh.ndim) + wt.tensor(steps).reshape(mesh.shape)
        names = [mesh.mesh_dim_names for mesh in device_mesh_list]
        ranks = first.root.mesh.flatten()
        if len(
            set(places.flatten().tolist())
        ) < places.numel() or not 0 <= places.min() <= places.max() < len(ranks):
            raise RuntimeError(f"concatenate: axes overlap in {list(device_mesh_list)}")
        return DeviceMesh(
            first.device_type,
            ranks[places],
            mesh_dim_names=None if None in names else [name for each in names for name in each or ()],
            _groups=[group for mesh in device_mesh_list for group in mesh._groups],
            _root=first.root,
        )

    _concatenate = concatenate  # PyTorch's name

    @property
    def layout(self) -> _MeshLayout:
        """Its axes as sizes and strides in the root's ranks."""
        place = {rank: i for i, rank in enumerate(self.root.mesh.flatten().tolist())}
        axes = []
        for dim in range(self.ndim):
            line = (
                self.mesh.movedim(dim, 0).flatten(1)[:, 0].tolist() if self.ndim > 1 else self.mesh.tolist()
            )
            axes.append(_FlatLayout(*_of_ranks([place[rank] - place[line[0]] for rank in line])))
        return _MeshLayout(axes)

    _layout = layout  # PyTorch's name

    def __reduce__(self) -> tuple[Any, ...]:
        # Groups mean nothing elsewhere: a pickle has the ranks, and finds or makes a mesh of them.
        return _unpickled, (self.device_type, self.mesh.tolist(), self.mesh_dim_names)

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceMesh:
        return self  # groups are not copied

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DeviceMesh)
            and self.shape == other.shape
            and self.mesh.tolist() == other.mesh.tolist()
            and (self.device_type, self.mesh_dim_names) == (other.device_type, other.mesh_dim_names)
        )

    def __hash__(self) -> int:
        return hash((tuple(self.mesh.flatten().tolist()), self.shape, self.mesh_dim_names))

    def __repr__(self) -> str:
        axes: Any = self.mesh_dim_names or range(self.ndim)
        inside = ", ".join(f"{name}={n}" for name, n in zip(axes, self.shape, strict=True))
        return f"DeviceMesh({self.device_type!r}, ({inside}), ranks {self.mesh.tolist()})"


def init_device_mesh(
    device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None
) -> DeviceMesh:
    """A mesh of all ranks of the job, in order, the last axis the closest neighbours.

    Joins the job first if that was not done. Raises ValueError when it is not as large as the world.
    """
    if peek_state() is None:
        groups.init_process_group()
    world = state().world_size
    if math.prod(mesh_shape) != world:
        raise ValueError(
            f"init_device_mesh: a mesh of {tuple(mesh_shape)} does not have the job's {world} ranks; make "
            f"the product of mesh_shape {world}, or start {math.prod(mesh_shape)} processes"
        )
    return DeviceMesh(device_type, wt.arange(world).reshape(*mesh_shape), mesh_dim_names=mesh_dim_names)
