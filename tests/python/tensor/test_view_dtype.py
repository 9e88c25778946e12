"""Tensor.view(dtype): the same bytes as numbers of another dtype."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as torch

X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize(
    "name", ["int32", "float32", "float64", "int16", "float16", "uint8", "int64", "complex64"]
)
def test_bytes_are_numpys(name: str) -> None:
    t = torch.from_numpy(X)
    for view, array in ((t, X), (t[1:], X[1:]), (t[:, 2:4], X[:, 2:4]), (t[::2, 4:], X[::2, 4:])):
        found = view.view(getattr(torch, name))
        wanted = array.view(name)
        assert found.shape == wanted.shape and found.data_ptr() == view.data_ptr()
        assert found.numpy().tobytes() == wanted.tobytes()
        assert found.view(torch.float32).numpy().tobytes() == array.tobytes()
    assert t.t().view(torch.int32).stride() == (1, 6)
    assert torch.tensor(1.0).view(dtype=torch.int32).item() == 0x3F800000


def test_writes_are_seen() -> None:
    x = torch.zeros(3)
    x.view(torch.int32)[0] = 0x3F800000
    assert x.tolist() == [1, 0, 0] and x._version == 1


def test_sizes_of_little() -> None:
    assert torch.zeros(3, 0).view(torch.uint8).stride() == (4, 1)
    assert torch.zeros(0, 3).view(torch.uint8).shape == (0, 12)
    assert torch.zeros(1, 4).expand(3, 4).view(torch.float64).stride() == (0, 1)
    assert torch.zeros(2, 4, device="meta").view(torch.float64).shape == (2, 2)


@pytest.mark.parametrize(
    ("x", "dtype", "match"),
    [
        (torch.tensor(1.0), torch.float64, r"self.dim\(\) cannot be 0 to view float32 as float64"),
        (torch.zeros(4, 6).t(), torch.int16, r"self.stride\(-1\) must be 1 to view float32 as int16"),
        (torch.zeros(1).expand(4), torch.float64, r"self.stride\(-1\) must be 1"),
        (torch.zeros(4, 5), torch.float64, r"self.size\(-1\) must be divisible by 2"),
        (torch.zeros(4, 6), torch.complex128, r"self.size\(-1\) must be divisible by 4"),
        (torch.zeros(4, 6)[:, 1:5], torch.float64, r"self.storage_offset\(\) must be divisible by 2"),
        (
            torch.zeros(10).as_strided((2, 4), (5, 1)),
            torch.float64,
            r"self.stride\(0\) must be divisible by 2",
        ),
    ],
)
def test_refused(x: torch.Tensor, dtype: torch.dtype, match: str) -> None:
    with pytest.raises(torch.ShapeError, match=match):
        x.view(dtype)


def test_has_no_history() -> None:
    x = torch.ones(4, requires_grad=True)
    for t in (x, x * 2):
        for dtype in (torch.float16, torch.float32, torch.complex64, torch.int32):
            assert not t.view(dtype).requires_grad and t.view(dtype).grad_fn is None
