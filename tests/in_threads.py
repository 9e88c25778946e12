"""Work in several threads at once, for tests of what threads share."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable

PATIENCE = 600 if os.environ.get("WARPTAPE_SANITIZED") else 120  # seconds
# Of processor time within them, less of which is a hang: on a busy machine threads may take long to end.
LEAST_WORK = 0.05


def together(work: Callable[[int], None], threads: int = 8) -> None:
    """Calls work(0), work(1), .. each in a thread; all of them end, and none fails."""
    failed: list[BaseException] = []
    start = threading.Barrier(threads)

    def run(k: int) -> None:
        try:
            start.wait()
            work(k)
        except BaseException as error:
            failed.append(error)

    all_ = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(threads)]
    for t in all_:
        t.start()
    for t in all_:
        used = 0.0
        while t.is_alive():
            before, used = used, time.process_time()
            if before and used - before < LEAST_WORK:
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)  # a thread that hangs in a kernel's lock would hang the interpreter's end, too
            t.join(PATIENCE)
    if failed:
        raise failed[0]
