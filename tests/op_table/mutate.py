"""Mutated calls, to be run as a process of its own: `python -m op_table.mutate PROGRESS FIRST CALLS OP...`.

Each call takes a row's sample and breaks it: other shapes, dtypes and dims, huge integers, nan, None,
strange objects, arguments left out or added. A call may succeed or raise one of ALLOWED; it may not crash,
hang, or raise anything else. The number of the op and of the call are in the file PROGRESS, so that the
parent knows which call was the last.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import random
import resource
import sys
import warnings
import zlib
from typing import Any

import numpy as np
import time_limits

from . import ROWS, checks, convert
from .table import ALL, Op, tree_map

ALLOWED = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, MemoryError, OverflowError)
ALLOWED += (ZeroDivisionError, BufferError)
MEMORY = (
    3 << 30
)  # address space a mutated call may take: a huge size must fail as an allocation, not fill the machine
TOUCH = 100_000  # results up to this many elements are read, to find memory that is not theirs
INTEGERS = (
    -1,
    0,
    1,
    2,
    5,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53,
    2**62,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64,
    10**30,
)


def strange(rt: Any, draw: random.Random) -> Any:
    """A Python value that hardly any op expects."""
    recursive: list[Any] = []
    recursive.append(recursive)
    values: list[Any] = [
        None,
        True,
        math.nan,
        math.inf,
        -0.0,
        1e308,
        1.5,
        1j,
        "x",
        "",
        b"x",
        [],
        (),
        {},
        object(),
        Ellipsis,
    ]
    values += [
        slice(None),
        rt.float32,
        rt.bool,
        [1, [2]],
        [None],
        (2, -1),
        [2**62, 2**62],
        (0,),
        (-1, -1),
        (0, 0),
        (5, 6, 7),
    ]
    values += [
        np.float32(2),
        np.int64(-1),
        np.ones(2),
        np.zeros((0, 2)),
        "mean",
        "\0",
        "é" * 50,
        float,
        recursive,
        range(3),
    ]
    return draw.choice(values)


def tensor(rt: Any, draw: random.Random) -> Any:
    """A tensor of random shape, dtype and layout, sometimes with values that are no valid index."""
    shape = [draw.choice((0, 1, 2, 3, 5)) for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 4, 6)))]
    dtype = draw.choice(ALL)
    values = np.random.default_rng(draw.getrandbits(32)).uniform(-3, 3, shape)
    made = convert.lay_out(rt, np.asarray(convert.under_test(np.asarray(values), dtype)), dtype, "contiguous")
    kind = draw.randrange(8)
    if kind == 0 and dtype == "int64":
        return made * 2**60
    if kind == 1 and made.is_floating_point():
        return made * math.nan
    if kind == 2 and made.ndim > 1:
        return made.transpose(0, -1)
    if kind == 3:
        return made.expand(2, *shape)
    if kind == 4 and made.is_floating_point():
        return made.requires_grad_(True)
    if kind == 5:
        return made.to("meta")
    return made


def other(rt: Any, value: Any, draw: random.Random) -> Any:
    """What stands in a value's place."""
    choice = draw.random()
    if isinstance(value, rt.Tensor):
        return tensor(rt, draw) if choice < 0.7 else strange(rt, draw)
    if isinstance(value, int) and not isinstance(value, bool) and choice < 0.6:
        return draw.choice(INTEGERS)
    if isinstance(value, (list, tuple)) and choice < 0.5:
        count = draw.randrange(5)
        return (
            type(value)(draw.choice((*value, *INTEGERS)) for _ in range(count))
            if value
            else [tensor(rt, draw)]
        )
    return strange(rt, draw) if choice < 0.7 else draw.choice(INTEGERS) if choice < 0.85 else tensor(rt, draw)


def mutated(rt: Any, op: Op, draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """One broken call."""
    dtype = draw.choice(op.dtypes)
    originals = [s for s in op.samples(op.rng()) if s.dtypes is None or dtype in s.dtypes]
    original = draw.choice(originals)
    args, kwargs = convert.arguments(rt, convert.concrete(original, dtype), original, dtype)
    if draw.random() < 0.3:
        args = tree_map(lambda v: v.requires_grad_(True) if grows(rt, v) else v, args)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        step = draw.random()
        names = [*range(len(args)), *kwargs]
        if step < 0.75 and names:
            name = draw.choice(names)
            store: Any = args if isinstance(name, int) else kwargs
            store[name] = other(rt, store[name], draw)
        elif step < 0.85 and args:
            args.pop(draw.randrange(len(args)))
        elif step < 0.95:
            args.insert(draw.randrange(len(args) + 1), strange(rt, draw))
        else:
            kwargs[draw.choice(("dim", "dtype", "out", "input", "keepdim", "device", "nonsense"))] = strange(
                rt, draw
            )
    return args, kwargs


def grows(rt: Any, value: Any) -> bool:
    """A floating point tensor."""
    return isinstance(value, rt.Tensor) and value.is_floating_point()


def touch(rt: Any, result: Any) -> None:
    """Reads a small result, and runs its backward."""
    for one in checks.tensors(rt, result):
        if one.device.type == "meta" or one.numel() > TOUCH:
            continue
        one.detach().clone()
        repr(one)
        if one.requires_grad and one.grad_fn is not None and one.is_floating_point():
            one.sum().backward(retain_graph=True)


def one_call(rt: Any, op: Op, number: int) -> str | None:
    """Runs call `number` of a row; returns what is wrong with it, if anything."""
    call = checks.resolve(rt, op)
    args, kwargs = mutated(rt, op, random.Random(zlib.crc32(f"{op.id}/{number}".encode())))
    allowed = ALLOWED + ((AttributeError,) if op.call or op.python else ())
    try:
        touch(rt, call(*args, **kwargs))
    except allowed:
        return None
    except Exception as error:
        return f"call {number} raised {type(error).__name__}: {error}"[:400]
    finally:
        if convert.device == "cuda":
            with contextlib.suppress(IndexError):  # a bad index is reported when the device is waited for
                rt.cuda.synchronize()
    return None


def limit_memory() -> None:
    """A bound on the address space; a sanitizer's shadow memory cannot live under one, and has its own
    limit."""
    if time_limits.SANITIZED:
        return
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def main(progress: str, runtime: str, device: str, first: int, calls: int, names: list[str]) -> None:
    """Runs `calls` mutated calls of each named row, and prints one JSON line a row: name and what went
    wrong."""
    warnings.simplefilter("ignore")
    rt = importlib.import_module(runtime)
    convert.device = device
    rows = {op.id: op for op in ROWS}
    limit_memory()
    marker = os.open(progress, os.O_WRONLY | os.O_CREAT)
    for position, name in enumerate(names):
        wrong = []
        for number in range(first if position == 0 else 0, calls):
            os.pwrite(marker, b"%8d %8d" % (position, number), 0)
            found = one_call(rt, rows[name], number)
            if found:
                wrong.append(found)
        print(json.dumps([name, wrong]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6:])
