"""What may reduce a bucket of gradients in place of the plain average."""

from . import default_hooks, post_localSGD_hook, powerSGD_hook

__all__ = ["default_hooks", "post_localSGD_hook", "powerSGD_hook"]
