"""core.grad_mode, by its public name. Written by tools/generate.py; do not edit."""

from warptape.core.grad_mode import *
