"""torch.names.distributed.checkpoint.state_dict, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.checkpoint.state_dict import *
