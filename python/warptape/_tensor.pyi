"""core.tensor_class, by its public name. Written by tools/generate.py; do not edit."""

from warptape.core.tensor_class import *
