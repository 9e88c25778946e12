"""compiler.fx, by its public name. Written by tools/generate.py; do not edit."""

from warptape.compiler.fx import *
