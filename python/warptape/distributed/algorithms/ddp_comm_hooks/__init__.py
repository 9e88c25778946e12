"""What may reduce a bucket of gradients in place of the plain average."""

from . import default_hooks

__all__ = ["default_hooks"]
