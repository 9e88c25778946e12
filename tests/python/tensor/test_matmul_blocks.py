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
