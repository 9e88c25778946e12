"""torch.names.utils.collect_env, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.utils.collect_env import *
