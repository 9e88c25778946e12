"""torch.xpu: Intel's GPUs, which this runtime does not serve."""

from ._missing import lookup as _lookup
from .mps import device_count, is_available

__all__ = ["device_count", "is_available"]

__getattr__ = _lookup(__name__)
