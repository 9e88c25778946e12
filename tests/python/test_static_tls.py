"""Room for thread-local variables: the library takes 8 bytes of what glibc leaves to those loaded late."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import warptape

PACKAGE = Path(warptape.__file__).resolve().parent
ROOT = Path(__file__).resolve().parents[2]
FILLER = """
static __thread char block[{size}] __attribute__((tls_model("initial-exec")));
void *touch_{size}_{number}(void) {{ return block; }}
"""


def segment_of_thread_locals(path: Path) -> int:
    """Bytes of a library's PT_TLS segment, 0 without one."""
    data = path.read_bytes()
    assert data[:5] == b"\x7fELF\x02"
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for k in range(count):
        kind, _, _, _, _, _, in_memory, _ = struct.unpack_from("<IIQQQQQQ", data, offset + k * size)
        if kind == 7:
            return in_memory
    return 0


def test_one_word():
    assert segment_of_thread_locals(PACKAGE / "libwarptape.so") == 8


def test_no_variable_of_a_thread_lies_elsewhere():
    # The bindings' and the plugins' are dynamic; what is exempt is the one word, and strings and comments.
    found = []
    for folder in ("csrc", "kernels"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in (".h", ".cpp") or {"bindings", "cuda", "nccl", "gloo", "mpi"} & set(
                path.parts
            ):
                continue
            text = re.sub(r'//.*|"[^"]*"', "", path.read_text())
            found += [str(path.relative_to(ROOT)) for _ in re.findall(r"\bthread_local\b", text)]
    assert sorted(found) == ["csrc/core/context.cpp", "kernels/include/kernels/per_thread.h"]


@pytest.fixture(scope="module")
def fillers(tmp_path_factory):
    """Libraries that want static room: 8 of 256 bytes, one of 1,200."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("fillers")
    made = []
    for number, size in enumerate([1200] + [256] * 8):
        source, library = folder / f"f{number}.c", folder / f"f{number}.so"
        source.write_text(FILLER.format(size=size, number=number))
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        made.append(str(library))
    return made


def run(program: str, *arguments: str) -> str:
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


USED_UP = """
import ctypes, sys, threading
import numpy
kept = []
for path in sys.argv[2:]:
    try:
        kept.append(ctypes.CDLL(path))
    except OSError as error:
        assert "static TLS" in str(error)
        break
else:
    raise SystemExit("there was room for all")
import warptape as t
def work(out):
    x = t.ones(3, requires_grad=True)
    (x * x).sum().backward()
    out.append(x.grad.tolist())
out = []
work(out)
for _ in range(3):
    thread = threading.Thread(target=work, args=(out,))
    thread.start()
    thread.join()
print(len(kept), out == [[2.0] * 3] * 4)
"""
FIRST = """
import ctypes, sys
import warptape as t
library = ctypes.CDLL(sys.argv[1])
print(t.ones(2).sum().item())
"""


def test_import_where_other_libraries_have_used_the_room(fillers):
    count, right = run(USED_UP, *fillers).split()
    assert int(count) >= 2 and right == "True"


def test_other_libraries_find_room_after_it(fillers):
    assert run(FIRST, fillers[0]) == "2.0\n"
