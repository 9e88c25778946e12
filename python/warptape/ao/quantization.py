"""torch.ao.quantization: classes that models name, which refuse to be made."""

from .._missing import lookup as _lookup
from .._missing import unusable as _unusable

_WHY = "quantization is not supported"
QuantStub = _unusable("torch.ao.quantization.QuantStub", _WHY)
DeQuantStub = _unusable("torch.ao.quantization.DeQuantStub", _WHY)

__getattr__ = _lookup(__name__)
