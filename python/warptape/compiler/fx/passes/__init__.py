"""Passes over graphs."""

from . import graph_drawer, shape_prop

__all__ = ["graph_drawer", "shape_prop"]
