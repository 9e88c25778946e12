"""torch.names.distributed.nn.functional, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.nn.functional import *
