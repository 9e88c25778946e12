"""What tests of packed and quantised linear layers share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import warptape as wt

DTYPES = [wt.float32, wt.bfloat16]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """Without gradients; the number of threads is what it was afterwards."""
    before = wt.get_num_threads()
    with wt.inference_mode():
        yield
    wt.set_num_threads(before)


def drawn(*shape: int, dtype: wt.dtype = wt.float32, seed: int = 0) -> wt.Tensor:
    """Normal numbers."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return wt.from_numpy(values).to(dtype)


def bits_of(x: wt.Tensor) -> np.ndarray:
    """What is compared where results are equal to the bit."""
    return x.float().numpy().view(np.int32)
