"""Program files of strangers: refused, or run within their memories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warptape as torch
from time_limits import SANITIZED
from warptape import _C
from warptape.export import export

from .stranger_files import opened, taken_apart

TESTS = Path(__file__).parents[1]


def fnv(op):
    """The hash of a declaration, as csrc/graph/ir/graph.cpp has it."""
    types = {"Tensor": 0, "int": 3, "bool": 5}
    number = 2166136261
    for name, kind, optional, *_ in op[2]:
        for byte in [*name.encode(), types[kind], optional, 0]:
            number = ((number ^ byte) * 16777619) & 0xFFFFFFFF
    return ((number ^ 1) * 16777619) & 0xFFFFFFFF  # returns a tensor


def test_private_ops():
    """Those that trust their caller, or set the process's state."""
    _, parts = taken_apart(export(lambda x: x.relu(), (torch.ones(3, 4),)))
    ops = {op[0]: op for op in _C._list_ops()}
    for name in ("_complex_abs", "_complex_sgn"):
        op = ops[name]
        number = fnv(op)
        values = {"Tensor": "%0"}
        args = ", ".join(f"{a[0]}={values[a[1]]}" for a in op[2])
        call = f"%1: float32[3, 4] = {name}#{number:08x}({args})"
        text = f"graph(%0: float32[3, 4]) {{\n  {call}\n  return %1\n}}\n"
        with pytest.raises(NotImplementedError, match="is private"):
            opened(text, parts)(torch.ones(3, 4))


def test_sizes_that_do_not_hold():
    text, parts = taken_apart(export(lambda x: x[:4] * 1, (torch.ones(6, 3),)))
    assert opened(text, parts)(torch.ones(6, 3)).shape == (4, 3)
    for old, new in (("float32[4, 3]", "float32[9, 3]"), ("end=4", "end=5"), ("float32[4, 3]", "float32[4]")):
        assert old in text
        with pytest.raises(torch.ShapeError, match="graph: "):
            opened(text.replace(old, new), parts)(torch.ones(6, 3))
    broken = text.replace("graph(", "graph<n in [5, 2]>(")
    with pytest.raises(RuntimeError, match="is none of sizes"):
        opened(broken, parts)
    with pytest.raises((RuntimeError, ValueError)):
        opened(text.replace("input=%0, dim", "input=%_, dim"), parts)


def guarded(*command):
    """What a process does in which no memory around a tensor's may be touched."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    environment = {**os.environ, "WARPTAPE_GUARD_PAGES": "1", "PYTHONPATH": path}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)


def test_mutated_files(pytestconfig):
    """No file reads or writes outside of its tensors' memory: 4,000 texts, or 20 for each of --programs."""
    count = pytestconfig.getoption("--programs") * 20
    done = guarded("-m", "graph.stranger_files", "3", str(count))
    assert done.returncode == 0, (done.returncode, done.stderr)
    ran, refused = map(int, done.stdout.split())
    assert ran and refused and ran + refused == count


@pytest.mark.skipif(SANITIZED, reason="a sanitizer sees the write first")
@pytest.mark.parametrize(
    ("write", "died"),
    [
        ("x.data_ptr() + 4 * 16", -signal.SIGSEGV),
        ("x.data_ptr() - 4096", -signal.SIGSEGV),
        ("y.data_ptr() + 3", -signal.SIGABRT),
        ("y.data_ptr() - 1", -signal.SIGABRT),
        ("x.data_ptr() + 4 * 16 - 1", 0),
    ],
)
def test_guard_pages_find_a_write(write, died):
    code = (
        "import ctypes, warptape as torch\n"
        "x, y = torch.zeros(16), torch.zeros(3, dtype=torch.uint8)\n"
        f"ctypes.memset({write}, 1, 1)\n"
        "del x, y"
    )
    assert guarded("-c", code).returncode == died
