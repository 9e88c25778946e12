"""torch.distributed.tensor: tensors and parameters whose parts lie on the ranks of a mesh."""

from ..._missing import install_getattr as _install_getattr
from ..._missing import unusable as _unusable
from ...parallel.dtensor import (
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
from ...parallel.tensor import Partial, Placement, Replicate, Shard
from ..device_mesh import DeviceMesh, init_device_mesh

_StridedShard = _unusable(
    "torch.distributed.tensor.placement_types._StridedShard",
    "parts of a dim that axes split in another order than the mesh's are not supported",
)

__all__ = [name for name in dir() if not name.startswith("_")]

_install_getattr(__name__)
