"""Flatten and Unflatten, where programs may look for them."""

from .shape import Flatten, Unflatten

__all__ = ["Flatten", "Unflatten"]
