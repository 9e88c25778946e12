"""Axes to draw on, where matplotlib is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def axes_of(to: Any, caller: str) -> Iterator[Any]:
    """Axes of matplotlib that were given as they are, or new ones, which go to the file `to` at the end.

    Raises:
        ImportError: matplotlib is missing.
    """
    if hasattr(to, "get_figure"):
        yield to
        return
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"{caller}: pictures need matplotlib: pip install warptape[plot]") from None
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    yield figure.subplots()
    figure.savefig(to)
