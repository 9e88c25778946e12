"""tensor() from nested sequences, dtype and device objects, and what the factories refuse."""

from __future__ import annotations

import array
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (1, "int64", ()),
        (1.5, "float32", ()),
        (True, "bool", ()),
        ([], "float32", (0,)),
        ([[], []], "float32", (2, 0)),
        ([1, 2], "int64", (2,)),
        ([1, 2.5], "float32", (2,)),
        ([True, 2], "int64", (2,)),
        ([True, 2.5], "float32", (2,)),
        (((1, 2), [3, 4]), "int64", (2, 2)),
        (range(3), "int64", (3,)),
        (np.float64(2), "float64", ()),
        (np.array([1, 2], np.int16), "int16", (2,)),
        ([np.array([1.0, 2.0]), np.array([3.0, 4.0])], "float64", (2, 2)),
        (np.array([[1, 2], [3, 4]], np.uint8)[:, 1:], "uint8", (2, 1)),
        (np.int16(3), "int16", ()),
        ([np.float32(1.5), np.float32(2.5)], "float32", (2,)),
        (array.array("f", [1, 2, 3]), "float32", (3,)),
    ],
)
def test_dtype_and_shape(data: Any, dtype: str, shape: tuple[int, ...]) -> None:
    t = wt.tensor(data)
    assert t.dtype == getattr(wt, dtype) and tuple(t.shape) == shape
    assert np.array_equal(t.numpy(), np.array(data, dtype=dtype))


def test_from_tensors() -> None:
    t = wt.tensor([1.0, 2.0])
    with pytest.warns(UserWarning, match=r"rather than torch\.tensor\(sourceTensor\)"):
        copy = wt.tensor(t)
    with pytest.warns(UserWarning, match=r"rather than tensor\.new_tensor\(sourceTensor\)"):
        t.new_tensor(copy)
    copy[0] = 5.0
    assert t.tolist() == [1.0, 2.0]
    assert wt.as_tensor(t) is t and wt.as_tensor(t, dtype=wt.float64).dtype == wt.float64
    assert wt.tensor([wt.tensor(1.0), wt.tensor(2.0)]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("items", "dtype", "values"),
    [
        ([(1, "int32")], "int32", [1]),
        ([([1], "int32"), ([[2]], "int32")], "int32", [1, 2]),
        ([(1, "int32"), 2], "int64", [1, 2]),
        ([3, ([1], "int32")], "int64", [3, 1]),
        ([(1, "int32"), 2.0], "float32", [1, 2]),
        ([(1, "uint8"), (2, "int8")], "int16", [1, 2]),
        ([(1, "float16"), (2, "int64")], "float16", [1, 2]),
        ([1.0, (1, "float64")], "float64", [1, 1]),
        ([(True, "bool"), (2, "int32")], "int32", [1, 2]),
        ([[1.0, 2.0], ([3, 4], "float64")], "float64", [[1, 2], [3, 4]]),
        ([[([1], "int16")], [([2], "int16")]], "int16", [[1], [2]]),
    ],
)
def test_tensors_in_lists(items: Any, dtype: str, values: Any) -> None:
    def made(item: Any) -> Any:
        if isinstance(item, list):
            return [made(i) for i in item]
        return wt.tensor(item[0], dtype=getattr(wt, item[1])) if isinstance(item, tuple) else item

    t = wt.tensor(made(items))
    assert t.dtype == getattr(wt, dtype) and t.tolist() == values


def test_tensors_in_lists_have_one_element() -> None:
    with pytest.raises(TypeError, match="only one element"):
        wt.tensor([wt.tensor([1, 2]), wt.tensor([3, 4])])
    with pytest.raises(ValueError, match="only one element"):
        wt.tensor([wt.ones(0)])


