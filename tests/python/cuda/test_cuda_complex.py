"""Complex numbers, Fourier transforms and torchvision's kernels on the device, beside the CPU's: more
elements than a block has threads, layouts that kernels take apart, special values, inputs that stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as torch

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:Casting complex")]

COMPLEX = [torch.complex64, torch.complex128]
CUT = [
    "exp",
    "log",
    "sqrt",
    "tanh",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "log1p",
]
TOLERANCES = {torch.complex64: 1e-5, torch.complex128: 1e-12, torch.float32: 1e-5, torch.float64: 1e-12}
UNARY = [
    name
    for row in (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid sin cos tan asin acos atan sinh",
        "cosh tanh asinh acosh atanh sinc square neg conj_physical sgn abs angle",
    )
    for name in row.split(" ")
]
rng = np.random.default_rng(0)


def numbers(*shape: int, dtype: Any = torch.complex128) -> Any:
    return torch.tensor(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).to(dtype)


def close(got: Any, expected: Any, tolerance: float | None = None) -> None:
    assert got.device.type == "cuda" and got.dtype == expected.dtype and got.shape == expected.shape
    x, y = expected.numpy(), got.cpu().numpy()
    limit = TOLERANCES[expected.dtype] if tolerance is None else tolerance
    np.testing.assert_allclose(y, x, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_functions(name: str, dtype: Any) -> None:
    x = numbers(3, 700, dtype=dtype)
    close(getattr(torch, name)(x.to("cuda")), getattr(torch, name)(x))
    close(getattr(torch, name)(x.to("cuda").t()), getattr(torch, name)(x.t()))


@pytest.mark.parametrize("name", CUT)
def test_cuts_and_infinities(name: str) -> None:
    """On the axes, on both sides of the cuts (by the sign of a zero), far out: as on the CPU."""
    parts = [-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 30.0, -30.0, 400.0]
    x = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=torch.complex128)
    with np.errstate(all="ignore"):
        expected, got = getattr(torch, name)(x).numpy(), getattr(torch, name)(x.to("cuda")).cpu().numpy()
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_pairs_and_numbers(dtype: Any) -> None:
    a, b = numbers(5, 600, dtype=dtype), numbers(600, dtype=dtype)
    x, y = a.to("cuda"), b.to("cuda")
    for f in (torch.add, torch.sub, torch.mul, torch.div, torch.pow):
        close(f(x, y), f(a, b), 2e-4 if f is torch.pow and dtype == torch.complex64 else None)
        close(f(x, 2 - 1j), f(a, 2 - 1j), 2e-4 if f is torch.pow and dtype == torch.complex64 else None)
    assert torch.equal((x == y).cpu(), a == b) and torch.equal((x != x).cpu(), a != a)
    close(torch.where(x.real > 0, x, y), torch.where(a.real > 0, a, b))
    close(x @ x.mH, a @ a.mH, 1e-3 if dtype == torch.complex64 else 1e-11)
    close(x.sum(1), a.sum(1), 1e-3 if dtype == torch.complex64 else 1e-11)
    close(x.cumsum(0), a.cumsum(0))


def test_casts_and_fills() -> None:
    x = numbers(300)
    for dtype in (torch.float32, torch.float16, torch.int32, torch.bool, *COMPLEX):
        assert torch.equal(x.to("cuda").to(dtype).cpu(), x.to(dtype))
        assert torch.equal(
            x.real.to(dtype).to("cuda").to(torch.complex64).cpu(), x.real.to(dtype).to(torch.complex64)
        )
    assert torch.full((40,), 1 + 2j, device="cuda").cpu().tolist() == [1 + 2j] * 40
    assert torch.zeros(33, dtype=torch.complex128, device="cuda").fill_(3).cpu().tolist() == [3] * 33
    assert torch.equal(torch.ones(3, device="cuda").to(torch.float8_e5m2).float().cpu(), torch.ones(3))
    y = torch.tensor([0, 1, 300, 65535]).to("cuda").to(torch.uint16)
    assert (
        y.to(torch.int64).cpu().tolist() == [0, 1, 300, 65535]
        and torch.zeros(2, dtype=torch.uint32, device="cuda").fill_(7).long().sum().item() == 14
    )
    assert torch.randn(8, dtype=torch.complex64, device="cuda").isfinite().all()


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_moves(dtype: Any) -> None:
    x, index = numbers(40, 50, dtype=dtype), torch.tensor(rng.integers(0, 40, 300))
    d, i = x.to("cuda"), index.to("cuda")
    values = numbers(300, 50, dtype=dtype)
    v = values.to("cuda")
    close(d.t().contiguous(), x.t().contiguous(), 0)
    close(d[i], x[index], 0)
    close(d.index_add(0, i, v), x.index_add(0, index, values))
    close(d.index_put((i,), v, accumulate=True), x.index_put((index,), values, accumulate=True))
    close(d.masked_select(d.real > 0), x.masked_select(x.real > 0), 0)
    close(torch.nn.functional.pad(d, (1, 2), value=2.0), torch.nn.functional.pad(x, (1, 2), value=2.0), 0)
    close(torch.tril(d), torch.tril(x), 0)
    close(torch.gather(d, 1, i.view(6, 50) % 50), torch.gather(x, 1, index.view(6, 50) % 50), 0)


# ---- transforms ----
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 97])
def test_transforms(dim: int, n: int) -> None:
    shape = [3, 4, 5]
    shape[dim] = n
    x = numbers(*shape)
    d, kept = x.to("cuda"), x.clone()
    for name in ("fft", "ifft", "hfft" if n > 1 else "fft"):
        close(getattr(torch.fft, name)(d, dim=dim), getattr(torch.fft, name)(x, dim=dim), 1e-11)
    close(torch.fft.rfft(d.real, dim=dim), torch.fft.rfft(x.real, dim=dim), 1e-11)
    for size in (n, n + 1):
        half = x.narrow(dim, 0, size // 2 + 1) if size // 2 < n else x
        close(torch.fft.irfft(half.to("cuda"), size, dim=dim), torch.fft.irfft(half, size, dim=dim), 1e-11)
    assert torch.equal(d.cpu(), kept)  # no transform writes over its input


def test_real_numbers_at_odd_addresses() -> None:
    """cuFFT takes pairs: a view that begins between two goes by way of a copy."""
    x = torch.tensor(rng.standard_normal(65).astype(np.float32))
    close(torch.fft.rfft(x.to("cuda")[1:]), torch.fft.rfft(x[1:]))


def test_gradients_of_transforms() -> None:
    x = numbers(4, 6).real.clone().requires_grad_()
    d = x.detach().to("cuda").requires_grad_()
    for t in (x, d):
        torch.fft.irfft2(torch.fft.rfft2(t, norm="ortho") * 2j, s=(4, 6)).square().sum().backward()
    close(d.grad, x.grad)


def test_plans_are_kept_and_forgotten() -> None:
    cache = torch.backends.cuda.cufft_plan_cache
    cache.clear()
    assert cache.size == 0 and cache.max_size == 4096
    try:
        for n in (8, 8, 16, 32):
            torch.fft.fft(torch.ones(n, dtype=torch.complex64, device="cuda"))
        assert cache.size == 3 and cache[0].size == 3 and cache["cuda:0"].size == 3
        cache.max_size = 2
        assert cache.size == 2
        with pytest.raises(RuntimeError, match="max_size"):
            cache.max_size = -1
        x = torch.ones(64, dtype=torch.complex64, device="cuda")
        cache.max_size = 0  # no plan outlives its call
        assert torch.fft.fft(x)[0].item() == 64 and cache.size == 0
    finally:
        cache.max_size = 4096


# ---- boxes ----
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_boxes_suppress_each_other(n: int) -> None:
    corner, size = rng.uniform(0, 50, (n, 2)), rng.uniform(1, 20, (n, 2))
    boxes = torch.tensor(np.concatenate([corner, corner + size], 1))
    scores = torch.tensor(rng.permutation(n).astype(np.float64))
    expected = torch.ops.torchvision.nms(boxes, scores, 0.4)
    got = torch.ops.torchvision.nms(boxes.to("cuda"), scores.to("cuda"), 0.4)
    assert got.cpu().tolist() == expected.tolist()
    assert n < 63 or len(expected) < n


def test_gradients_of_pooled_regions() -> None:
    maps = torch.tensor(rng.standard_normal((2, 3, 30, 40))).requires_grad_()
    corner = rng.uniform(0, 20, (50, 2))
    boxes = torch.tensor(np.concatenate([rng.integers(0, 2, (50, 1)), corner, corner + 9], 1))
    device = maps.detach().to("cuda").requires_grad_()
    for x in (maps, device):
        out = torch.ops.torchvision.roi_align(x, boxes.to(x.device), 1.0, 7, 5, 2, True)
        (out * out).sum().backward()
    close(device.grad, maps.grad)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_products(dtype: Any) -> None:
    """By cuBLASLt, without a real form of both; inner sizes of 0 by our own kernel."""
    a, b = numbers(5, 7, dtype=dtype), numbers(7, 4, dtype=dtype)
    many, vector = numbers(3, 7, 4, dtype=dtype), numbers(7, dtype=dtype)
    cases: list[tuple[Any, ...]] = [
        (torch.matmul, a, b),
        (torch.matmul, a, b.conj()),
        (lambda x, y: x.conj() @ y, a, b),
        (lambda x, y: x.mH @ y, b, a.t().contiguous()),
        (lambda x, y: x.t() @ y.mH, a.t().contiguous(), b.mH.contiguous()),
        (torch.matmul, a, many),
        (lambda x, y: x @ y, many.mH, many),
        (torch.matmul, a, vector),
        (torch.matmul, a[::2, ::3], b[::3]),
        (torch.matmul, a[:, :0], b[:0]),
        (lambda x, y: torch.addmm(x @ y, x, y, beta=2j, alpha=1 - 1j), a, b),
        (lambda x, y: torch.einsum("ij,bjk->bik", x, y), a, many),
    ]
    for function, *inputs in cases:
        close(function(*[x.to("cuda") for x in inputs]), function(*inputs))
    leaves = [x.to("cuda").requires_grad_() for x in (a, b)]
    (leaves[0] @ leaves[1]).abs().sum().backward()
    x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
    (x @ y).abs().sum().backward()
    close(leaves[0].grad, x.grad)
    close(leaves[1].grad, y.grad)
