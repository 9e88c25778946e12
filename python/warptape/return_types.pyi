"""core.namespaces.return_types, by its public name. Written by tools/generate.py; do not edit."""

from warptape.core.namespaces.return_types import *
