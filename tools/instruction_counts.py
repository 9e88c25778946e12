"""How many instructions small calls take: `python tools/instruction_counts.py [--by-function] [CALL ..]`.

A child process makes each call a few times and then more times, on one thread, and ptrace steps through it.
The difference of the two runs, divided by the difference of the times, is what one call takes. Counted are
instructions of warptape's own libraries and of libc, not those of the interpreter. valgrind knows no AVX-512;
this runs what the processor has. A clock shows the load of the machine; this does not. Needs Linux on x86-64.
"""

from __future__ import annotations

import argparse
import bisect
import ctypes
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

FEW, MANY = 5, 15
TRACE_ME, CONTINUE, STEP, REGISTERS = 0, 7, 9, 12
RIP = 16  # of struct user_regs_struct, by which it is counted in words
OURS = ("libwarptape", "_C.", "libc.so", "libc-")
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def calls() -> dict[str, Callable[[], Any]]:
    """The calls by name."""
    import warptape as torch

    torch.set_num_threads(1)
    a, b, x = torch.ones(8), torch.ones(8), torch.ones(4, 8)
    weight, bias = torch.ones(8, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    linear = torch.nn.functional.linear
    return {
        "torch.add(a, b)": lambda: torch.add(a, b),
        "a + b": lambda: a + b,
        "a * 2.0": lambda: a * 2.0,
        "a.add_(b)": lambda: a.add_(b),
        "torch.relu(a)": lambda: torch.relu(a),
        "a.sum()": lambda: a.sum(),
        "x.view(8, 4)": lambda: x.view(8, 4),
        "F.linear(x, weight, bias), recorded": lambda: linear(x, weight, bias),
    }


def run(name: str, times: int) -> None:
    """The child: warms up and makes the calls between two signals."""
    call = calls()[name]
    for _ in range(300):
        call()
    os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(times):
        call()
    os.kill(os.getpid(), signal.SIGUSR1)


def mapped(pid: int) -> list[tuple[int, int, int, str]]:
    """(first address, end, offset in the file, file) of the code that a process has."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().split("\n"):
        fields = line.split()
        if len(fields) == 6 and "x" in fields[1]:
            first, end = (int(text, 16) for text in fields[0].split("-"))
            found.append((first, end, int(fields[2], 16), fields[5]))
    return found


def stepped(name: str, times: int) -> Counter[tuple[str, int]]:
    """How often each instruction of our libraries ran, by (file, offset)."""
    pid = os.fork()
    if pid == 0:
        libc.ptrace(TRACE_ME, 0, None, None)
        os.execv(sys.executable, [sys.executable, __file__, "--child", name, str(times)])
    registers = (ctypes.c_ulong * 27)()
    counts: Counter[int] = Counter()
    code: list[tuple[int, int, int, str]] = []
    os.waitpid(pid, 0)
    on, passed = False, 0
    while True:
        libc.ptrace(STEP if on else CONTINUE, pid, None, passed)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            break
        passed = 0
        if os.WSTOPSIG(status) == signal.SIGUSR1:
            on = not on
            code = code or mapped(pid)
        elif os.WSTOPSIG(status) == signal.SIGTRAP:
            if on:
                libc.ptrace(REGISTERS, pid, None, ctypes.addressof(registers))
                counts[registers[RIP]] += 1
        else:
            passed = os.WSTOPSIG(status)
    if os.waitstatus_to_exitcode(status) or not counts:
        raise SystemExit(f"{name}: the call failed, or this system does not let ptrace step")
    found: Counter[tuple[str, int]] = Counter()
    for address, count in counts.items():
        for first, end, offset, path in code:
            if first <= address < end and Path(path).name.startswith(OURS):
                found[path, address - first + offset] += count
    return found


@cache
def symbols(path: str) -> tuple[list[int], list[str]]:
    """Addresses of functions, in order, and their names."""
    found = set()
    for option in ("-C", "-DC"):
        text = subprocess.run(["nm", option, "--defined-only", path], capture_output=True, text=True).stdout
        for line in text.split("\n"):
            fields = line.split(" ", 2)
            if len(fields) == 3 and fields[1] in "tTwWi":
                found.add((int(fields[0], 16), fields[2]))
    return [address for address, _ in sorted(found)], [name for _, name in sorted(found)]


@cache
def segments(path: str) -> list[tuple[int, int, int]]:
    """(offset in the file, address, length) of what is loaded."""
    text = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True).stdout
    rows = [line.split() for line in text.split("\n") if line.strip().startswith("LOAD")]
    return [(int(row[1], 16), int(row[2], 16), int(row[4], 16)) for row in rows]


def function_of(path: str, offset: int) -> str:
    """The function that has the instruction at an offset of a library."""
    address = next((offset - at + to for at, to, size in segments(path) if at <= offset < at + size), offset)
    addresses, names = symbols(path)
    i = bisect.bisect_right(addresses, address) - 1
    return names[i] if i >= 0 else "?"


def per_call(name: str) -> Counter[tuple[str, int]]:
    """The instructions of one call, times MANY - FEW."""
    counts = stepped(name, MANY)
    counts.subtract(stepped(name, FEW))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("call", nargs="*", help="names of calls; all where none is given")
    parser.add_argument("--by-function", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run(options.child[0], int(options.child[1]))
    for name in options.call or calls():
        counts = per_call(name)
        print(f"{sum(counts.values()) / (MANY - FEW):8.0f}  {name}")
        if options.by_function:
            of: Counter[str] = Counter()
            for (path, offset), count in counts.items():
                of[function_of(path, offset)] += count
            for function, count in of.most_common():
                if count > 0:
                    print(f"{count / (MANY - FEW):16.0f}  {function[:100]}")
    return None


if __name__ == "__main__":
    main()
