"""torch.names.distributed.distributed_c10d, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.distributed_c10d import *
