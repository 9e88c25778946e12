"""torch.names.amp.cpu, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.amp.cpu import *
