"""Dtypes that are stored, moved, converted and compared, not computed in: float8, uint16 to uint64."""

import copy
import pickle

import numpy as np
import pytest
import warptape as wt
from warptape.utils import safetensors

FLOAT8 = [wt.float8_e4m3fn, wt.float8_e5m2, wt.float8_e4m3fnuz, wt.float8_e5m2fnuz, wt.float8_e8m0fnu]
UNSIGNED = [wt.uint16, wt.uint32, wt.uint64]
# By format: mantissa bits, bias, largest code, and the codes of what is too large and of infinity and NaN.
FORMATS = {
    wt.float8_e4m3fn: (3, 7, 0x7E, 0x7E, 0x7F),
    wt.float8_e5m2: (2, 15, 0x7B, 0x7C, 0x7F),
    wt.float8_e4m3fnuz: (3, 8, 0x7F, 0x80, 0x80),
    wt.float8_e5m2fnuz: (2, 16, 0x7F, 0x80, 0x80),
}


def every(dtype):
    """All 65,536 numbers of a 16-bit dtype."""
    return wt.arange(-(2**15), 2**15, dtype=wt.int16).view(dtype)


def value_of(code, mantissa, bias):
    exponent, rest = code >> mantissa, code & ((1 << mantissa) - 1)
    scale = 2.0 ** (max(exponent, 1) - bias - mantissa)
    return (rest + (1 << mantissa if exponent else 0)) * scale


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("source", [wt.bfloat16, wt.float16], ids=str)
def test_float8_rounds_to_nearest(dtype, source):
    mantissa, bias, largest, too_large, nan = FORMATS[dtype]
    fnuz = nan == 0x80
    values = np.array([value_of(c, mantissa, bias) for c in range(largest + 2)])  # one more: what rounds up
    x = every(source)
    numbers = np.abs(x.double().numpy())
    found = x.to(dtype).view(wt.uint8).numpy().astype(int)
    with np.errstate(invalid="ignore"):
        code = np.searchsorted(values, np.where(np.isnan(numbers), 0, numbers))
    code = np.clip(code, 1, largest + 1)
    low, high = values[code - 1], values[code]
    up = (numbers - low > high - numbers) | ((numbers - low == high - numbers) & (code % 2 == 0))
    expected = np.where(up, code, code - 1)
    expected = np.where(numbers == 0, 0, np.where(expected > largest, too_large, expected))
    expected = np.where(numbers > values[largest + 1], too_large, expected)
    expected = np.where(np.isnan(numbers), nan, expected)
    negative = np.signbit(x.double().numpy())
    keeps = negative & ((expected != 0) & (expected != 0x80) if fnuz else True)
    np.testing.assert_array_equal(found, expected | np.where(keeps, 0x80, 0))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_codes_survive(dtype):
    codes = wt.arange(256, dtype=wt.uint8).view(dtype)
    for wide in (wt.float32, wt.float64, wt.bfloat16):
        again = codes.to(wide).to(dtype)
        same = (again.view(wt.uint8) == codes.view(wt.uint8)) | codes.isnan()
        assert same.all()
    assert codes[codes.float() == 1].tolist() == [1.0]


def test_powers_of_two():
    x = wt.tensor([0.0, 1.0, 1.5, 1.49, -2.3, 3.0, 1e30, float("inf"), float("nan")])
    assert x.to(wt.float8_e8m0fnu).view(wt.uint8).tolist() == [0, 127, 128, 127, 128, 129, 227, 255, 255]


