"""torch.names.mps, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.mps import *
