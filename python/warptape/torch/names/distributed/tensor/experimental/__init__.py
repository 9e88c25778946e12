"""torch.distributed.tensor.experimental."""

from warptape.parallel.context import context_parallel
from warptape.parallel.dtensor import implicit_replication, local_map

__all__ = ["context_parallel", "implicit_replication", "local_map"]
