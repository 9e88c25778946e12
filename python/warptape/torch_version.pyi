"""torch.names.torch_version, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.torch_version import *
