"""torch.names.distributed.constants, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.constants import *
