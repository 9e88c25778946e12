"""torch.onnx: models as ONNX files, for inference. Writing one needs the package `onnx`."""

from typing import Any

from . import _layers, _pointwise, _shapes  # the mappings
from ._errors import UnsupportedOperatorError
from ._export import ONNXProgram, export, is_in_onnx_export

__all__ = ["ONNXProgram", "UnsupportedOperatorError", "export", "is_in_onnx_export"]


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Any, opset_version: int) -> None:
    """Nothing: how ops become nodes is in a table of this package.

    Args:
        symbolic_name, symbolic_fn, opset_version: not looked at.
    """
