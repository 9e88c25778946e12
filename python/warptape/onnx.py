"""torch.onnx: programs import it; nothing can be exported yet."""

from ._missing import lookup as _lookup


def is_in_onnx_export() -> bool:
    """False."""
    return False


__getattr__ = _lookup(__name__)
