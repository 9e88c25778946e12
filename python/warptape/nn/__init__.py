"""Layers, losses and what models are made of: the names of torch.nn.

`Module` is the base of every layer and model, `Parameter` what it trains; `functional` has the functions that
layers call, `init` the starting values, `utils` what is done to gradients and parameters as a whole.
"""

from __future__ import annotations

from . import functional, init, modules, parameter, utils
from .modules import *
from .modules.loss import LinearCrossEntropyOptions
from .parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter

__all__ = [
    "Buffer",
    "LinearCrossEntropyOptions",
    "Parameter",
    "UninitializedBuffer",
    "UninitializedParameter",
    "functional",
    "init",
    "modules",
    "parallel",  # noqa: F405, loaded on first use
    "parameter",
    "utils",
    *(name for name in vars(modules) if name[0].isupper()),
]


# Imports nn.parallel, and all of warptape.distributed, on first use
