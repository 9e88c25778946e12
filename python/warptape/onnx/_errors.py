"""What the export raises."""

from __future__ import annotations


class UnsupportedOperatorError(RuntimeError):
    """An op, or a use of one, that is not exported to ONNX; the text has file and line."""
