"""torch.names.distributed.rpc, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.rpc import *
