"""What may reduce a bucket of gradients in place of the plain average."""

from ...._missing import lookup as _lookup
from . import default_hooks, post_localSGD_hook, powerSGD_hook

__all__ = ["default_hooks", "post_localSGD_hook", "powerSGD_hook"]

__getattr__ = _lookup(__name__)
