"""torch.distributed.tensor._utils: what a rank holds of a tensor."""

from warptape.parallel.dtensor import compute_local_shape, compute_local_shape_and_global_offset

__all__ = ["compute_local_shape", "compute_local_shape_and_global_offset"]
