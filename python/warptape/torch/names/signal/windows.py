"""Windows of M numbers, under torch.signal.windows' names."""

from __future__ import annotations

from warptape import _C

globals().update({name: op for name, op in vars(_C._windows).items() if not name.startswith("__")})
