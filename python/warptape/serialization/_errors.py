"""What is raised of files and of objects that do not go into them. Without the pickle module."""

from __future__ import annotations

try:  # the classes that `pickle` re-exports
    from _pickle import PicklingError, UnpicklingError
except ImportError:
    PicklingError = UnpicklingError = type("UnpicklingError", (Exception,), {})  # type: ignore[misc, assignment]


class FileError(UnpicklingError, RuntimeError):
    """A file that is damaged, of another format, or asks for what it must not."""