@pytest.mark.parametrize("dtype", FLOAT8 + UNSIGNED, ids=str)
def test_moves(dtype):
    x = wt.tensor([[1, 2, 4], [8, 16, 32]]).to(dtype)
    assert x.dtype is dtype and x.itemsize == dtype.itemsize
    assert x.t().contiguous().float().tolist() == [[1, 8], [2, 16], [4, 32]]
    assert wt.cat([x, x])[3].float().tolist() == [8, 16, 32]
    assert x[:, wt.tensor([2, 0])].float().tolist() == [[4, 1], [32, 8]]
    assert (x == x).all() and not (x != x.clone()).any()
    assert wt.zeros(2, dtype=dtype).float().tolist() == (
        [0, 0] if dtype.is_signed or dtype in UNSIGNED else [2**-127] * 2
    )
    assert wt.full((2,), 4, dtype=dtype).tolist() == [4, 4]
    x[0, 0] = 64
    assert x[0].tolist() == [64, 2, 4] and x[0, 0].item() == 64
    assert f"dtype=torch.{dtype.__name__}" in repr(x)
    assert (pickle.loads(pickle.dumps(x)) == x).all() and (copy.deepcopy(x) == x).all()
    with pytest.raises(wt.DtypeError):
        x + wt.ones(2, 3, dtype=wt.int32 if dtype in UNSIGNED else wt.float32)
    with pytest.raises(NotImplementedError):
        x + x


def test_unsigned_numbers():
    big = wt.tensor([0, 1, 2**64 - 1], dtype=wt.uint64)
    assert big.tolist() == [0, 1, 2**64 - 1] and str(2**64 - 1) in repr(big)
    assert big.float().tolist() == [0, 1, 2.0**64]
    assert wt.tensor([-1, 70000]).to(wt.uint16).tolist() == [65535, 4464]
    assert wt.tensor([-1.5, 3e9]).to(wt.uint32).tolist() == [2**32 - 1, 3 * 10**9]
    assert (wt.tensor([3], dtype=wt.uint16) * 2.0).tolist() == [6.0]
    assert wt.iinfo(wt.uint64).max == 2**64 - 1 and not wt.uint32.is_signed
    with pytest.raises(OverflowError):
        wt.tensor([-1], dtype=wt.uint64)
    assert big[2].item() == 2**64 - 1


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_numpy(dtype):
    x = wt.tensor([1, 2, 3], dtype=dtype)
    assert x.numpy().dtype == np.dtype(dtype.__name__)
    assert wt.from_numpy(x.numpy()).dtype is dtype
    with pytest.raises(TypeError, match="float8_e5m2"):
        wt.zeros(1, dtype=wt.float8_e5m2).numpy()


@pytest.mark.parametrize("dtype", FLOAT8 + UNSIGNED, ids=str)
def test_files_and_exchange(dtype, tmp_path):
    x = wt.tensor([1, 2, 4]).to(dtype)
    wt.save({"x": x}, tmp_path / "x.pt")
    assert (wt.load(tmp_path / "x.pt")["x"] == x).all()
    if "fnuz" not in str(dtype):
        safetensors.save_file({"x": x}, tmp_path / "x.safetensors")
        again = safetensors.load_file(tmp_path / "x.safetensors")["x"]
        assert again.dtype is dtype and (again == x).all()
    assert wt.from_dlpack(x).dtype is dtype


def test_limits():
    assert wt.finfo(wt.float8_e4m3fn).max == 448 and wt.finfo(wt.float8_e5m2).tiny == 2.0**-14
    with pytest.raises(RuntimeError, match="overflow"):
        wt.full((1,), 1e6, dtype=wt.float8_e5m2)


def test_order_of_unsigned_is_refused():
    x = wt.tensor([1, 2**64 - 1], dtype=wt.uint64)
    for op in (wt.max, wt.argmax, wt.amin, lambda t: t >> 1, lambda t: t.max(0), lambda t: t < t):
        with pytest.raises((NotImplementedError, wt.DtypeError)):
            op(x)


def test_isclose_without_tolerances() -> None:
    x = wt.tensor([1.0, float("nan"), 2.0]).to(wt.float8_e4m3fn)
    y = wt.tensor([1.0, float("nan"), 3.0]).to(wt.float8_e4m3fn)
    assert wt.isclose(x, y, rtol=0, atol=0).tolist() == [True, False, False]
    assert wt.isclose(x, y, rtol=0, atol=0, equal_nan=True).tolist() == [True, True, False]
    with pytest.raises(NotImplementedError, match="isclose"):
        wt.isclose(x, y)
