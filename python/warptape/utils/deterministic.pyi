"""torch.names.utils.deterministic, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.utils.deterministic import *
