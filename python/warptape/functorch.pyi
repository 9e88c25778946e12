"""torch.names.functorch, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.functorch import *
