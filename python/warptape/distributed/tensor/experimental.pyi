"""torch.names.distributed.tensor.experimental, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.tensor.experimental import *
