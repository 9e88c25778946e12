"""Parameters averaged over ranks every so often."""

from . import averagers, utils

__all__ = ["averagers", "utils"]
