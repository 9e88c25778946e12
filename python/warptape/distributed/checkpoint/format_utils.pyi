"""torch.names.distributed.checkpoint.format_utils, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.checkpoint.format_utils import *
