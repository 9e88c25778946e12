"""`verify`: a model under layouts of ranks, compared with the same model in one process."""

from .api import verify
from .layout import Layout
from .report import Difference, Report, Row

__all__ = ["Difference", "Layout", "Report", "Row", "verify"]