class Clears:
    """An item whose conversion empties the list that holds it."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        items.append(self)

    def __float__(self) -> float:
        self.items.clear()
        return 1.0

    def __index__(self) -> int:
        self.items.clear()
        return 1


def test_lists_that_conversion_changes() -> None:
    def clearing(*rest: Any) -> list[Any]:
        items: list[Any] = []
        Clears(items)
        items.extend(rest)
        return items

    assert wt.tensor(clearing(*(i + 0.5 for i in range(1000)))).shape == (1001,)
    assert wt.zeros(clearing(10, 20)).shape == (1, 10, 20)
    assert wt.arange(8).view(clearing(2, 4)).shape == (1, 2, 4)
    assert wt.arange(8)[clearing(5, 6)].tolist() == [1, 5, 6]
    assert wt.ones(2, 3, 4).sum(clearing(0, 2)).item() == 24


def test_explicit_dtype() -> None:
    assert wt.tensor([1.7, -1.7], dtype=wt.int32).tolist() == [1, -1]
    assert wt.tensor([0, 2], dtype=wt.bool).tolist() == [False, True]
    assert wt.tensor([1.0], dtype=wt.bfloat16).dtype == wt.bfloat16
    assert wt.tensor([2**62, -(2**63)]).tolist() == [2**62, -(2**63)]
    assert wt.tensor([float("inf"), float("nan")]).tolist()[0] == float("inf")


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ([[1, 2], [3]], ValueError, "expected sequence of length 2 at dim 1"),
        ([[1], 2], (TypeError, ValueError), ""),
        ("text", (TypeError, ValueError), ""),
        ([None], RuntimeError, "Could not infer dtype of NoneType"),
        ([object()], RuntimeError, "Could not infer dtype of object"),
        ({"a": 1}, RuntimeError, "Could not infer dtype of dict"),
        (["text"], ValueError, "too many dimensions 'str'"),
        ([1, "text"], TypeError, "must be real number, not str"),
        ([1j, None], (TypeError, RuntimeError), ""),
        (2**64, (RuntimeError, OverflowError, ValueError), ""),
        (np.array(["a"]), TypeError, "can't convert np.ndarray"),
    ],
)
def test_refused_data(data: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        wt.tensor(data)


def test_self_containing_list() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises((ValueError, RuntimeError, TypeError, RecursionError)):
        wt.tensor(endless)


def test_dtype_objects() -> None:
    assert (
        wt.float is wt.float32 and wt.double is wt.float64 and wt.long is wt.int64 and wt.half is wt.float16
    )
    assert repr(wt.float32) == "torch.float32" and str(wt.bfloat16) == "torch.bfloat16"
    assert wt.bfloat16.is_floating_point and not wt.int8.is_floating_point and not wt.uint8.is_signed
    assert (wt.float64.itemsize, wt.bfloat16.itemsize, wt.bool.itemsize) == (8, 2, 1)
    assert pickle.loads(pickle.dumps(wt.float16)) is wt.float16
    assert {wt.float32: 1}[wt.float] == 1
    assert isinstance(wt.float32, wt.dtype)
    with pytest.raises(TypeError):
        wt.dtype()


def test_numbers_of_devices() -> None:
    numbered, plain = wt.device("cpu:0"), wt.device("cpu")
    assert (str(numbered), repr(numbered)) == ("cpu:0", "device(type='cpu', index=0)")
    assert (numbered.index, plain.index) == (0, None) and numbered != plain
    assert numbered == wt.device("cpu", 0) == wt.device(numbered) == pickle.loads(pickle.dumps(numbered))
    assert hash(numbered) == hash(wt.device("cpu", 0))
    assert str(wt.device("meta:1")) == "meta:1"
    assert wt.ones(1, device=numbered).device == wt.ones(1, device="cpu:3").device == plain
    with pytest.raises(RuntimeError, match="must not include an index"):
        wt.device("cpu:0", 0)
    with pytest.raises(RuntimeError):
        wt.device("cpu:00")


def test_limits_are_equal_by_dtype() -> None:
    assert wt.finfo() == wt.finfo(wt.float32) != wt.finfo(wt.float64)
    assert wt.iinfo(wt.int8) == wt.iinfo(wt.int8) != wt.iinfo(wt.uint8)
    with pytest.raises(TypeError, match="unhashable"):
        hash(wt.finfo())


def test_device_objects() -> None:
    cpu, meta = wt.device("cpu"), wt.device("meta")
    assert (cpu.type, cpu.index) == ("cpu", None) and wt.device("cuda:1").index == 1
    assert wt.device("cuda", 1) == wt.device("cuda:1") != wt.device("cuda:0")
    assert repr(cpu) == "device(type='cpu')" and str(wt.device("cuda:1")) == "cuda:1"
    assert hash(wt.device("cpu")) == hash(cpu) and cpu != meta and cpu != "cpu"
    assert pickle.loads(pickle.dumps(meta)) == meta
    for wrong in ("gpu", "cpu:x", "", "cuda:-1", "cuda:", "cuda:99999999999"):
        with pytest.raises(RuntimeError):
            wt.device(wrong)
    with pytest.raises(RuntimeError):
        wt.zeros(2, device="nowhere")


def test_sizes_are_of_ints() -> None:
    size = wt.Size([wt.tensor(3), True, np.int64(2)])
    assert size == (3, 1, 2) and all(type(n) is int for n in size)
    for made in (size + (4,), (4,) + size, size * 2, 2 * size, size[1:]):
        assert type(made) is wt.Size
    assert (4,) + size == (4, 3, 1, 2) and 2 * size[1:] == (1, 2, 1, 2)
    with pytest.raises(TypeError):
        size + [4]
    for items, place in (
        ([1, 1.5], "item 1 is 'float'"),
        ("ab", "item 0 is 'str'"),
        ([wt.ones(1)], "item 0"),
    ):
        with pytest.raises(TypeError, match=f"takes an iterable of 'int' .{place}"):
            wt.Size(items)


def test_size_objects() -> None:
    s = wt.zeros(2, 3).shape
    assert isinstance(s, tuple) and isinstance(s, wt.Size) and s == (2, 3) and s.numel() == 6
    assert repr(s) == "torch.Size([2, 3])" and isinstance(s[:1], wt.Size) and s[0] == 2
    assert pickle.loads(pickle.dumps(s)) == s


def test_shapes_that_cannot_be() -> None:
    for shape in ((-1,), (2, -3), (2**62, 4), (2**31, 2**31, 2**31)):
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            wt.empty(shape)
    assert wt.zeros(0, 2**40).numel() == 0
    assert wt.zeros(()).shape == () and wt.zeros([]).item() == 0.0
    with pytest.raises(TypeError):
        wt.zeros(2.5)
    with pytest.raises(TypeError):
        wt.zeros("2")


def test_meta_device() -> None:
    before = wt._C._memory_stats()["allocated_bytes"]
    x = wt.empty(1 << 20, 1 << 20, device="meta")
    y = (x @ x).relu().sum(0)
    assert y.is_meta and tuple(y.shape) == (1 << 20,) and y.dtype == wt.float32
    assert wt._C._memory_stats()["allocated_bytes"] == before
    assert "device='meta'" in repr(y)
    with pytest.raises((RuntimeError, NotImplementedError)):
        y[0].item()
    with pytest.raises((RuntimeError, TypeError, NotImplementedError)):
        y.numpy()
    with pytest.raises(RuntimeError):
        x + wt.ones(1 << 20)


def test_an_error_of_the_first_import_of_numpy_keeps_its_class() -> None:
    code = """
