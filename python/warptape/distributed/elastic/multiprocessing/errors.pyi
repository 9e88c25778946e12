"""distributed.launcher.errors, by its public name. Written by tools/generate.py; do not edit."""

from warptape.distributed.launcher.errors import *
