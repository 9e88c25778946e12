"""torch.distributed.tensor._random: the seed of what DTensors draw."""

from __future__ import annotations

from warptape import core as wt
from warptape.distributed.device_mesh import DeviceMesh

__all__ = ["manual_seed"]


def manual_seed(seed: int, device_mesh: DeviceMesh) -> None:
    """Seeds this rank's default generators, from which DTensors draw; every rank of the mesh must call it.

    Raises: RuntimeError on a rank that is not in the mesh.
    """
    if device_mesh.get_coordinate() is None:
        raise RuntimeError(
            "manual_seed requires the current rank to be a part of the device mesh; seed the other ranks by "
            "torch.manual_seed"
        )
    wt.manual_seed(seed)
