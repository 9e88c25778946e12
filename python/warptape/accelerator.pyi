"""torch.names.accelerator, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.accelerator import *
