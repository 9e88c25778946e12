"""torch.names.amp.older, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.amp.older import *
