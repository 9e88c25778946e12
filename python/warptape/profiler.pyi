"""tools.profiler, by its public name. Written by tools/generate.py; do not edit."""

from warptape.tools.profiler import *
