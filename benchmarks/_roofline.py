"""What the machine can do at most, measured, and what share of it a row reaches.

The limits are the fastest product of matrices and the fastest pass over memory that any library here has. A
row's work is counted, not estimated: FLOPs of products, convolutions, attention and recurrent layers by
utils.flop_counter, bytes by the sizes of what the row says that it has to read and write once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

PEAK_FLOPS = """
import json, sys, time
import {library} as lib
threads, kind = int(sys.argv[1]), getattr(lib, sys.argv[2])
lib.set_num_threads(threads)
best = 0.0
with lib.no_grad():
    for n in (1024, 1536):
        a, b = lib.ones(n, n, dtype=kind), lib.ones(n, n, dtype=kind)
        for _ in range(8):
            start = time.perf_counter()
            a @ b
            best = max(best, 2 * n**3 / (time.perf_counter() - start))
print(json.dumps(best))
"""
PEAK_BYTES = """
import json, sys, time
import {library} as lib
lib.set_num_threads(int(sys.argv[1]))
best = 0.0
with lib.no_grad():
    x, y = lib.ones(1 << 26), lib.ones(1 << 26)
    for work, moved in ((x.sum, 1), (lambda: y.copy_(x), 2)):
        for _ in range(8):
            start = time.perf_counter()
            work()
            best = max(best, 4 * moved * x.numel() / (time.perf_counter() - start))
print(json.dumps(best))
"""


def best_of(program: str, python: str, *arguments: str) -> float:
    """The larger figure of both libraries, each in a process of its own; 0 where neither is there."""
    found = [0.0]
    for library in ("warptape", "torch"):
        command = [python, "-c", program.format(library=library), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.append(float(json.loads(done.stdout)))
    return max(found)


@cache
def peak_flops(threads: int, dtype: str = "float32", python: str = sys.executable) -> float:
    """FLOP/s of the fastest product of matrices of 1,024 and 1,536."""
    return best_of(PEAK_FLOPS, python, str(threads), dtype)


@cache
def peak_bytes(threads: int, python: str = sys.executable) -> float:
    """Bytes/s of the faster of a sum over 256 MiB and a copy of them."""
    return best_of(PEAK_BYTES, python, str(threads))


def count_flops(lib: Any, work: Any) -> int:
    """FLOPs of one call of `work`, by warptape's counter; 0 where it cannot run under it."""
    counter = lib.utils.flop_counter.FlopCounterMode(display=False)
    with counter:
        work()
    return int(counter.get_total_flops())


def share(seconds: float, flops: float, moved: float, threads: int, dtype: str = "float32") -> float | None:
    """Of the machine's limit: the least time that the work can take, by either limit, over its time."""
    least = 0.0
    if flops and (peak := peak_flops(threads, dtype)):
        least = flops / peak
    if moved and (peak := peak_bytes(threads)):
        least = max(least, moved / peak)
    return least / seconds if least else None
