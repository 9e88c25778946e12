"""torch.distributed.tensor.experimental."""

from ...._missing import install_getattr as _install_getattr
from ....parallel.context import context_parallel
from ....parallel.dtensor import implicit_replication, local_map

__all__ = ["context_parallel", "implicit_replication", "local_map"]

_install_getattr(__name__)
