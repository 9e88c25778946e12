"""What packages below `parallel` know of a tensor that is spread over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .tensor_class import Tensor


class Placed:
    """The face of DTensor: optimizers, initial values, clipping and checkpoints ask isinstance(t, Placed).

    Args:
        device_mesh: over whose ranks it lies.
        placements: one for each axis of the mesh.
        shape: of the full tensor.
    """

    __slots__ = ()

    device_mesh: Any
    placements: Any
    shape: Any
    is_meta: bool
    detach: Any
    copy_: Any
    redistribute: Any

    @property
    def norm_groups(self) -> tuple[Any, ...]:
        """The groups of ranks among which it is split: over these a norm adds up."""
        raise NotImplementedError

    def to_local(self) -> Any:
        """What this rank holds, a plain tensor on the same memory."""
        raise NotImplementedError

    def full_tensor(self) -> Any:
        """The whole, on every rank; collective."""
        raise NotImplementedError

    def like_local(self, local: Tensor) -> Any:
        """What this rank holds of another tensor that lies as this one.

        Args:
            local: this rank's shard.
        """
        raise NotImplementedError

    def like_full(self, full_tensor: Tensor) -> Any:
        """A tensor of this shape, whole or placed otherwise, placed as this one.

        Args:
            full_tensor: of this shape.
        """
        raise NotImplementedError

    def filled_as_full(self, fill: Callable[[Any], Any]) -> Any:
        """Takes this rank's shard of a full tensor that `fill` has filled.

        Args:
            fill: of a plain tensor; every rank must fill alike.
        """
        raise NotImplementedError

    def held_slices(self) -> tuple[tuple[int, ...], int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """Where in the full tensor this rank's shard lies: the shape of the full tensor, and (start, shape)
        of the slices that lie one after the other along a dim of the shard."""
        raise NotImplementedError


class NormStages(NamedTuple):
    """How a parameter counts in a norm over the stages of a pipeline.

    Attributes:
        groups: of ranks that have the other stages.
        counts: False where another stage counts the same parameter.
    """

    groups: tuple[Any, ...] = ()
    counts: bool = True


def norm_stages(parameter: Any) -> NormStages:
    """How a parameter counts in norms: as set_norm_stages told, else on its own.

    Args:
        parameter: of any model.
    """
    stages: NormStages = getattr(parameter, "_norm_stages", NormStages())
    return stages


def set_norm_stages(parameter: Any, group: Any, counts: bool) -> None:
    """Tells that the ranks of `group` have other stages of the parameter's model.

    Args:
        parameter: of one stage.
        group: of ranks, one for each stage.
        counts: False where another stage counts it.
    """
    parameter._norm_stages = NormStages((group,), counts)


def replicas(parameter: Any, default: Any) -> Any:
    """The group of ranks that hold the same parameter.

    Args:
        parameter: of any model.
        default: the group of one for which set_replicas told none.
    """
    return getattr(parameter, "_replicas", default)


def set_replicas(parameter: Any, group: Any) -> None:
    """Tells which ranks hold the same parameter where these are not all: experts lie apart.

    Args:
        parameter: of an expert.
        group: of ranks.
    """
    parameter._replicas = group


def is_gathered(parameter: Any) -> bool:
    """Whether it is a full tensor that fully_shard has gathered for a pass, and that goes after it.

    Args:
        parameter: of any model.
    """
    return getattr(parameter, "_is_gathered", False)


def mark_gathered(parameter: Any) -> None:
    """Tells that the parameter is gathered for a pass.

    Args:
        parameter: a full tensor.
    """
    parameter._is_gathered = True
