"""extras.distributions, by its public name. Written by tools/generate.py; do not edit."""

from warptape.extras.distributions import *
