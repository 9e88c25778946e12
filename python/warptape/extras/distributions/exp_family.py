"""The base of the exponential family, under PyTorch's name."""

from .distribution import ExponentialFamily

__all__ = ["ExponentialFamily"]
