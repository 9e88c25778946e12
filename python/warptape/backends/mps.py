"""Apple's GPUs, which this runtime does not serve."""

from __future__ import annotations

from .._missing import lookup as _lookup
from ..mps import is_available

is_built = is_available

__getattr__ = _lookup(__name__)
