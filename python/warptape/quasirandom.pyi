"""extras.quasirandom, by its public name. Written by tools/generate.py; do not edit."""

from warptape.extras.quasirandom import *
