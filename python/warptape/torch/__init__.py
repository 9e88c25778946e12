"""Runs programs that import torch, as they are: `torch` and all its submodules resolve to warptape.

    python -m warptape.torch script.py [arguments]    also -m module, -c code, a folder with __main__.py
    python -m warptape.torch.coverage script.py       what of torch a program uses, and what is missing

In a notebook, before anything imports torch:

    import warptape.torch
    warptape.torch.install()

Nothing is copied: `torch.nn.Linear` is `warptape.nn.Linear`. An installed PyTorch is neither imported nor
needed.
"""

import sys
from typing import Any

from warptape.core import offered

from ._finder import TORCH_VERSION, install, installed

__all__ = ["TORCH_VERSION", "install", "installed"]


def _of_torch(name: str) -> Any:
    """`torch.torch` is torch in PyTorch, too."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(offered("root"), name)


sys.modules[__name__].__getattr__ = _of_torch  # type: ignore[method-assign]
