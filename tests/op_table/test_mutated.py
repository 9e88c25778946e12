"""No Python argument may crash or hang the process: mutated calls of every row, in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import time_limits

from . import FAMILIES, convert
from .driver import callable_of, count, rows
from .table import Op

PATIENCE = time_limits.seconds(60)  # that one call may take, on a loaded machine
Wrong = dict[str, list[str]]


def run_batch(runtime: str, names: list[str], calls: int, folder: Path) -> Wrong:
    """What went wrong, by row. After a crash or a hang the batch goes on with the call after it."""
    wrong: Wrong = {}
    progress, output = folder / "progress", folder / "output"
    first = 0
    while names:
        progress.write_bytes(b"%8d %8d" % (0, first))
        command = [
            sys.executable,
            "-m",
            "op_table.mutate",
            str(progress),
            runtime,
            convert.device,
            str(first),
            str(calls),
            *names,
        ]
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        with output.open("w") as out, (folder / "errors").open("w") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=os.environ | {"PYTHONPATH": path})
            hung = not wait(process, progress)
        for line in output.read_text().splitlines():
            name, found = json.loads(line)
            wrong.setdefault(name, []).extend(found)
        if process.returncode == 0:
            break
        position, number = (int(part) for part in progress.read_bytes().split())
        reason = "hung" if hung else describe(process.returncode, folder / "errors")
        wrong.setdefault(names[position], []).append(f"call {number} {reason}")
        names, first = names[position:], number + 1
        if first >= calls or len(wrong[names[0]]) > 5:
            names, first = names[1:], 0
    return wrong


def wait(process: subprocess.Popen[bytes], progress: Path) -> bool:
    """Waits for the end; kills the process and returns False if one call takes longer than PATIENCE."""
    last, since = b"", time.monotonic()
    while process.poll() is None:
        time.sleep(0.02)
        now = progress.read_bytes()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            process.kill()
            process.wait()
            return False
    return True


def describe(code: int, errors: Path) -> str:
    """'died of SIGSEGV', or the process' last words."""
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"ended with {code}: {errors.read_text()[-600:]}"


@pytest.fixture(scope="session")
def batches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wrong]:
    """Results by family, filled as they are asked for."""
    return {}


@rows()
def test_mutated(
    rt: ModuleType,
    op: Op,
    batches: dict[str, Wrong],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> None:
    callable_of(rt, op, request)
    calls = request.config.getoption("--mutations")
    family = next(name for name, members in FAMILIES.items() if op in members)
    if family not in batches:
        names = [one.id for one in FAMILIES[family]]
        batches[family] = run_batch(rt.__name__, names, calls, tmp_path_factory.mktemp(family))
    assert not batches[family].get(op.id), "\n".join(batches[family][op.id])
    assert op.id in batches[family], "the batch did not reach this row"
    count(request, "mutated", calls)
