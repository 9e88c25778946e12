"""Windows of M numbers, under torch.signal.windows' names."""

from __future__ import annotations

from .. import _C
from .._missing import lookup as _lookup

globals().update({name: op for name, op in vars(_C._windows).items() if not name.startswith("__")})
__getattr__ = _lookup(__name__)
