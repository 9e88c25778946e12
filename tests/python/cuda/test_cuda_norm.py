"""Softmax, norms and losses on the device, against NumPy in double and the CPU's gradients: rows in registers
and longer ones, rows that begin off 16 bytes, other dims, weights of other dtypes, parts that a second launch
joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F

pytestmark = pytest.mark.cuda

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# Rows and their length: one element, off 16 bytes, one warp, several, more than registers hold.
ROWS = [
    (5, 1),
    (300, 2),
    (9, 33),
    (40, 64),
    (5, 768),
    (3, 1000),
    (2, 1021),
    (3, 5000),
    (2, 8200),
    (2, 33_001),
]


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0, scale: float = 1.0) -> Any:
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape) * scale).to(dtype)


def close(got: Any, expected: Any, slack: float = 1.0) -> None:
    """`expected`: a tensor of the CPU, or an array."""
    assert got.device.type == "cuda"
    x = got.detach().cpu().double().numpy()
    y = expected if isinstance(expected, np.ndarray) else expected.detach().double().numpy()
    tolerance = TOLERANCES[got.dtype] * slack
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, np.abs(y).max(initial=0)))


def gradients(f: Callable[..., Any], tensors: list[Any], device: str) -> list[Any]:
    """The result of f and the gradients of its tensors for one that is not constant."""
    leaves = [t if t is None else t.clone().to(device).requires_grad_(True) for t in tensors]
    y = f(*leaves)
    y.backward(numbers(tuple(y.shape), torch.float64, 9).to(y.dtype).to(device))
    return [y, *(t.grad for t in leaves if t is not None)]


def agree(f: Callable[..., Any], *tensors: Any, slack: float = 4.0) -> None:
    for got, expected in zip(
        gradients(f, list(tensors), "cuda"), gradients(f, list(tensors), "cpu"), strict=True
    ):
        assert got.dtype == expected.dtype
        close(got, expected, slack)


def softmax(a: np.ndarray, dim: int) -> np.ndarray:
    e = np.exp(a - a.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


@pytest.mark.parametrize("rows,n", ROWS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_of_rows(rows: int, n: int, dtype: Any) -> None:
    x = numbers((rows * n + 1,), dtype, scale=3)
    for part in (x[:-1], x[1:]):  # the second one begins off 16 bytes
        t = part.reshape(rows, n)
        p = softmax(t.double().numpy(), 1)
        close(torch.softmax(t.to("cuda"), 1), p)
        close(torch.log_softmax(t.to("cuda"), 1), np.log(p))
        agree(lambda v: torch.softmax(v, 1), t)
        agree(lambda v: torch.log_softmax(v, 1), t)
    on_device = x.to("cuda")[1:].reshape(rows, n)
    close(torch.softmax(on_device, 1), p)


@pytest.mark.parametrize(
    "shape,dim", [((3, 21, 50), 1), ((2000, 3), 0), ((4, 2, 300), 1), ((700, 33), 0), ((5, 3, 2), 1)]
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_of_columns(shape: tuple[int, ...], dim: int, dtype: Any) -> None:
    t = numbers(shape, dtype, scale=3)
    close(torch.softmax(t.to("cuda"), dim), softmax(t.double().numpy(), dim))
    agree(lambda v: torch.softmax(v, dim), t)
    agree(lambda v: torch.log_softmax(v, dim), t)


@pytest.mark.parametrize("n", [5, 1000, 40_000])
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_of_infinities(n: int, dim: int) -> None:
    a = np.zeros((4, n), np.float32)
    a[0], a[1, -1], a[2, 1], a[3, 0] = -np.inf, np.inf, np.nan, -np.inf
    x = torch.tensor(a if dim else np.ascontiguousarray(a.T)).to("cuda")
    p = torch.softmax(x, dim).cpu().numpy()
    p = p if dim else p.T
    assert np.isnan(p[:3]).all()
    np.testing.assert_allclose(p[3, 1:], 1 / (n - 1), rtol=1e-5)
    assert p[3, 0] == 0


@pytest.mark.parametrize("rows,n", ROWS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weights", ["none", "same", "float32", "weight alone"])
def test_layer_and_rms_norm(rows: int, n: int, dtype: Any, weights: str) -> None:
    x = numbers((rows, n), dtype)
    kind = torch.float32 if weights == "float32" else dtype
    w = None if weights == "none" else numbers((n,), kind, 1)
    b = None if weights in ("none", "weight alone") else numbers((n,), kind, 2)
    a = x.double().numpy()
    scale = 1 if w is None else w.double().numpy()
    shift = 0 if b is None else b.double().numpy()
    centered = a - a.mean(1, keepdims=True)
    on = [t if t is None else t.to("cuda") for t in (x, w, b)]
    if n > 1:
        rstd = 1 / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5)
        close(F.layer_norm(on[0], (n,), on[1], on[2]), centered * rstd * scale + shift, 4)
    rstd = 1 / np.sqrt((a**2).mean(1, keepdims=True) + 1e-5)
    close(F.rms_norm(on[0], (n,), on[1], 1e-5), a * rstd * scale, 4)
    slack = 8.0 * np.sqrt(rows)
    if n > 2:  # of two elements the variance may be so small that its inverse leaves the dtype
        agree(lambda x, w, b: F.layer_norm(x, (n,), w, b), x, w, b, slack=slack)
    agree(lambda x, w: F.rms_norm(x, (n,), w, 1e-5), x, w, slack=slack * 4)


@pytest.mark.parametrize("rows, n", [(9000, 24), (600, 256)])
def test_layer_norm_of_many_rows(rows: int, n: int) -> None:
    """More rows than blocks walk at once; sums of columns where rows of several warps were."""
    agree(
        lambda x, w, b: F.layer_norm(x, (n,), w, b),
        *(numbers(s, torch.float32) for s in ((rows, n), (n,), (n,))),
        slack=50,
    )


def test_layer_norm_far_from_zero() -> None:
    for n in (1000, 40_000):
        a = (np.random.default_rng(4).standard_normal((2, n)) + 3e3).astype(np.float32)
        b = a.astype(np.float64)
        expected = (b - b.mean(1, keepdims=True)) / np.sqrt(b.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(
            F.layer_norm(torch.tensor(a).to("cuda"), (n,)).cpu().numpy(), expected, atol=2e-3
        )


CHANNELS = [(2, 12, 49), (3, 8, 64), (1, 4, 40_000), (300, 6, 1), (17, 24, 1), (2, 6, 3), (5, 16, 1000)]


@pytest.mark.parametrize("shape", CHANNELS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weighted", [False, True])
def test_channel_norms(shape: tuple[int, int, int], dtype: Any, weighted: bool) -> None:
    batch, channels, inner = shape
    x = numbers(shape, dtype)
    w: Any
    b: Any
    w, b = (numbers((channels,), torch.float32, k) if weighted else None for k in (1, 2))
    slack = 8.0 * np.sqrt(batch * inner) ** 0.5
    for groups in (1, 2, channels // 2):
        a = x.double().numpy().reshape(batch, groups, -1)
        if a.shape[2] > 2:
            y = ((a - a.mean(2, keepdims=True)) / np.sqrt(a.var(2, keepdims=True) + 1e-5)).reshape(shape)
            if weighted:
                y = y * w.double().numpy()[:, None] + b.double().numpy()[:, None]
            close(
                F.group_norm(x.to("cuda"), groups, *(t if t is None else t.to("cuda") for t in (w, b))), y, 4
            )
            agree(lambda x, w, b, g=groups: F.group_norm(x, g, w, b), x, w, b, slack=slack)
    agree(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), x, w, b, slack=slack)
    mean, variance = (
        numbers((channels,), torch.float32, 3),
        numbers((channels,), torch.float32, 4).abs() + 0.5,
    )

    def evaluate(x: Any, w: Any, b: Any) -> Any:
        return F.batch_norm(x, mean.to(x.device), variance.to(x.device), w, b, False)

    agree(evaluate, x, w, b, slack=slack)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_running_statistics(dtype: Any) -> None:
    x = numbers((20, 6, 30), torch.float32)
    running = [torch.zeros(6, dtype=dtype).to("cuda"), torch.ones(6, dtype=dtype).to("cuda")]
    F.batch_norm(x.to("cuda"), *running, None, None, True, 0.25)
    a = x.double().numpy().transpose(1, 0, 2).reshape(6, -1)
    close(running[0], 0.25 * a.mean(1))
    close(running[1], 0.75 + 0.25 * a.var(1, ddof=1))


@pytest.mark.parametrize("rows,classes", [(7, 2), (2000, 10), (3, 1000), (5, 1001), (2, 50_257)])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("smoothing,weighted", [(0.0, False), (0.1, False), (0.1, True)])
def test_cross_entropy(rows: int, classes: int, dtype: Any, smoothing: float, weighted: bool) -> None:
    rng = np.random.default_rng(5)
    x, target = numbers((rows, classes), dtype, scale=2), rng.integers(0, classes, rows)
    target[rows // 2] = -100
    weight = torch.tensor(rng.random(classes) + 0.5).to(dtype) if weighted else None
    a, w = x.double().numpy(), np.ones(classes) if weight is None else weight.double().numpy()
    log_p = a - a.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    keep = target >= 0
    picked = np.where(keep, target, 0)
    losses = -(1 - smoothing) * w[picked] * log_p[np.arange(rows), picked] - smoothing / classes * (
        log_p * w
    ).sum(1)
    losses = np.where(keep, losses, 0)
    total = (w[picked] * keep).sum()
    t = torch.tensor(target)
    for reduction, expected in (("none", losses), ("sum", losses.sum()), ("mean", losses.sum() / total)):

        def loss(v: Any, reduction: str = reduction) -> Any:
            cw = weight if weight is None else weight.to(v.device)
            return F.cross_entropy(v, t.to(v.device), cw, label_smoothing=smoothing, reduction=reduction)

        close(loss(x.to("cuda")), np.asarray(expected), 8)
        agree(loss, x, slack=8)


def test_cross_entropy_of_a_bad_target() -> None:
    x = torch.zeros(4, 6).to("cuda")

    def run() -> None:
        F.cross_entropy(x, torch.tensor([0, 5, 6, 1]).to("cuda"))
        torch.cuda.synchronize()

    with pytest.raises(IndexError, match="cross_entropy"):
        run()
    assert F.cross_entropy(x, torch.tensor([0, 5, 3, 1]).to("cuda")).item() == pytest.approx(
        np.log(6), rel=1e-6
    )


LOSSES: dict[str, Callable[..., Any]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.7, **k),
    "huber": lambda x, y, **k: F.huber_loss(x, y, delta=0.6, **k),
    "bce": lambda x, y, **k: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), **k),
    "bce of logits": lambda x, y, **k: F.binary_cross_entropy_with_logits(x, y.sigmoid(), **k),
    "kl": lambda x, y, **k: F.kl_div(x, y.sigmoid(), **k),
    "kl of logs": lambda x, y, **k: F.kl_div(x, y, log_target=True, **k),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(), (0,), (1500,), (70, 1301), (2,) * 11])
@pytest.mark.filterwarnings("ignore:reduction")
def test_losses_of_elements(name: str, shape: tuple[int, ...]) -> None:
    def compare(x: Any, y: Any) -> None:
        for reduction in ("none", "sum", "mean"):

            def loss(a: Any, reduction: str = reduction) -> Any:
                return LOSSES[name](a, y.to(a.device), reduction=reduction)

            agree(loss, x)

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x, y = numbers(shape, dtype), numbers(shape, dtype, 1)
        compare(x, y)
        if len(shape) > 1:  # no run of memory in common, and too many dims for one launch
            order = [*range(0, len(shape), 2), *range(1, len(shape), 2)]
            seen = y.permute(*order[::-1])
            compare(numbers(tuple(seen.shape), dtype), seen)
