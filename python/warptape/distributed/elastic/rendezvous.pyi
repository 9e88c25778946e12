"""torch.names.distributed.elastic.rendezvous, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.distributed.elastic.rendezvous import *
