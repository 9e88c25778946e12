"""torch.distributed.tensor: how parameters lie on the ranks of a mesh. There is no DTensor."""

from ..._missing import lookup as _lookup
from ...parallel.tensor import Partial, Placement, Replicate, Shard
from ..device_mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "init_device_mesh"]

__getattr__ = _lookup(__name__)
