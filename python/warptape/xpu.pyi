"""torch.names.xpu, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.xpu import *
