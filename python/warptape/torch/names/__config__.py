"""What the libraries were built with, as text: torch.__config__."""

from __future__ import annotations

from warptape import version
from warptape.core import get_num_threads

__all__ = ["parallel_info", "show"]


def show() -> str:
    """What this was built with. `USE_MKL=OFF` says that no function relies on MKL."""
    return f"warptape built with:\n  - version {version.__version__}\n  - Build settings: USE_MKL=OFF\n"


def parallel_info() -> str:
    """The number of threads that work on an op."""
    return f"warptape parallel info:\n\tget_num_threads() : {get_num_threads()}\n"
