"""Convolutions in which each channel has its own kernel: both layouts agree, whatever the width."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
from warptape.nn import functional as F

OPTIONS: list[dict[str, Any]] = [
    {},
    {"padding": 1},
    {"padding": (0, 2), "stride": 2},
    {"padding": 3, "dilation": (2, 3)},
    {"padding": 2, "stride": (1, 3), "dilation": 2},
]


def with_gradients(x: wt.Tensor, w: wt.Tensor, b: wt.Tensor, options: dict[str, Any]) -> list[wt.Tensor]:
    leaves = [t.detach().requires_grad_() for t in (x, w, b)]
    out = F.conv2d(*leaves, groups=x.shape[1], **options)
    wt.manual_seed(1)
    upstream = wt.randn(out.shape, dtype=wt.float32).to(out.dtype)
    return [out, *wt.autograd.grad(out, leaves, upstream)]


@pytest.mark.parametrize("dtype", [wt.float32, wt.float64, wt.bfloat16, wt.float16], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("width", [9, 31, 75])
def test_layouts_agree(dtype: wt.dtype, options: dict[str, Any], width: int) -> None:
    wt.manual_seed(0)
    x, w, b = wt.randn(3, 5, 11, width).to(dtype), wt.randn(5, 1, 3, 2).to(dtype), wt.randn(5).to(dtype)
    rows = with_gradients(x, w, b, options)
    last = with_gradients(x.contiguous(memory_format=wt.channels_last), w, b, options)
    for mine, other in zip(rows, last, strict=True):
        assert mine.is_contiguous()
        wide = {wt.float32: 1e-4, wt.float64: 1e-10}.get(dtype, 3e-2)
        scale = float(other.double().abs().max())
        wt.testing.assert_close(mine.double(), other.double(), rtol=wide, atol=wide * scale)


def test_one_channel_has_its_own_kernel() -> None:
    x, w = wt.randn(2, 1, 300), wt.randn(1, 1, 65)
    found = F.conv1d(x, w)
    expected = (x.unfold(2, 65, 1) * w).sum(-1)
    wt.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
