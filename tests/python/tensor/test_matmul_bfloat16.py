"""Products of bfloat16 by AMX tiles and by vectors, against float64: the sizes and strides that tiles cut,
bias, alpha and beta, and the same bits on any number of threads (test_without_amx.py turns the tiles off)."""

import numpy as np
import pytest
import warptape as wt

SIZES = [1, 2, 5, 16, 17, 31, 32, 33, 64, 100, 129, 300, 513, 700]


def matrix(rng, rows, columns, layout):
    if layout == "transposed":
        return wt.tensor(rng.standard_normal((columns, rows))).bfloat16().t()
    if layout == "steps":
        return wt.tensor(rng.standard_normal((rows, 2 * columns))).bfloat16()[:, ::2]
    return wt.tensor(rng.standard_normal((rows, columns))).bfloat16()


def rounded_near(result, expected, k):
    """Within a rounding to 8 bits, and the float32 sums' error."""
    error = np.abs(result.double().numpy() - expected)
    return (error <= np.abs(expected) / 256 + 1e-5 * k).all()


def on_threads(compute):
    before = wt.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4, 8):
            wt.set_num_threads(threads)
            results.append(compute())
    finally:
        wt.set_num_threads(before)
    bits = [result.view(wt.int16) for result in results]
    assert all(wt.equal(bits[0], other) for other in bits[1:])
    return results[0]


@pytest.mark.parametrize("seed", range(60))
def test_products_of_any_size_and_layout(seed):
    rng = np.random.default_rng(seed)
    m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
    layouts = ["rows", "rows", "transposed", "steps"]
    a, b = matrix(rng, m, k, rng.choice(layouts)), matrix(rng, k, n, rng.choice(layouts))
    product = a.double().numpy() @ b.double().numpy()
    assert rounded_near(on_threads(lambda: a @ b), product, k)
    bias = wt.tensor(rng.standard_normal(n)).bfloat16()
    expected = product * 0.5 + 2 * bias.double().numpy()
    assert rounded_near(on_threads(lambda: wt.addmm(bias, a, b, beta=2, alpha=0.5)), expected, k)


@pytest.mark.parametrize(
    "shape", [(1024, 1024, 256), (700, 300, 2500), (2048, 40, 96), (8, 512, 4096), (130, 130, 4100)]
)
def test_large_products(shape):
    m, n, k = shape
    rng = np.random.default_rng(k)
    a, b = matrix(rng, m, k, "rows"), matrix(rng, k, n, "transposed")
    assert rounded_near(on_threads(lambda: a @ b), a.double().numpy() @ b.double().numpy(), k)


def test_batches_and_what_is_not_finite():
    rng = np.random.default_rng(0)
    a = wt.tensor(rng.standard_normal((5, 40, 70))).bfloat16()
    b = wt.tensor(rng.standard_normal((5, 70, 90))).bfloat16()
    a[1, 3, 69], b[2, 0, 7], b[2, 0, 8] = float("inf"), float("nan"), -float("inf")
    result = on_threads(lambda: a @ b).float().numpy()
    assert not np.isfinite(result[1, 3]).any() and np.isnan(result[2, :, 7]).all()
    assert not np.isfinite(result[2, :, 8]).any()
    finite = np.isfinite(result)
    assert finite.sum() == finite.size - 90 - 80
    expected = a.double().numpy() @ b.double().numpy()
    assert rounded_near(wt.tensor(result[finite]), expected[finite], 70)
