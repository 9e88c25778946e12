"""Data pipes: data sets that are chains of small steps, written `source.map(fn).shuffle().batch(8)`."""

from ...._missing import install_getattr as _install_getattr

__all__: list[str] = []

_install_getattr(__name__)
