"""torch.names.cuda.amp, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.cuda.amp import *
