"""torch.names.onnx.symbolic_opset11, by its public name. Written by tools/generate.py; do not edit."""

from warptape.torch.names.onnx.symbolic_opset11 import *
