"""torch.names.onnx.symbolic_helper, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.onnx.symbolic_helper import *
