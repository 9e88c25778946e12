"""Steps of examples/train_gpt.py at its defaults with a profile beside steps without one, in turns.

    python benchmarks/profiler.py [--rounds 15] [--steps 3] [--cpu] [--only NAME ..]
    python benchmarks/profiler.py --events

Prints the median of the ratios of neighbouring rounds, and their quartiles, for a plain profile (target
1.05), for one with shapes and memory, for one with modules, for one with stacks and calls of Python's
functions, for these two together and for all, which is what `export_memory_timeline` needs; how many events
and calls a step has, and the seconds that the profile takes to start and end, beside those of its steps. With
--cpu the clock is that of the process on all its threads, which stands while another has the processor.

With --events: the microseconds of that clock that one event costs, which a busy machine disturbs little; of
exp() on 4 numbers, called 8 functions deep, and of a call of an empty module.
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
    "stacks, modules": {"with_stack": True, "with_modules": True},
    "all": {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_modules": True},
}


Clock = Callable[[], float]


def seconds(
    step: Callable[[], object], steps: int, recording: contextlib.AbstractContextManager, clock: Clock
) -> float:
    """Of the steps alone: what a profile does at its end is not part of the program."""
    with recording:
        start = clock()
        for _ in range(steps):
            step()
        return clock() - start


def event_costs(rounds: int = 9, number: int = 3000) -> None:
    """Prints what an op and a call of a module take more within a profile, in turns."""
    torch.set_num_threads(1)
    x, module = torch.ones(4), torch.nn.Identity()

    def each(call: Callable[[], object], depth: int) -> float:
        if depth:
            return each(call, depth - 1)
        start = time.process_time()
        for _ in range(number):
            call()
        return (time.process_time() - start) / number * 1e6

    for name, settings in SETTINGS.items():
        found = []
        for call in (x.exp, lambda: module(x)):
            more = []
            for _ in range(rounds):
                off = each(call, 6)
                with profile(**settings):
                    more.append(each(call, 6) - off)
            found.append(f"{statistics.median(more):5.2f} us ({min(more):.2f} to {max(more):.2f})")
        print(f"{name:15} an op {found[0]}, a call of a module {found[1]}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--only", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--events", action="store_true")
    options = parser.parse_args()
    if options.events:
        event_costs()
        return
    clock = time.process_time if options.cpu else time.perf_counter
    step = _cpu_rows.gpt("float32")(torch)
    for _ in range(2):
        step()
    for name in options.only:
        ratios, ends, events, calls = [], [], 0, 0
        for _ in range(options.rounds):
            off = seconds(step, options.steps, contextlib.nullcontext(), clock)
            recording = profile(**SETTINGS[name])
            begun = clock()
            on = seconds(step, options.steps, recording, clock)
            ends.append((clock() - begun - on) / on)
            ratios.append(on / off)
            events = len(recording.events()) // options.steps
            calls = len(recording.profiler.python_events) // options.steps
        low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
        end = statistics.median(ends)
        print(
            f"{name:15} {ratio:.3f} of the time without (quartiles {low:.3f} to {high:.3f}), {events:,} "
            f"events and {calls:,} calls a step; {end:.3f} of the steps' time to start and end",
            flush=True,
        )


if __name__ == "__main__":
    main()
