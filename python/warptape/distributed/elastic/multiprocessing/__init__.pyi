"""torch.names.distributed.elastic.multiprocessing, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.elastic.multiprocessing import *
