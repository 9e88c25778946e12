"""Special functions, under torch.special's names."""

from __future__ import annotations

from ... import _C

globals().update({name: op for name, op in vars(_C._special).items() if not name.startswith("__")})
