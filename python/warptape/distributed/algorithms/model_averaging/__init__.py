"""Parameters averaged over ranks every so often."""

from ...._missing import lookup as _lookup
from . import averagers, utils

__all__ = ["averagers", "utils"]

__getattr__ = _lookup(__name__)
