"""torch.names.nn.common_types, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.nn.common_types import *
