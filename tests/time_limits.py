"""Limits of time in tests: other work on the machine and sanitizers slow all down."""

from __future__ import annotations

import os

#: tools/sanitize.sh runs the suite: instrumented, and without a bound on the address space.
SANITIZED = bool(os.environ.get("WARPTAPE_SANITIZED"))


def seconds(limit: float) -> float:
    """A limit in seconds, longer where the build is instrumented or more runs than there are processors."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return limit * (10 if SANITIZED else max(1.0, busy))
