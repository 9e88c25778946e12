"""torch.xpu: Intel's GPUs, which this runtime does not serve."""

from ._missing import install_getattr as _install_getattr
from .mps import device_count, is_available

__all__ = ["device_count", "is_available"]

_install_getattr(__name__)
