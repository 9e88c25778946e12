"""torch.onnx.symbolic_opset11: libraries import it, for an exporter that is not here."""

from .._missing import lookup as _lookup

__getattr__ = _lookup(__name__)
