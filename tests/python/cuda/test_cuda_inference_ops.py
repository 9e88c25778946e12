"""Convolutions on bytes, layers of one bit, sparse products and torchaudio's loops on the device, beside the
CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape.ao.quantization import _int8

pytestmark = pytest.mark.cuda

ops = torch._C._private
audio = torch.ops.torchaudio
rng = np.random.default_rng(0)


def numbers(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.tensor(rng.standard_normal(shape)).to(dtype)


def bytes_(low: int, high: int, *shape: int) -> Any:
    return torch.from_numpy(rng.integers(low, high, shape))


def to_device(args: tuple[Any, ...]) -> list[Any]:
    return [a.to("cuda") if isinstance(a, torch.Tensor) else a for a in args]


# ---- bytes ----


@pytest.mark.parametrize(
    "case",
    [
        # images, channels, outputs, height, width, kernel, stride, padding, dilation
        (1, 4, 16, 5, 5, 1, 1, 0, 1),
        (2, 3, 17, 9, 9, 3, 1, 1, 1),
        (2, 20, 70, 9, 9, 3, 2, 1, 1),
        (2, 8, 16, 12, 12, 3, 1, 2, 2),
        (5, 8, 33, 6, 1, 1, 1, 0, 1),
    ],
)
@pytest.mark.parametrize("floats", [False, True])
def test_convolution_of_bytes(case: tuple[int, ...], floats: bool) -> None:
    images, channels, outputs, height, width, kernel, *windows = case
    x = bytes_(0, 256, images, channels, height, width).to(torch.uint8)
    codes = bytes_(-128, 128, outputs, channels, kernel, kernel).to(torch.int8)
    row = F.pad(numbers(outputs).abs() * 1e-3, (0, -outputs % 16))
    lists = [[v, v] for v in (kernel, *windows)]
    plain = ops._int8_conv2d(x, _int8.pack_codes(codes), row, row * 1e4, outputs, *lists, 7, 5.0)
    residual = bytes_(0, 256, *plain.shape).to(torch.uint8)
    args = (x, _int8.pack_codes(codes), row, row * 1e4, outputs, *lists, 7, 5.0, residual, 0.3, floats)
    expected, got = ops._int8_conv2d(*args), ops._int8_conv2d(*to_device(args)).cpu()
    assert got.dtype == expected.dtype and got.stride() == expected.stride()
    # Sums are exact; a product with a scale may be fused with its addition.
    assert float((got.double() - expected.double()).abs().max()) <= (1e-4 if floats else 1)
    assert floats or float((got != expected).float().mean()) < 0.01


@pytest.mark.parametrize("channels", [3, 70])
def test_pooling_of_bytes(channels: int) -> None:
    x = bytes_(0, 256, 2, channels, 9, 8).to(torch.uint8)
    for windows in ((2, 2, 0, 1), (3, 2, 1, 1), (2, 1, 0, 2)):
        lists = [(v, v) for v in windows]
        assert torch.equal(ops._max_pool_bytes(x.to("cuda"), *lists).cpu(), ops._max_pool_bytes(x, *lists))


def test_values_to_bytes() -> None:
    x = torch.tensor([-1e30, -3.0, 0.24, 0.26, 0.75, 1e30, float("nan")]).to("cuda")
    assert ops._quantize_bytes(x, 0.5, 3).tolist() == [0, 0, 3, 4, 4, 255, 0]


# ---- bits ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 32), (17, 33), (70, 300)])
def test_layers_of_one_bit(n: int, k: int, dtype: Any) -> None:
    weight, x, bias = numbers(n, k, dtype=dtype), numbers(13, k, dtype=dtype), numbers(n, dtype=dtype)
    x.view(-1)[::5] = 0
    words, scale = ops._pack_signs(weight), weight.float().abs().mean(1)
    packed = ops._pack_signs(weight.to("cuda"))
    assert torch.equal(packed.cpu(), words)
    for scaled in (True, False):
        expected = ops._binary_linear(x, words, scale, bias, scaled)
        got = ops._binary_linear(x.to("cuda"), packed, scale.to("cuda"), bias.to("cuda"), scaled).cpu()
        limit = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(got, expected, rtol=limit, atol=limit)


# ---- sparse matrices ----


def sparse(m: int, k: int, dtype: Any) -> Any:
    x = numbers(m, k, dtype=dtype) * (torch.from_numpy(rng.random((m, k))) < 0.3)
    x[m // 2] = 0  # a row without elements
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 3, 33, 70])
def test_products_with_sparse_matrices(n: int, dtype: Any) -> None:
    a, b = sparse(9, 7, dtype), numbers(7, n, dtype=dtype)
    for layout in (torch.sparse_coo, torch.sparse_csr):
        x = a.to("cuda").to_sparse(layout=layout)
        torch.testing.assert_close((x @ b.to("cuda")).cpu(), a @ b)
    csr = a.to_sparse(layout=torch.sparse_csr)
    parts = csr.crow_indices(), csr.col_indices(), csr.values(), b
    for reduce in ("sum", "mean", "amax", "amin"):
        results = []
        for args in (list(parts), to_device(parts)):
            values, dense = args[2].detach().requires_grad_(), args[3].detach().requires_grad_()
            out = ops._csr_matmul(args[0], args[1], values, dense, reduce)
            (out * torch.arange(out.numel(), device=out.device).view(out.shape)).sum().backward()
            results.append([t.detach().cpu() for t in (out, values.grad, dense.grad)])
        for got, expected in zip(results[1], results[0]):
            limit = (1e-5 if dtype == torch.float32 else 1e-12) * float(expected.abs().max())
            torch.testing.assert_close(got, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_samples_of_a_product(dtype: Any) -> None:
    csr = sparse(9, 7, torch.float32).to_sparse(layout=torch.sparse_csr)
    args = (csr.crow_indices(), csr.col_indices(), numbers(9, 40, dtype=dtype), numbers(7, 40, dtype=dtype))
    got, expected = ops._csr_sample(*to_device(args)).cpu(), ops._csr_sample(*args)
    limit = 5e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(got, expected, rtol=limit, atol=limit)


def test_a_column_that_is_not_there() -> None:
    crow, col, values = torch.tensor([0, 1, 2]), torch.tensor([0, 5]), torch.ones(2)
    with pytest.raises(IndexError, match="_csr_matmul: index 5 is out of bounds"):
        ops._csr_matmul(*to_device((crow, col, values, torch.ones(3, 4)))).cpu()
    with pytest.raises(IndexError, match="_csr_sample: index 5 is out of bounds"):
        ops._csr_sample(*to_device((crow, col, torch.ones(2, 4), torch.ones(3, 4)))).cpu()


# ---- sound ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_loops_of_filters(dtype: Any) -> None:
    x, a = numbers(5, 9, 20, dtype=dtype), numbers(9, 4, dtype=dtype) / 4
    results = []
    for device in ("cpu", "cuda"):
        out = torch.zeros(5, 9, 23, dtype=dtype, device=device)
        out[:, :, :3] = 0.5
        audio._lfilter_core_loop(x.to(device), a.to(device), out)
        sound, driven = (x[:, k].contiguous().to(device) for k in (0, 1))
        last, back = (torch.ones(5, dtype=dtype, device=device) for _ in range(2))
        overdriven = torch.empty(5, 20, dtype=dtype, device=device)
        audio._overdrive_core_loop(sound, driven, last, back, overdriven)
        results.append([t.cpu() for t in (out, last, back, overdriven)])
    for got, expected in zip(results[1], results[0]):
        torch.testing.assert_close(got, expected)
