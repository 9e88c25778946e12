"""Apple's GPUs, which this runtime does not serve."""

from __future__ import annotations

from ..mps import is_available

is_built = is_available
