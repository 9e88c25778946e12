"""core.futures, by its public name. Written by tools/generate.py; do not edit."""

from warptape.core.futures import *
