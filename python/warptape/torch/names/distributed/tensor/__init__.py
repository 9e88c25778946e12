"""torch.distributed.tensor: tensors and parameters whose parts lie on the ranks of a mesh."""

from warptape.distributed.device_mesh import DeviceMesh, init_device_mesh
from warptape.parallel.dtensor import (
    DTensor,
    distribute_module,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from warptape.parallel.dtensor.placement import Partial, Placement, Replicate, Shard, _StridedShard

__all__ = [name for name in dir() if not name.startswith("_")]
