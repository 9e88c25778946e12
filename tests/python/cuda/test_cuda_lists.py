"""Kernels over lists of tensors, and pooling and padding, against the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F

pytestmark = pytest.mark.cuda

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# One element, none, the edges of a block's chunk, and more tensors than one launch takes.
LISTS = [[1], [0, 5, 0], [3, 8191, 8192, 8193, 20_000], [7] * 150]
rng = np.random.default_rng(0)


def numbers(shape: tuple[int, ...], dtype: Any = torch.float32) -> Any:
    return torch.tensor(rng.standard_normal(shape)).to(dtype)


def close(got: Any, expected: Any) -> None:
    assert got.device.type == "cuda" and got.dtype == expected.dtype
    x, y = got.detach().cpu().double().numpy(), expected.detach().double().numpy()
    tolerance = TOLERANCES[expected.dtype]
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1, np.abs(y).max(initial=0)))


OPTIMIZERS: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("adamw", torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    ("adam", torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    ("sgd", torch.optim.SGD, {"lr": 0.1}),
    ("momentum", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
]


@pytest.mark.parametrize("sizes", LISTS, ids=lambda s: str(len(s)))
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "make", "options"), OPTIMIZERS, ids=[o[0] for o in OPTIMIZERS])
def test_steps(name: str, make: Callable[..., Any], options: dict[str, Any], dtype: Any, sizes: Any) -> None:
    values = [numbers((n,), dtype) for n in sizes]
    grads = [[numbers((n,), dtype) for n in sizes] for _ in range(2)]
    results = []
    for device in ("cuda", "cpu"):
        params = [v.to(device, copy=True).requires_grad_() for v in values]
        optimizer = make(params, fused=True, **options)
        for step in grads:
            for p, g in zip(params, step, strict=True):
                p.grad = g.to(device)
            optimizer.step()
        results.append(params)
    for got, expected in zip(*results, strict=True):
        close(got, expected)


@pytest.mark.parametrize("sizes", LISTS, ids=lambda s: str(len(s)))
@pytest.mark.parametrize("dtype", FLOATS)
def test_list_operations(dtype: Any, sizes: Any) -> None:
    host = [numbers((n,), dtype) for n in sizes]
    other = [numbers((n,), dtype) for n in sizes]
    device = [t.to("cuda") for t in host]
    for order in (1, 2, float("inf")):
        got, expected = (torch._foreach_norm(x, order) for x in (device, host))
        for a, b in zip(got, expected, strict=True):
            close(a, b)
    for x, y in ((device, [t.to("cuda") for t in other]), (host, other)):
        torch._foreach_add_(x, y, alpha=0.5)
        torch._foreach_mul_(x, torch.tensor(0.7).to(x[0].device))
        torch._foreach_add_(x, 0.25)
        torch._foreach_mul_(x, 1.5)
    for a, b in zip(device, host, strict=True):
        close(a, b)


def test_norms_of_what_float_cannot_square() -> None:
    x = torch.tensor([3e30, 4e30, 0.0, -1e-30])
    for part in (x, x[1:], x * 1e-30 * 1e-28):  # aligned and not, large and small
        got, expected = (torch._foreach_norm([t], 2)[0] for t in (part.to("cuda"), part))
        exact = float(np.linalg.norm(part.double().numpy()))
        assert got.item() == pytest.approx(exact, rel=1e-5) and expected.item() == pytest.approx(
            exact, rel=1e-5
        )
    assert np.isnan(torch._foreach_norm([torch.tensor([1.0, float("nan")]).cuda()], float("inf"))[0].item())


def test_views_off_16_bytes() -> None:
    x, y = numbers((1001,)), numbers((1003,))
    device, other = x.to("cuda"), y.to("cuda")
    torch._foreach_add_([device[1:]], [other[2:1002]], alpha=2)
    close(device, torch.cat([x[:1], x[1:] + 2 * y[2:1002]]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_drops_what_the_cpu_drops(dtype: Any, p: float) -> None:
    for n in (1, 3, 1024, 5001):
        x = numbers((n,), dtype)
        kept = []
        for t in (x.to("cuda"), x):
            torch.manual_seed(9)
            kept.append(F.dropout(t, p))
        close(*kept)


# ---- pooling and padding ----


def both_ways(f: Callable[[Any], Any], x: Any) -> None:
    """f's results and gradient of x."""
    results = []
    for device in ("cuda", "cpu"):
        t = x.to(device, copy=True).requires_grad_()
        out = f(t)
        out = out if isinstance(out, tuple) else (out,)
        weight = torch.arange(out[0].numel()).reshape(out[0].shape).to(x.dtype).to(device) * 0.01 + 1
        (out[0] * weight).backward(torch.ones(out[0].shape, dtype=x.dtype).to(device))
        results.append((*out, t.grad))
    for got, expected in zip(*results, strict=True):
        if expected.is_floating_point():
            close(got, expected)
        else:
            assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 3, 4), (2, 3, 17, 18), (1, 4, 40, 5)])
def test_pooling(shape: tuple[int, ...], dtype: Any) -> None:
    x = numbers(shape, dtype)
    repeated = (x * 2).round()  # maxima that occur more than once
    for kernel, stride, padding, dilation in (
        (2, 2, 0, 1),
        (3, 1, 1, 1),
        (2, 1, 1, 3),
        ((3, 2), (2, 3), (1, 0), 1),
    ):
        both_ways(
            lambda t, a=(kernel, stride, padding, dilation): F.max_pool2d(t, *a, return_indices=True),
            repeated,
        )
        if dilation == 1:
            both_ways(lambda t, a=(kernel, stride, padding): F.avg_pool2d(t, *a, ceil_mode=True), x)
            both_ways(lambda t, a=(kernel, stride, padding): F.avg_pool2d(t, *a, False, False), x)
            both_ways(lambda t, a=(kernel, stride, padding): F.avg_pool2d(t, *a, divisor_override=3), x)
    for size in ((1, 1), (2, 3), (5, 7), (50, 1)):
        both_ways(lambda t, s=size: F.adaptive_avg_pool2d(t, s), x)
        both_ways(lambda t, s=size: F.adaptive_max_pool2d(t, s, return_indices=True), repeated)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding(mode: str, dims: int) -> None:
    x = numbers((2, 3, 6, 5, 4)[: 2 + dims], torch.float64)
    for ends in ((1, 2), (3, 0), (0, 3), (-1, 2), (2, -1), (-1, -2)):
        both_ways(lambda t, e=ends: F.pad(t, list(e) * dims, mode=mode), x)
    if mode == "replicate":
        both_ways(lambda t: F.pad(t, [9, 20] * dims, mode=mode), x)
