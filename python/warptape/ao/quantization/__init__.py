"""Weights and activations in few bits, with the names of torchao.quantization and torch.ao.quantization."""

from ..._missing import lookup as _lookup
from ._tensor import Float8Tensor, QuantizedTensor, rebuild

__getattr__ = _lookup(__name__)
