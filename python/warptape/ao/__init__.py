"""torch.ao and torchao: models of fewer bits."""

from .._missing import lookup as _lookup

__getattr__ = _lookup(__name__)
