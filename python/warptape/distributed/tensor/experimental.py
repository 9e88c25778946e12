"""torch.distributed.tensor.experimental."""

from ..._missing import install_getattr as _install_getattr
from ..._missing import unusable as _unusable
from ...parallel.dtensor import implicit_replication

_CONTEXT = "attention over sequences that ranks share is not supported"
context_parallel = _unusable("torch.distributed.tensor.experimental.context_parallel", _CONTEXT)

__all__ = ["context_parallel", "implicit_replication"]

_install_getattr(__name__)
