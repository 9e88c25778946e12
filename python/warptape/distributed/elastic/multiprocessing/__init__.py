"""Errors of worker processes: see `errors`."""

from ...._missing import lookup as _lookup

__getattr__ = _lookup(__name__)
