"""Names as in torch.distributed.elastic."""

from ..._missing import lookup as _lookup

__getattr__ = _lookup(__name__)
