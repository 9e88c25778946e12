"""torch.onnx.symbolic_opset11: libraries import it, for an exporter that is not here."""

from .._missing import install_getattr as _install_getattr

_install_getattr(__name__)
