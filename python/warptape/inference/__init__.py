"""Inference: models whose answer to a request does not depend on what else is computed beside it."""

from .._missing import lookup as _lookup
from .linear import PackedLinear, pack_

__all__ = ["PackedLinear", "pack_"]
__getattr__ = _lookup(__name__)
