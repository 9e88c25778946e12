"""torch.names.jit.annotations, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.jit.annotations import *
