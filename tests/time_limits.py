"""Limits of time in tests: each is for a loaded machine, and sanitizers slow all of the work down."""

from __future__ import annotations

import os

#: tools/sanitize.sh runs the suite: instrumented, and without a bound on the address space.
SANITIZED = bool(os.environ.get("WARPTAPE_SANITIZED"))


def seconds(limit: float) -> float:
    """A limit in seconds, longer where the build is instrumented."""
    return limit * 10 if SANITIZED else limit
