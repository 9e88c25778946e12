"""Results and gradients are equal to the bit for every number of threads, also where a sum is split among
them. Sizes are past the point where the work is shared out, and odd, so that parts end unevenly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import warptape as wt
from warptape import nn

F = nn.functional
THREADS = (1, 2, 4, 8)
Build = Callable[[], tuple[Callable[..., wt.Tensor], tuple[wt.Tensor, ...]]]


def leaf(*shape: int) -> wt.Tensor:
    return wt.randn(*shape, requires_grad=True)


def targets(n: int, classes: int) -> wt.Tensor:
    return wt.randint(0, classes, (n,))


WORK: dict[str, Build] = {
    "sum": lambda: (lambda x: x.sum(), (leaf(1_300_003),)),
    "sum of columns": lambda: (lambda x: x.sum(0), (leaf(2049, 517),)),
    "mean of squares": lambda: (lambda x: (x * x).mean(), (leaf(1_300_003),)),
    "norm": lambda: (lambda x: x.norm(), (leaf(1_300_003),)),
    "var of rows": lambda: (lambda x: x.var(1), (leaf(517, 2049),)),
    "prod": lambda: (lambda x: (1 + x * 1e-4).prod(), (leaf(300_007),)),
    "cumsum": lambda: (lambda x: x.cumsum(0), (leaf(4099, 131),)),
    "gelu": lambda: (F.gelu, (leaf(900_001),)),
    "broadcast sum of gradients": lambda: (lambda x, b: x * b, (leaf(3001, 259), leaf(259))),
    "matmul": lambda: (lambda a, b: a @ b, (leaf(301, 517), leaf(517, 259))),
    "batched matmul": lambda: (lambda a, b: a @ b, (leaf(9, 65, 129), leaf(9, 129, 70))),
    "long inner product": lambda: (lambda a, b: a @ b, (leaf(3, 100_003), leaf(100_003, 5))),
    "linear": lambda: (F.linear, (leaf(700, 129), leaf(257, 129), leaf(257))),
    "conv2d": lambda: (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        (leaf(5, 7, 33, 31), leaf(13, 7, 3, 3), leaf(13)),
    ),
    "depthwise conv2d": lambda: (
        lambda x, w: F.conv2d(x, w, stride=(1, 2), padding=2, groups=13),
        (leaf(5, 13, 67, 71), leaf(13, 1, 5, 3)),
    ),
    "cumprod": lambda: (lambda x: (1 + x * 1e-3).cumprod(1), (leaf(131, 517),)),
    "interpolate": lambda: (
        partial(F.interpolate, size=(41, 90), mode="bicubic"),
        (leaf(3, 11, 67, 71),),
    ),
    "max_pool2d": lambda: (lambda x: F.max_pool2d(x, 3, 2), (leaf(5, 19, 65, 63),)),
    "softmax": lambda: (lambda x: x.softmax(-1), (leaf(1025, 517),)),
    "log_softmax of columns": lambda: (lambda x: x.log_softmax(0), (leaf(1025, 517),)),
    "cross_entropy": lambda: (partial(F.cross_entropy, target=targets(4099, 131)), (leaf(4099, 131),)),
    "cross_entropy of images": lambda: (
        partial(F.cross_entropy, target=targets(3 * 97 * 89, 11).view(3, 97, 89)),
        (leaf(3, 11, 97, 89),),
    ),
    "pdist": lambda: (F.pdist, (leaf(99, 131),)),
    "mse_loss": lambda: (F.mse_loss, (leaf(1_300_003), leaf(1_300_003))),
    "layer_norm": lambda: (
        lambda x, w, b: F.layer_norm(x, (259,), w, b),
        (leaf(3001, 259), leaf(259), leaf(259)),
    ),
    "batch_norm": lambda: (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (leaf(33, 17, 31, 29), leaf(17), leaf(17)),
    ),
    "group_norm": lambda: (
        lambda x, w, b: F.group_norm(x, 4, w, b),
        (leaf(33, 16, 31, 29), leaf(16), leaf(16)),
    ),
    "embedding": lambda: (partial(F.embedding, targets(20_011, 101)), (leaf(101, 67),)),
    "attention": lambda: (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (leaf(3, 5, 197, 32), leaf(3, 5, 197, 32), leaf(3, 5, 197, 32)),
    ),
    "dropout": lambda: (lambda x: F.dropout(x, 0.3), (leaf(700_001),)),
}


@pytest.fixture
def threads() -> Iterator[None]:
    before = wt.get_num_threads()
    yield
    wt.set_num_threads(before)


def results(name: str, count: int, dtype: wt.dtype) -> list[bytes]:
    """The bytes of the result and of every gradient."""
    wt.set_num_threads(count)
    wt.manual_seed(7)
    work, inputs = WORK[name]()
    inputs = tuple(x.detach().to(dtype).requires_grad_() for x in inputs)
    out = work(*inputs)
    upstream = wt.randn(out.shape).to(out.dtype)
    found = (out, *wt.autograd.grad(out, inputs, upstream))
    assert all(bool(wt.isfinite(t).all()) for t in found)
    return [t.detach().double().numpy().tobytes() for t in found]


@pytest.mark.parametrize("dtype", [wt.float32, wt.float64, wt.bfloat16], ids=str)
@pytest.mark.parametrize("name", WORK)
def test_equal_to_the_bit(name: str, dtype: wt.dtype, threads: None) -> None:
    expected = results(name, THREADS[0], dtype)
    for count in THREADS[1:]:
        assert results(name, count, dtype) == expected, f"{count} threads differ from 1"


def trained(count: int) -> list[Any]:
    wt.set_num_threads(count)
    wt.manual_seed(1)
    model = nn.Sequential(nn.Linear(257, 513), nn.GELU(), nn.Dropout(0.1), nn.Linear(513, 31))
    optimizer = wt.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = wt.randn(259, 257), targets(259, 31)
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *(p.detach().numpy().tobytes() for p in model.parameters())]


def test_training_equal_to_the_bit(threads: None) -> None:
    expected = trained(1)
    assert expected[9] < expected[0]
    for count in THREADS[1:]:
        assert trained(count) == expected, f"{count} threads differ from 1"
