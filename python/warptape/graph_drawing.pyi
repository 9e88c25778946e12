"""tools.graph_drawing, by its public name. Written by tools/generate.py; do not edit."""

from warptape.tools.graph_drawing import *
