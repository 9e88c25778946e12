"""Parts of the loader that user code reaches by path."""

from . import collate

__all__ = ["collate"]
