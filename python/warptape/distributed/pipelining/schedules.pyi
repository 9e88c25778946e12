"""torch.names.distributed.pipelining.schedules, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.pipelining.schedules import *
