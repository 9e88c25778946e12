"""Products of integers against NumPy's, which wrap the same way, at sizes that panels and blocks cut."""

import numpy as np
import pytest
import warptape as wt

SIZES = [1, 2, 5, 14, 15, 33, 64, 100, 130, 300, 700]
LARGEST = {wt.uint8: 255, wt.int8: 127, wt.int16: 2**15 - 1, wt.int32: 2**31 - 1, wt.int64: 2**62}


def matrix(rng, rows, columns, dtype):
    low = 0 if dtype is wt.uint8 else -LARGEST[dtype]
    values = rng.integers(low, LARGEST[dtype], (rows, columns))
    if rng.random() < 0.4:
        return wt.from_numpy(values.T.copy()).to(dtype).t()
    return wt.from_numpy(values).to(dtype)


def exact(*operands):
    return [operand.numpy().astype(np.int64) for operand in operands]


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("seed", range(12))
def test_products_wrap(dtype, seed):
    rng = np.random.default_rng(seed)
    m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
    a, b = matrix(rng, m, k, dtype), matrix(rng, k, n, dtype)
    product = np.matmul(*exact(a, b))
    before = wt.get_num_threads()
    try:
        for threads in (1, 2, 3):
            wt.set_num_threads(threads)
            np.testing.assert_array_equal((a @ b).numpy(), product.astype((a @ b).numpy().dtype))
    finally:
        wt.set_num_threads(before)
    bias = wt.from_numpy(rng.integers(-99, 99, n)).to(dtype)
    result = wt.addmm(bias, a, b, beta=3, alpha=2).numpy()
    np.testing.assert_array_equal(result, (3 * exact(bias)[0] + 2 * product).astype(result.dtype))


@pytest.mark.parametrize("left", [wt.int8, wt.uint8])
@pytest.mark.parametrize("right", [wt.int8, wt.uint8])
def test_int_mm_is_exact(left, right):
    rng = np.random.default_rng(0)
    for k in (1, 256, 257, 1024, 1025, 3000):
        a, b = matrix(rng, 20, k, left), matrix(rng, k, 30, right)
        most = [-128 if dtype is wt.int8 else 255 for dtype in (left, right)]
        for x, y in ((a, b), (wt.full_like(a, most[0]), wt.full_like(b, most[1]))):
            result = wt._int_mm(x, y)
            assert result.dtype == wt.int32
            np.testing.assert_array_equal(result.numpy(), np.matmul(*exact(x, y)))
    assert wt._int_mm(a[:, :0], b[:0]).numpy().any() == 0
