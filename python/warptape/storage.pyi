"""core.storage, by its public name. Written by tools/generate.py; do not edit."""

from warptape.core.storage import *
