"""Parameters averaged over ranks every so often."""

from ...._missing import install_getattr as _install_getattr
from . import averagers, utils

__all__ = ["averagers", "utils"]

_install_getattr(__name__)
