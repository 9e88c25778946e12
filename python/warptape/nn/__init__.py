"""Layers, losses and what models are made of: the names of torch.nn.

`Module` is the base of every layer and model, `Parameter` what it trains; `functional` has the functions that
layers call, `init` the starting values, `utils` what is done to gradients and parameters as a whole.
"""

from . import functional, init, modules, parallel, parameter, utils
from .modules import *
from .parameter import Buffer, Parameter

__all__ = [
    "Buffer",
    "Parameter",
    "functional",
    "init",
    "modules",
    "parallel",
    "parameter",
    "utils",
    *(name for name in vars(modules) if name[0].isupper()),
]
