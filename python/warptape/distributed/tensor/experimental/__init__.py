"""torch.distributed.tensor.experimental."""

from ...._missing import lookup as _lookup
from ....parallel.context import context_parallel
from ....parallel.dtensor import implicit_replication

__all__ = ["context_parallel", "implicit_replication"]

__getattr__ = _lookup(__name__)
