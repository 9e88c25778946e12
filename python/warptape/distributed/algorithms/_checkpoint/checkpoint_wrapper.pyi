"""torch.names.distributed.algorithms._checkpoint.checkpoint_wrapper, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.algorithms._checkpoint.checkpoint_wrapper import *
