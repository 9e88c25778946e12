"""Windows of M numbers, under torch.signal.windows' names."""

from __future__ import annotations

from .. import _C
from .._missing import install_getattr as _install_getattr

globals().update({name: op for name, op in vars(_C._windows).items() if not name.startswith("__")})
_install_getattr(__name__)
