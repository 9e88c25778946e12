"""Apple's GPUs, which this runtime does not serve."""

from __future__ import annotations

from .._missing import install_getattr as _install_getattr
from ..mps import is_available

is_built = is_available

_install_getattr(__name__)
