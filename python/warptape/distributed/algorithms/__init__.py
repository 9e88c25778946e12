"""torch.distributed.algorithms: communication hooks of DistributedDataParallel; and `textbook`."""

from ..._missing import lookup as _lookup

__getattr__ = _lookup(__name__)
