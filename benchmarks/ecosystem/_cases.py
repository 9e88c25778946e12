"""What the scripts of this folder share: cases of a library that run alike under PyTorch and warptape.

A script names what pip shall install in its head (inline script metadata, PEP 723), marks functions with
`@case` and ends with `main()`. A case returns the numbers, strings, tensors and containers of them that both
runtimes must agree on. tools/ecosystem.py runs the scripts and compares.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

_CASES: dict[str, tuple[Callable[[], Any], float]] = {}


def case(run: Callable[[], Any] | None = None, *, tolerance: float = 1e-4) -> Any:
    """Marks a case; `tolerance` is the largest difference allowed, relative to a result's largest number."""

    def mark(run: Callable[[], Any]) -> Callable[[], Any]:
        _CASES[run.__name__] = run, tolerance
        return run

    return mark(run) if run else mark


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it: tensors and arrays become nested lists."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "detach"):
        value = value.detach()
        return _plain((value.float() if value.is_floating_point() else value).tolist())
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"a case returned a {type(value).__name__}: return numbers, strings or tensors")


def _cpu_seconds() -> float:
    """CPU time of this process and those that it waited for: other work on the machine does not count."""
    return sum(os.times()[:4])


def _run(run: Callable[[], Any], tolerance: float) -> dict[str, Any]:
    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)  # noqa: NPY002  libraries draw from the global generator
    torch.manual_seed(0)
    start = _cpu_seconds()
    try:
        out = {"values": _plain(run()), "tolerance": tolerance}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        out = {"error": f"{type(error).__name__}: {error}"}
    return {**out, "seconds": _cpu_seconds() - start}


def main() -> None:
    """Run the cases that `sys.argv[2:]` names, or all, and write what they returned to `sys.argv[1]`.

    With `--list` their names are printed instead, in the last line.
    """
    if sys.argv[1:] == ["--list"]:
        print(*_CASES)
        return
    results: dict[str, dict[str, Any] | None] = dict.fromkeys(sys.argv[2:] or _CASES)
    _write(results)
    for name in results:
        found = results[name] = _run(*_CASES[name])
        print(name, found.get("error", "ran"), f"{found['seconds']:.2f} s", flush=True)
        _write(results)


def _write(results: dict[str, dict[str, Any] | None]) -> None:
    """Writes what is known so far: None for a case that has not run, or that ended the process."""
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
