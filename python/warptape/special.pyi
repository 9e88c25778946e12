"""core.namespaces.special, by its public name. Written by tools/generate.py; do not edit."""

from warptape.core.namespaces.special import *
