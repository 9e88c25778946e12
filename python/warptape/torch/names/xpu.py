"""torch.xpu: Intel's GPUs, which this runtime does not serve."""

from .mps import device_count, is_available

__all__ = ["device_count", "is_available"]