import sys
import warptape as wt
sys.modules["numpy"] = None
try:
    wt.tensor([1.0, 2.0])
except ModuleNotFoundError:
    print("kept")
"""
    path = {"PYTHONPATH": str(Path(wt.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | path)
    assert (done.stdout, done.returncode) == ("kept\n", 0), done.stderr


@pytest.mark.parametrize(
    ("arguments", "keywords", "dtype", "same"),
    [
        ((), {}, "float32", True),
        ((wt.float64,), {}, "float64", False),
        (("cpu", wt.float64), {}, "float64", False),
        (("cpu", None, False, True), {}, "float32", False),
        ((wt.float32, False, True), {}, "float32", False),
        ((None, wt.int32), {}, "int32", False),
        ((wt.tensor([1]),), {}, "int64", False),
        ((wt.ones(1), True, True), {}, "float32", False),
        ((float,), {}, "float64", False),
        ((bool,), {}, "bool", False),
        ((), {"dtype": wt.float16, "device": "cpu"}, "float16", False),
        (("cpu",), {"copy": True}, "float32", False),
    ],
)
def test_forms_of_to(arguments: Any, keywords: Any, dtype: str, same: bool) -> None:
    t = wt.ones(2)
    found = t.to(*arguments, **keywords)
    assert found.dtype == getattr(wt, dtype) and (found is t) == same


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((wt.float64, "cpu"), {}),
        (("cpu", "cpu"), {}),
        ((wt.float64, wt.float32), {}),
        (("cpu", True), {}),
        (("cpu",), {"device": "cpu"}),
        ((wt.float64,), {"dtype": wt.float64}),
        ((wt.float64, False, False, False), {}),
        ((wt.ones(1),), {"dtype": wt.float64}),
        ((), {"dtypes": wt.float64}),
        (([1],), {}),
    ],
)
def test_forms_that_to_refuses(arguments: Any, keywords: Any) -> None:
    with pytest.raises(TypeError):
        wt.ones(2).to(*arguments, **keywords)


def test_out_takes_on_the_shape_of_the_result() -> None:
    x = wt.tensor([1.0, 4.0, 2.0])
    calls = {
        "quantile": lambda out: wt.quantile(x, 0.5, out=out),
        "nanquantile": lambda out: wt.nanquantile(x, 0.5, out=out),
        "histc": lambda out: wt.histc(x, 2, out=out),
        "msort": lambda out: wt.msort(x, out=out),
        "diag": lambda out: wt.diag(x, out=out),
        "cross": lambda out: wt.cross(x, x, out=out),
        "chain_matmul": lambda out: wt.chain_matmul(x.view(1, 3), x.view(3, 1), out=out),
        "normalize": lambda out: wt.nn.functional.normalize(x, dim=0, out=out),
        "scatter_reduce": lambda out: wt.scatter_reduce(x, 0, wt.tensor([0]), x, "sum", out=out),
        "xlog1py": lambda out: wt.special.xlog1py(x, x, out=out),
        "bernoulli": lambda out: wt.bernoulli(wt.tensor([1.0, 0.0]), out=out),
        "normal": lambda out: wt.normal(x[0], wt.tensor(0.0), out=out),
    }
    for name, call in calls.items():
        expected = call(None)
        for out in (wt.empty(2, 5), wt.empty(0)):
            assert call(out) is out and out.tolist() == expected.tolist(), name
    with pytest.raises(wt.DtypeError):
        wt.quantile(x, 0.5, out=wt.empty(0, dtype=wt.int64))
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        wt.diag(wt.ones(2, requires_grad=True), out=wt.empty(0))
