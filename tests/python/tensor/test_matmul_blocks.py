"""Products larger than the blocks in which they are computed, of sizes that the blocks do not divide."""

import numpy as np
import pytest
import warptape as wt


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [320, 1920, 1921, 2000, 2001, 4099])
def test_columns_that_blocks_do_not_divide(columns, threads):
    rng = np.random.default_rng(columns)
    a, b = rng.standard_normal((112, 512)), rng.standard_normal((512, columns))
    before = wt.get_num_threads()
    wt.set_num_threads(threads)
    try:
        for dtype, tolerance in ((wt.float32, 1e-3), (wt.float64, 1e-10), (wt.bfloat16, 1.0)):
            x, y = wt.tensor(a, dtype=dtype), wt.tensor(b, dtype=dtype)
            expected = x.double().numpy() @ y.double().numpy()
            np.testing.assert_allclose((x @ y).double().numpy(), expected, atol=tolerance)
            np.testing.assert_allclose((x @ y.T.contiguous().T).double().numpy(), expected, atol=tolerance)
    finally:
        wt.set_num_threads(before)


@pytest.fixture
def threads():
    before = wt.get_num_threads()
    yield
    wt.set_num_threads(before)


@pytest.mark.parametrize("dtype", [wt.float32, wt.float64, wt.bfloat16, wt.float16], ids=str)
@pytest.mark.parametrize(
    "m, k, n", [(5, 40, 70), (15, 200, 33), (129, 301, 100), (300, 800, 129), (640, 130, 384)]
)
@pytest.mark.usefixtures("threads")
def test_rows_of_a_where_they_are(m, k, n, dtype):
    """Contiguous rows are read where they are; columns, or rows that are 4,096 bytes apart, are packed."""
    wt.manual_seed(0)
    values, b, bias = wt.randn(m, k).to(dtype), wt.randn(k, n).to(dtype), wt.randn(n).to(dtype)
    packed = wt.zeros(k, m, dtype=dtype).copy_(values.t()).t()
    expected = [
        packed @ b,
        wt.addmm(bias, packed, b),
        wt.baddbmm(wt.ones(1, m, n, dtype=dtype), packed[None], b[None]),
    ]
    step = 4096 // values.element_size()
    for width in (k, k + 1, k + 2, k + 77, (k + step - 1) // step * step, max(k, step + 16)):
        for start in (0, 1, 6):
            rows = wt.zeros(m * width + start, dtype=dtype)[start:].view(m, width)[:, :k].copy_(values)
            for count in (1, 4):
                wt.set_num_threads(count)
                found = [
                    rows @ b,
                    wt.addmm(bias, rows, b),
                    wt.baddbmm(wt.ones(1, m, n, dtype=dtype), rows[None], b[None]),
                ]
                for one, other in zip(found, expected, strict=True):
                    assert wt.equal(one, other)
