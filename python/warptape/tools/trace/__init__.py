"""Traces of runs: what each op gave, as hashes, and where two runs part."""

from .compare import Comparison, Difference, compare
from .recorder import trace_hashes
from .trace_file import Key, Record, Trace, TraceError, read_file, read_run

__all__ = [
    "Comparison",
    "Difference",
    "Key",
    "Record",
    "Trace",
    "TraceError",
    "compare",
    "read_file",
    "read_run",
    "trace_hashes",
]
