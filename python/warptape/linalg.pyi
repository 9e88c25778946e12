"""core.namespaces.linalg, by its public name. Written by tools/generate.py; do not edit."""

from warptape.core.namespaces.linalg import *
