"""torch.names.distributed.fsdp.wrapper, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.fsdp.wrapper import *
