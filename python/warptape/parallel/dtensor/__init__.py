"""DTensor: a tensor whose shards lie on the ranks of a mesh, used as if it were whole."""

from . import attributes, ops_linalg, ops_nn, ops_pointwise, ops_reduce, ops_shape
from .api import distribute_module, distribute_tensor, empty, full, ones, rand, randn, zeros
from .layout import Layout, compute_local_shape, compute_local_shape_and_global_offset
from .local_map import local_map
from .tensor import DTensor, implicit_replication

__all__ = [name for name in dir() if not name.startswith("_")]
