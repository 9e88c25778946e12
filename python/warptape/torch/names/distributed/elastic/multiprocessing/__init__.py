"""Errors of worker processes: see `errors`."""
