"""torch.multiprocessing's names: `multiprocessing`, and `spawn`, which runs a function in several processes.

Processes started by `spawn` and `start_processes` end when their parent does, also by kill -9.
"""

from __future__ import annotations

import multiprocessing as _multiprocessing
from multiprocessing import *

from .._missing import lookup as _lookup
from .spawn import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
    start_processes,
)

__all__ = [
    *_multiprocessing.__all__,
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "spawn",
    "start_processes",
]

__getattr__ = _lookup(__name__)
