"""What torch.onnx.export raises."""

__all__ = ["UnsupportedOperatorError"]


class UnsupportedOperatorError(RuntimeError):
    """An op, or a use of one, that is not exported to ONNX; the text has file and line."""
