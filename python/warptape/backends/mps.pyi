"""torch.names.backends.mps, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.backends.mps import *
