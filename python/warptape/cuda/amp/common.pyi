"""torch.names.cuda.amp.common, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.cuda.amp.common import *
