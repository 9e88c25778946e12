"""The C interface: saved programs run without Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import warptape as torch
from warptape import nn
from warptape.export import Dim, export, save

PACKAGE = Path(torch.__file__).parent
EXAMPLE = Path(__file__).parents[2] / "examples" / "run_program.cpp"
THREADS = Path(__file__).with_name("capi_threads.cpp")
FLOAT32 = 8


class Tensor(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


@pytest.fixture(scope="module")
def library():
    lib = ctypes.CDLL(str(PACKAGE / "libwarptape.so"))
    lib.wt_program_open.restype = lib.wt_program_open_memory.restype = lib.wt_program_run.restype = (
        ctypes.c_void_p
    )
    lib.wt_last_error.restype = lib.wt_program_text.restype = ctypes.c_char_p
    lib.wt_result_tensor.restype = Tensor
    for name in ("close", "text", "num_inputs", "num_outputs"):
        getattr(lib, f"wt_program_{name}").argtypes = [ctypes.c_void_p]
    lib.wt_program_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    lib.wt_program_open_memory.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    lib.wt_program_input.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 3]
    lib.wt_result_tensor.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.wt_result_count.argtypes = lib.wt_result_free.argtypes = [ctypes.c_void_p]
    return lib


def given(a):
    return Tensor(FLOAT32, a.ndim, (ctypes.c_int64 * a.ndim)(*a.shape), a.ctypes.data)


def run(lib, program, *arrays):
    """The outputs as arrays; an error is a RuntimeError with its text."""
    inputs = (Tensor * len(arrays))(*map(given, arrays))
    result = lib.wt_program_run(program, inputs, len(arrays))
    if not result:
        raise RuntimeError(lib.wt_last_error().decode())
    out = []
    for i in range(lib.wt_result_count(result)):
        t = lib.wt_result_tensor(result, i)
        shape = t.sizes[: t.ndim]
        bytes_ = ctypes.string_at(t.data, 4 * int(np.prod(shape))) if t.data else b""
        out.append(np.frombuffer(bytes_, np.float32).reshape(shape))
    lib.wt_result_free(result)
    return out


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def path(model, tmp_path):
    path = tmp_path / "model.safetensors"
    save(export(model, (torch.ones(2, 4),), dynamic_shapes=({0: Dim("batch", max=32)},)), path)
    return path


def test_run(library, model, path):
    program = library.wt_program_open(str(path).encode())
    assert library.wt_program_num_inputs(program) == library.wt_program_num_outputs(program) == 1
    assert library.wt_program_text(program).startswith(b"graph<batch in [0, 32]>(%0: float32[batch, 4])")
    dtype, ndim, sizes = ctypes.c_int(), ctypes.c_int(), ctypes.POINTER(ctypes.c_int64)()
    pointers = [ctypes.addressof(x) for x in (dtype, ndim, sizes)]
    assert library.wt_program_input(program, 0, *pointers) == 0
    assert (dtype.value, sizes[: ndim.value]) == (FLOAT32, [-1, 4])
    assert library.wt_program_input(program, 1, *pointers) == -1
    for n in (0, 1, 5, 32):
        x = np.random.default_rng(n).standard_normal((n, 4), np.float32)
        with torch.no_grad():
            want = model(torch.tensor(x)).numpy()
        for _ in range(3):  # a first run, and runs of the compiled form
            assert run(library, program, x)[0].tobytes() == want.tobytes()
    library.wt_program_close(program)


def test_threads(library, model, path):
    program = library.wt_program_open_memory(path.read_bytes(), path.stat().st_size)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for n in rng.integers(1, 9, 50):
            x = rng.standard_normal((n, 4), np.float32)
            with torch.no_grad():
                want = model(torch.tensor(x)).numpy()
            wrong.extend([n] * (run(library, program, x)[0].tobytes() != want.tobytes()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
    library.wt_program_close(program)


def build(source, binary, *more):
    """A program that uses the library."""
    flags = [
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{PACKAGE}/include",
        f"-L{PACKAGE}",
        "-lwarptape",
        *more,
    ]
    subprocess.run(["g++", str(source), *flags, f"-Wl,-rpath,{PACKAGE}", "-o", str(binary)], check=True)
    return binary


class Mixed(nn.Module):
    """Of ops that are recorded, and of some that run at once."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        y = torch.relu(self.a(x)) * 2 + x
        y = torch.sort(torch.cumsum(torch.sigmoid(y) * y + torch.tanh(x), 1), 1)[0]
        return self.b(y).exp()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_threads_that_begin_together(tmp_path, pytestconfig):
    """40 times 30 runs of each thread; 10,000 with --programs 10000."""
    save(export(Mixed().eval(), (torch.ones(8, 16),)), tmp_path / "p")
    binary = build(THREADS, tmp_path / "threads", "-pthread")
    times = max(40, pytestconfig.getoption("--programs") // 30)
    for threads in (2, 8):
        done = subprocess.run(
            [binary, tmp_path / "p", str(threads), str(times), "30"], capture_output=True, timeout=1800
        )
        assert (done.returncode, done.stdout) == (0, b"0 wrong\n")


def test_inputs_that_are_returned(library, tmp_path):
    save(export(lambda x: (x, x[1:]), (torch.ones(3),)), tmp_path / "p")
    program = library.wt_program_open(str(tmp_path / "p").encode())
    x = np.arange(3, dtype=np.float32)
    first, rest = run(library, program, x)
    assert first.tolist() == [0, 1, 2] and rest.tolist() == [1, 2]
    library.wt_program_close(program)


def test_wrong_input(library, path, tmp_path):
    assert not library.wt_program_open(b"/no/such/file")
    assert b"cannot open /no/such/file" in library.wt_last_error()
    assert not library.wt_program_open_memory(b"12345", 5)
    assert b"graph: the file is cut" in library.wt_last_error()
    program = library.wt_program_open(str(path).encode())
    for arrays, message in (
        ((np.zeros((33, 4), np.float32),), "batch = 33 is outside of the range"),
        ((np.zeros((3, 5), np.float32),), "expected the size 4"),
        ((), "expected 1 tensors, got 0"),
    ):
        with pytest.raises(RuntimeError, match=message):
            run(library, program, *arrays)
    bad = (Tensor * 1)(Tensor(99, 2, (ctypes.c_int64 * 2)(1, 4), None))
    assert not library.wt_program_run(program, bad, 1) and b"unknown dtype 99" in library.wt_last_error()
    bad[0] = Tensor(FLOAT32, 2, (ctypes.c_int64 * 2)(-1, 4), None)
    assert not library.wt_program_run(program, bad, 1) and library.wt_last_error()
    library.wt_program_close(program)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_example(model, path, tmp_path):
    binary = build(EXAMPLE, tmp_path / "run_program")
    x = torch.randn(2, 4)
    (tmp_path / "x.bin").write_bytes(x.numpy().tobytes())
    out = subprocess.run(
        [binary, path, "2x4", tmp_path / "x.bin"], check=True, capture_output=True, text=True
    ).stdout
    with torch.no_grad():
        want = model(x)
    got = [float(v) for v in out.splitlines()[0].split(":")[1].split()]
    assert out.startswith("[2, 3]: ") and got == pytest.approx(want.flatten().tolist(), rel=1e-7)
    failed = subprocess.run([binary, path, "2x5"], capture_output=True, text=True)
    assert failed.returncode == 1 and "expected the size 4" in failed.stderr
