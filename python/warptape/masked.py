"""Reductions and normalisations that leave out what a mask hides: torch.masked."""

from __future__ import annotations

from . import _C
from ._missing import install_getattr as _install_getattr

globals().update({name: op for name, op in vars(_C._masked).items() if not name.startswith("__")})
_install_getattr(__name__)
