"""Chains of elementwise kernels over NumPy's memory, and the same kernels run one at a time."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import warptape

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = Path(warptape.__file__).resolve().parent / "libwarptape.so"
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
NUMBER = {name: i for i, name in enumerate(DTYPES)}
MAX_INPUTS = 24
NO_CHAIN, DIVIDED_BY_ZERO = 1, 2


class Operand(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("host_scalar", ctypes.c_int32),
        ("strides", ctypes.c_int64 * 8),
    ]


class Step(ctypes.Structure):
    _fields_ = [
        ("slot", ctypes.c_char_p),
        ("compute", ctypes.c_int32),
        ("result", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("inputs", ctypes.c_int32 * 6),
    ]


class Geometry(ctypes.Structure):
    _fields_ = [("ndim", ctypes.c_int64), ("sizes", ctypes.c_int64 * 8)]


class SingleOp(ctypes.Structure):
    _fields_ = [
        ("slot", ctypes.c_char_p),
        ("compute", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("geometry", Geometry),
        ("operands", Operand * 7),
    ]


def memory_dtype(dtype: str) -> Any:
    """bfloat16 has none in NumPy: its bits."""
    return np.uint16 if dtype == "bfloat16" else np.dtype(dtype)


@dataclass
class Value:
    """An array and its dtype here; or a number, whose array has no dims."""

    array: np.ndarray
    dtype: str

    def operand(self, shape: tuple[int, ...]) -> Operand:
        strides = np.broadcast_to(self.array, shape).strides
        number = self.array.ndim == 0
        return Operand(self.array.ctypes.data, NUMBER[self.dtype], number, (ctypes.c_int64 * 8)(*strides))


@dataclass
class Chain:
    """A step is (slot, compute dtype, values, result dtype); the first len(inputs) values are the inputs."""

    inputs: list[Value]
    steps: list[tuple[str, str, tuple[int, ...], str]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def dtype(self, value: int) -> str:
        at = value - len(self.inputs)
        return self.inputs[value].dtype if at < 0 else self.steps[at][3]

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(v.array.shape for v in self.inputs))


def merged(shape: tuple[int, ...], operands: list[Operand]) -> Geometry:
    """Neighbouring dims that are one run in every operand become one, as the tensor layer does it."""
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for d, size in enumerate(shape):
        if size == 1:
            continue
        own = [o.strides[d] for o in operands]
        if sizes and all(s[-1] == step * size for s, step in zip(strides, own, strict=True)):
            sizes[-1] *= size
            for s, step in zip(strides, own, strict=True):
                s[-1] = step
        else:
            sizes.append(size)
            for s, step in zip(strides, own, strict=True):
                s.append(step)
    if not sizes:
        sizes, strides = [1], [[0] for _ in operands]
    for operand, own in zip(operands, strides, strict=True):
        operand.strides = (ctypes.c_int64 * 8)(*own)
    return Geometry(len(sizes), (ctypes.c_int64 * 8)(*sizes))


class Driver:
    """The slots of the built library, compiled by g++ into `folder`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("g++")
        assert compiler
        out = folder / "libchain_driver.so"
        source = ROOT / "tests" / "chain" / "driver.cpp"
        flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        includes = [f"-I{ROOT / 'kernels' / 'include'}", f"-I{ROOT}", f"-I{ROOT / 'csrc'}"]
        link = [f"-L{LIBRARY.parent}", "-lwarptape", f"-Wl,-rpath,{LIBRARY.parent}"]
        subprocess.run(
            [compiler, *flags, *includes, str(source), "-o", str(out), *link], check=True, timeout=600
        )
        self.library = ctypes.CDLL(str(out))
        self.library.run_chain.restype = self.library.run_ops.restype = ctypes.c_int

    def set_threads(self, n: int) -> None:
        self.library.set_threads(n)

    def by_op(self, chain: Chain, repeats: int = 1) -> tuple[list[np.ndarray], int, float]:
        """Each step by its op's kernel into memory of its own: the steps' values, status, fewest seconds."""
        values = list(chain.inputs)
        ops = (SingleOp * len(chain.steps))()
        for op, (slot, compute, inputs, result) in zip(ops, chain.steps, strict=True):
            taken = [values[i] for i in inputs]
            shape = np.broadcast_shapes(*(v.array.shape for v in taken))
            out = Value(np.zeros(shape, memory_dtype(result)), result)
            operands = [v.operand(shape) for v in (out, *taken)]
            operands[0].host_scalar = 0
            op.slot, op.compute, op.count = slot.encode(), NUMBER[compute], len(operands)
            op.geometry = merged(shape, operands)
            op.operands = (Operand * 7)(*operands)
            values.append(out)
        seconds = ctypes.c_double()
        status = self.library.run_ops(len(ops), ops, repeats, ctypes.byref(seconds))
        return [v.array for v in values[len(chain.inputs) :]], status, seconds.value

    def run(
        self, chain: Chain, outputs: list[Value], shape: tuple[int, ...] | None = None, repeats: int = 1
    ) -> tuple[int, float]:
        """The chain into the given memory: status, and the fewest seconds of the repeats."""
        shape = chain.shape if shape is None else shape
        operands = [v.operand(shape) for v in (*outputs, *chain.inputs)]
        for o in operands[: len(outputs)]:
            o.host_scalar = 0
        geometry = merged(shape, operands)
        first = len(chain.inputs)
        steps = (Step * len(chain.steps))()
        for to, (slot, compute, inputs, result) in zip(steps, chain.steps, strict=True):
            numbers = [i if i < first else i - first + MAX_INPUTS for i in inputs]
            to.slot, to.compute, to.result = slot.encode(), NUMBER[compute], NUMBER[result]
            to.count, to.inputs = len(inputs), (ctypes.c_int32 * 6)(*numbers)
        values = [v if v < first else v - first + MAX_INPUTS for v in chain.outputs]
        seconds = ctypes.c_double()
        status = self.library.run_chain(
            ctypes.byref(geometry),
            first,
            (Operand * first)(*operands[len(outputs) :]),
            len(steps),
            steps,
            len(outputs),
            (ctypes.c_int * len(values))(*values),
            (Operand * len(outputs))(*operands[: len(outputs)]),
            repeats,
            ctypes.byref(seconds),
        )
        return status, seconds.value
