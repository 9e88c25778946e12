"""Instance normalisation, where programs may look for it."""

from .batchnorm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, _InstanceNorm, _NormBase

__all__ = ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "_InstanceNorm", "_NormBase"]
