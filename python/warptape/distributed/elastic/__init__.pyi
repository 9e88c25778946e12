"""torch.names.distributed.elastic, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.elastic import *
