"""torch.names.signal.windows, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.signal.windows import *
