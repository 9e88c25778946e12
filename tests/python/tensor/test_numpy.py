"""Tensors where NumPy meets them: conversions, functions of NumPy, buffers."""

from __future__ import annotations

import operator
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import warptape as wt


def test_copies_are_copies() -> None:
    t = wt.arange(3.0)
    np.array(t)[0] = 9
    np.array(t, dtype=np.float32, copy=True)[0] = 9
    assert t[0] == 0
    np.asarray(t)[0] = 7
    assert t[0] == 7
    assert np.asarray(t, dtype=np.float64).dtype == np.float64
    if int(np.__version__.split(".")[0]) >= 2:
        assert np.asarray(t, copy=False).base is not None
        with pytest.raises(ValueError, match="copy"):
            np.asarray(t, dtype=np.float64, copy=False)


def test_functions_of_numpy_return_tensors() -> None:
    t = wt.arange(3.0)
    for found in (np.sin(t), np.add(t, 1), np.matmul(np.eye(3, dtype="f4"), t)):
        assert type(found) is wt.Tensor and found.dtype == wt.float32
    np.testing.assert_allclose(np.sin(t).numpy(), np.sin(t.numpy()))
    assert np.greater(t, 1).dtype == wt.uint8  # as PyTorch has it
    for number in (np.float64(2), np.float32(2), np.int64(2)):
        for found in (number * t, t * number):
            assert type(found) is wt.Tensor and found.dtype == wt.float32 and found.tolist() == [0, 2, 4]


def test_comparison_with_arrays() -> None:
    t, a = wt.tensor([1.0, 2.0]), np.array([1.0, 3.0])
    for equal, unequal in ((t == a, t != a), (a == t, a != t)):
        assert type(equal) is type(unequal) is wt.Tensor and equal.dtype == unequal.dtype == wt.bool
        assert equal.tolist() == [True, False] and unequal.tolist() == [False, True]
    assert (t == a[:, None]).tolist() == [[True, False], [False, False]]
    assert (wt.nn.Parameter(t) == np.array(1)).tolist() == [True, False]
    assert (t == np.array(["a", "b"])) is False and (t != np.array(["a", "b"])) is True
    with pytest.raises(wt.ShapeError):
        t == np.ones(3)  # noqa: B015
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        for sides in ((t, a), (a, t)):
            with pytest.raises(TypeError):
                compare(*sides)


def test_operators_with_arrays() -> None:
    t, a = wt.tensor([2.0, 4.0]), np.array([1.0, 3.0])
    for found, expected in (
        (t + a, [3, 7]),
        (t - a, [1, 1]),
        (t * a, [2, 12]),
        (t / a, [2, 4 / 3]),
        (t // a, [2, 1]),
        (t % a, [0, 1]),
        (t**a, [2, 64]),
        (t @ a, 14),
        (a / t, [0.5, 0.75]),
    ):
        assert type(found) is wt.Tensor and found.dtype == wt.float64 and found.tolist() == expected
    assert (np.array([True]) / wt.tensor([4])).tolist() == [0.25]
    for reflected in (
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.pow,
        operator.matmul,
    ):
        with pytest.raises(TypeError):
            reflected(a, t)
    with pytest.raises(RuntimeError, match="requires grad"):
        a / wt.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    "number", [np.int16(2), np.float32(2), np.float64(2)], ids=lambda n: type(n).__name__
)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "lt", "ge"])
def test_operators_with_numbers(name: str, number: Any) -> None:
    op = getattr(operator, name)
    for t in (wt.tensor([1.5, 4.0]), wt.tensor([1, 4]), wt.tensor(3.0)):
        plain = number.item()
        for found, expected in ((op(t, number), op(t, plain)), (op(number, t), op(plain, t))):
            assert type(found) is wt.Tensor and found.dtype == expected.dtype
            assert found.tolist() == expected.tolist()
    assert (wt.tensor([True]) & np.True_).dtype == wt.bool
    assert (wt.ones(1) * np.complex64(2j)).tolist() == [2j]


def test_arrays_that_are_not_taken() -> None:
    with pytest.raises(ValueError, match="byte order"):
        wt.from_numpy(np.zeros(2, ">f4"))
    code = """
import warnings, numpy as np, warptape as wt
a = np.zeros(2)
a.flags.writeable = False
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    wt.from_numpy(a), wt.from_numpy(a)
    wt.set_warn_always(True)
    wt.from_numpy(a)
print(len(seen), all("not writable, and there are no non-writable" in str(w.message) for w in seen))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2 True", done.stderr


def test_frombuffer() -> None:
    data = bytearray(np.arange(6, dtype="i2").tobytes())
    t = wt.frombuffer(data, dtype=wt.int16)
    assert t.tolist() == [0, 1, 2, 3, 4, 5]
    t[0] = 258
    assert data[:2] == b"\2\1"
    assert wt.frombuffer(data, dtype=wt.int16, count=2, offset=4).tolist() == [2, 3]
    assert wt.frombuffer(bytearray(8), dtype=wt.float32, requires_grad=True).requires_grad
    assert wt.frombuffer(bytearray(4), dtype=wt.bfloat16).tolist() == [0, 0]
    with pytest.raises(ValueError, match="does not implement Python buffer protocol"):
        wt.frombuffer([1, 2], dtype=wt.int16)
    with pytest.warns(UserWarning, match="The given buffer is not writable"):
        assert wt.frombuffer(b"\1\0\2\0", dtype=wt.int16).tolist() == [1, 2]
    for arguments, match in (
        ({"count": 0}, "must not be 0"),
        ({"offset": -1}, "non-negative"),
        ({"offset": 12}, "non-negative"),
        ({"offset": 1}, "multiple of element size"),
        ({"count": 7}, "must not be greater"),
    ):
        with pytest.raises(ValueError, match=match):
            wt.frombuffer(data, dtype=wt.int16, **arguments)
    with pytest.raises(ValueError, match="must not be 0"):
        wt.frombuffer(b"", dtype=wt.uint8)


def test_asarray_of_memory_of_others() -> None:
    data = bytearray(np.arange(4, dtype="i2").tobytes())
    t = wt.asarray(data, dtype=wt.int16)  # read as that, not converted
    t[0] = 258
    assert data[:2] == b"\2\1"
    copied = wt.asarray(memoryview(data), dtype=wt.int16, copy=True)
    copied[0] = 0
    assert t[0] == 258
    array = np.array([1 + 2j], dtype=np.complex64)
    assert wt.asarray(memoryview(array), dtype=wt.complex64).tolist() == [1 + 2j]
    x = wt.ones(2)
    shared = wt.asarray(x.__dlpack__())
    shared[0] = 5
    assert x.tolist() == [5, 1]
    assert wt.asarray(x.__dlpack__(), dtype=wt.int64).tolist() == [5, 1]
