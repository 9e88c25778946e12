"""torch.ao: named by libraries whose quantized models are optional. Quantization is not supported."""

from .._missing import lookup as _lookup

__getattr__ = _lookup(__name__)
