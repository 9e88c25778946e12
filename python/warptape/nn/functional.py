"""Functions on tensors that layers are made of.

They are the core's own, without a Python call in between, and documented there. A name that is missing raises
AttributeError when it is used.
"""

from __future__ import annotations

from warptape import _C, _missing
from warptape.core.python_objects import (
    triplet_margin_with_distance_loss as triplet_margin_with_distance_loss,
)

globals().update({name: op for name, op in vars(_C._nn).items() if not name.startswith("__")})


_missing.install_getattr(__name__)


def __dir__() -> list[str]:
    return sorted(name for name in globals() if not name.startswith("_"))
