"""Steps of examples/train_gpt.py at its defaults with a profile beside steps without one, in turns.

    python benchmarks/profiler.py [--rounds 15] [--steps 3]

Prints the median of the ratios of neighbouring rounds for a plain profile (target 1.05), for one with shapes
and memory, for one with modules and for one with stacks and calls of Python's functions, and how many events
and calls a step has.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable

import _cpu_rows
import warptape as torch
from warptape.profiler import profile

SETTINGS = {
    "profile()": {},
    "shapes, memory": {"record_shapes": True, "profile_memory": True},
    "modules": {"with_modules": True},
    "stacks": {"with_stack": True},
}


def seconds(step: Callable[[], object], steps: int, recording: contextlib.AbstractContextManager) -> float:
    """Of the steps alone: what a profile does at its end is not part of the program."""
    with recording:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return time.perf_counter() - start


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    step = _cpu_rows.gpt("float32")(torch)
    for _ in range(2):
        step()
    for name, settings in SETTINGS.items():
        ratios, events, calls = [], 0, 0
        for _ in range(options.rounds):
            off = seconds(step, options.steps, contextlib.nullcontext())
            recording = profile(**settings)
            on = seconds(step, options.steps, recording)
            ratios.append(on / off)
            events = len(recording.events()) // options.steps
            calls = len(recording.profiler.python_events) // options.steps
        ratio = statistics.median(ratios)
        print(f"{name:15} {ratio:.3f} of the time without, {events:,} events and {calls:,} calls a step")


if __name__ == "__main__":
    main()
