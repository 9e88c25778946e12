"""warptape.fft, stft and the windows against NumPy, SciPy and the definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import warptape as torch
from scipy import signal

NORMS = (None, "backward", "ortho", "forward")
LENGTHS = (1, 2, 5, 8, 12, 97)


def real(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return real(*shape, seed=seed) + 1j * real(*shape, seed=seed + 1)


def close(got: torch.Tensor, want: Any, tol: float = 1e-11) -> None:
    assert got.is_complex() == np.iscomplexobj(want)
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=tol, atol=tol)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", LENGTHS)
def test_one_dim(n: int, norm: str | None) -> None:
    x, z = real(3, n), numbers(3, n)
    for name in ("fft", "ifft"):
        close(getattr(torch.fft, name)(torch.from_numpy(z), norm=norm), getattr(np.fft, name)(z, norm=norm))
    for name in ("fft", "ifft", "rfft", "ihfft"):
        close(getattr(torch.fft, name)(torch.from_numpy(x), norm=norm), getattr(np.fft, name)(x, norm=norm))
    for name in ("irfft", "hfft"):
        want = getattr(np.fft, name)(z[:, : n // 2 + 1], n, norm=norm)
        close(getattr(torch.fft, name)(torch.from_numpy(z[:, : n // 2 + 1]), n, norm=norm), want)
    close(torch.fft.fft(torch.from_numpy(z), n + 2, 0, norm), np.fft.fft(z, n + 2, 0, norm))
    close(torch.fft.rfft(torch.from_numpy(x), 2, 0, norm), np.fft.rfft(x, 2, 0, norm))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "case", [(None, None), ((3, 6), (-1, 0)), (None, (1,)), ((4,), (-2,)), ((2, 7, 3), None)]
)
def test_several_dims(case: tuple[Any, Any], norm: str | None) -> None:
    s, dim = case
    x, z = real(4, 5, 6), numbers(4, 5, 6)
    axes = dim if dim is not None or s is None else tuple(range(3 - len(s), 3))
    for name in ("fftn", "ifftn", "irfftn"):
        want = getattr(np.fft, name)(z, s, axes, norm)
        close(getattr(torch.fft, name)(torch.from_numpy(z), s, dim, norm), want)
    close(torch.fft.rfftn(torch.from_numpy(x), s, dim, norm), np.fft.rfftn(x, s, axes, norm))
    close(torch.fft.fft2(torch.from_numpy(z), norm=norm), np.fft.fft2(z, norm=norm))
    half = torch.fft.ihfftn(torch.from_numpy(x), norm=norm)
    close(torch.fft.hfftn(half, x.shape, norm=norm), x)
    close(torch.fft.irfft2(torch.fft.rfft2(torch.from_numpy(x), norm=norm), x.shape[1:], norm=norm), x)


# Powers of two, other small factors, primes below and above what a step takes, lengths cut into a matrix,
# odd halves.
LONG = (16, 60, 127, 131, 256, 257, 262, 381, 512, 1000, 1022, 4099, 8192, 10010, 65536)


@pytest.mark.parametrize("n", LONG)
def test_long_lines(n: int) -> None:
    for shape, dim in (((n,), 0), ((3, n), 1), ((19, n), 1), ((n, 2), 0), ((2, n, 37), 1)):
        if math.prod(shape) > 2**20:
            continue
        x, z = real(*shape), numbers(*shape)
        scale = math.sqrt(n) * 4e-15
        close(torch.fft.fft(torch.from_numpy(z), dim=dim), np.fft.fft(z, axis=dim), scale)
        close(torch.fft.ifft(torch.from_numpy(z), dim=dim), np.fft.ifft(z, axis=dim), 4e-15)
        half = np.fft.rfft(x, axis=dim)
        close(torch.fft.rfft(torch.from_numpy(x), dim=dim), half, scale)
        close(torch.fft.irfft(torch.from_numpy(half), n, dim), x, 8e-15)


@pytest.mark.parametrize("n", (60, 131, 1000, 4096))
def test_single_precision(n: int) -> None:
    z = numbers(5, n).astype(np.complex64)
    want = np.fft.fft(z.astype(np.complex128))
    got = torch.fft.fft(torch.from_numpy(z)).numpy()
    assert got.dtype == np.complex64
    assert np.linalg.norm(got - want) < 4e-7 * np.linalg.norm(want)
    back = torch.fft.irfft(torch.fft.rfft(torch.from_numpy(z.real.copy())), n).numpy()
    assert np.linalg.norm(back - z.real) < 4e-7 * np.linalg.norm(z.real)


def test_threads_give_the_same_bits() -> None:
    z, found = torch.from_numpy(numbers(40, 1500)), []
    one = torch.from_numpy(numbers(2**16))
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append([torch.fft.fft(z), torch.fft.fft(z, dim=0), torch.fft.fft(one)])
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_strides_dtypes_and_out() -> None:
    z = numbers(6, 8)
    close(torch.fft.fft(torch.from_numpy(z).t()[::2]), np.fft.fft(z.T[::2]))
    for dtype, kind in ((torch.float32, torch.complex64), (torch.float64, torch.complex128)):
        assert torch.fft.rfft(torch.ones(4, dtype=dtype)).dtype is kind
        assert torch.fft.irfft(torch.ones(3, dtype=kind)).dtype is dtype
    assert torch.fft.fft(torch.tensor([1, 2])).dtype is torch.complex64
    out = torch.empty(0, dtype=torch.complex128)
    assert torch.fft.fft(torch.from_numpy(z), out=out) is out and out.shape == (6, 8)


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda x: torch.fft.fft(x, norm="no"), RuntimeError, "Invalid normalization mode"),
        (lambda x: torch.fft.fft(x, 0), RuntimeError, "Invalid number of data points"),
        (lambda x: torch.fft.fft(x, dim=2), IndexError, "Dimension out of range"),
        (lambda x: torch.fft.rfft(x.cfloat()), RuntimeError, "expects a real input"),
        (lambda x: torch.fft.fft(x.half()), RuntimeError, "dtype"),
        (lambda x: torch.fft.fftn(x, dim=(0, 0)), RuntimeError, "unique"),
        (lambda x: torch.fft.fftn(x, (1, 2, 3)), RuntimeError, "only has 2"),
        (lambda x: torch.fft.fftn(x, (1,), (0, 1)), RuntimeError, "same length"),
        (lambda x: torch.fft.irfft(x[:, :1]), RuntimeError, "Invalid number of data points"),
    ],
)
def test_refusals(call: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        call(torch.ones(3, 4))


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize(
    "name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "rfft2", "irfft2", "rfftn"]
)
def test_gradients(name: str, norm: str | None) -> None:
    transform = getattr(torch.fft, name)
    makes_real = name in ("rfft", "ihfft", "rfft2", "rfftn")
    for size in (4, 5):
        x = torch.from_numpy(real(2, size) if makes_real else numbers(2, size)).requires_grad_()
        lengths = {"s": (3, 6)} if name[-1] in "2n" else {"n": size + 1}
        for options in ({}, lengths):
            assert torch.autograd.gradcheck(lambda x, o=options: transform(x, norm=norm, **o), (x,))
        assert torch.autograd.gradgradcheck(lambda x: transform(x * x, norm=norm), (x,))


def test_frequencies_and_shifts() -> None:
    for n in (1, 4, 7):
        close(torch.fft.fftfreq(n, 0.5, dtype=torch.float64), np.fft.fftfreq(n, 0.5))
        close(torch.fft.rfftfreq(n, 0.5, dtype=torch.float64), np.fft.rfftfreq(n, 0.5))
        x = real(n, 3)
        for dim in (None, 0, (0, 1)):
            close(torch.fft.fftshift(torch.from_numpy(x), dim), np.fft.fftshift(x, dim), 0)
            close(torch.fft.ifftshift(torch.from_numpy(x), dim), np.fft.ifftshift(x, dim), 0)
    assert torch.fft.fftfreq(4).tolist() == [0, 0.25, -0.5, -0.25]


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("n", [1, 2, 9, 16])
def test_windows(n: int, periodic: bool) -> None:
    for name, key in (
        ("hann", "hann"),
        ("hamming", "hamming"),
        ("blackman", "blackman"),
        ("bartlett", "bartlett"),
        ("kaiser", ("kaiser", 12.0)),
    ):
        got = getattr(torch, f"{name}_window")(n, periodic, dtype=torch.float64)
        close(got, signal.get_window(key, n, fftbins=periodic), 1e-12)
    assert torch.hann_window(0).shape == (0,) and torch.hann_window(4).dtype is torch.float32


def frames(x: np.ndarray, n: int, hop: int, window: np.ndarray) -> np.ndarray:
    """The definition: one transform a window."""
    starts = range(0, x.shape[-1] - n + 1, hop)
    return np.stack([np.fft.rfft(x[..., i : i + n] * window) for i in starts], -1)


def test_stft() -> None:
    x, window = real(2, 50), np.hanning(8)
    t, w = torch.from_numpy(x), torch.from_numpy(window)
    close(torch.stft(t, 8, 3, window=w, center=False, return_complex=True), frames(x, 8, 3, window))
    padded = np.pad(x, ((0, 0), (4, 4)), "reflect")
    close(torch.stft(t, 8, 2, window=w, return_complex=True), frames(padded, 8, 2, window))
    close(torch.stft(t[0], 8, window=w, return_complex=True), frames(padded[0], 8, 2, window))
    wide = np.pad(np.hanning(5), (1, 2))
    got = torch.stft(t, 8, 2, 5, torch.from_numpy(np.hanning(5)), return_complex=True, normalized=True)
    close(got, frames(padded, 8, 2, wide) / math.sqrt(8))
    both = torch.stft(t, 8, 2, window=w, onesided=False, return_complex=True)
    assert both.shape == (2, 8, 26)
    assert torch.stft(t, 8, 2, window=w, return_complex=False).shape == (2, 5, 26, 2)
    with pytest.warns(UserWarning, match="window"):
        torch.stft(t, 8, return_complex=True)
    with pytest.raises(RuntimeError, match="return_complex"):
        torch.stft(t, 8, window=w)


def test_stft_gradient_of_complex() -> None:
    z = torch.tensor([1 + 2j, -1, 3j, 2, 1 - 1j, 0.5], dtype=torch.complex128, requires_grad=True)
    spectrum = torch.stft(z, 4, 2, window=torch.ones(4, dtype=torch.float64), return_complex=True)
    # The sum over all frequencies is four times a frame's first element; frames begin at 2, 0, 2 and 4.
    spectrum.real.sum().backward()
    assert z.grad is not None
    close(z.grad, 4 * np.array([1, 0, 2, 0, 1, 0j]))


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("onesided", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_istft_inverts(center: bool, onesided: bool, normalized: bool) -> None:
    x = torch.from_numpy(real(2, 48))
    window = torch.hann_window(8, dtype=torch.float64) + 0.1
    options = {"window": window, "center": center, "normalized": normalized, "onesided": onesided}
    spectrum = torch.stft(x, 8, 2, return_complex=True, **options)
    close(torch.istft(spectrum, 8, 2, length=48, **options), x.numpy())
    close(torch.istft(spectrum, 8, 2, length=50, **options)[:, :48], x.numpy())


def test_istft_of_all_frequencies() -> None:
    """A real signal is made of the first half of them, also where the rest does not mirror it."""
    spectrum, window = torch.randn(6, 3, dtype=torch.complex64), torch.ones(6)
    found = torch.istft(spectrum, 6, window=window, onesided=False)
    assert torch.equal(found, torch.istft(spectrum[:4], 6, window=window, onesided=True))
    assert torch.istft(spectrum, 6, window=window, return_complex=True).is_complex()
    with pytest.raises(RuntimeError, match="Cannot have onesided output"):
        torch.istft(spectrum[:4], 6, window=window, return_complex=True)
    assert torch.fft.ihfft(torch.ones(7), torch.tensor(2, dtype=torch.uint8)).shape == (2,)


def test_istft_gradient_and_refusals() -> None:
    x = torch.from_numpy(real(1, 12)).requires_grad_()
    window = torch.hann_window(4, dtype=torch.float64)

    def around(x: torch.Tensor) -> torch.Tensor:
        return torch.istft(torch.stft(x, 4, 1, window=window, return_complex=True) ** 2, 4, 1, window=window)

    assert torch.autograd.gradcheck(around, (x,))
    with pytest.raises(RuntimeError, match="complex"):
        torch.istft(x, 4)
    spectrum = torch.stft(x, 4, 4, window=window, return_complex=True)
    with pytest.raises(RuntimeError, match="window overlap add"):
        torch.istft(spectrum, 4, 4, window=window, center=False)


@pytest.mark.parity
def test_spectrogram_is_pytorchs() -> None:
    other = pytest.importorskip("torch")
    x = real(2, 400).astype("float32")
    for name in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
        window = getattr(torch, f"{name}_window")(64)
        theirs = getattr(other, f"{name}_window")(64)
        np.testing.assert_allclose(window.numpy(), theirs.numpy(), atol=1e-6)
        got = torch.stft(torch.from_numpy(x), 64, 16, window=window, return_complex=True).abs().square()
        want = other.stft(other.from_numpy(x), 64, 16, window=theirs, return_complex=True).abs().square()
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-4, atol=2e-4)
