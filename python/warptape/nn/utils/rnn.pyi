"""nn.packed_sequence, by its public name. Written by tools/generate.py; do not edit."""

from warptape.nn.packed_sequence import *
