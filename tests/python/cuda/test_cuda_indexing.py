"""Kernels that read and write by index, against NumPy and the CPU's: many writes to one place, tiles' edges,
order of the indices, equality of runs, bad indices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F

pytestmark = pytest.mark.cuda

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
rng = np.random.default_rng(0)


def whole(shape: tuple[int, ...], dtype: Any = torch.float32, high: int = 8) -> Any:
    """Small whole numbers, whose sums every dtype holds: the order of adding them does not show."""
    return torch.tensor(rng.integers(0, high, shape)).to(dtype)


def numbers(shape: tuple[int, ...], dtype: Any = torch.float32) -> Any:
    return torch.tensor(rng.standard_normal(shape)).to(dtype)


def same(got: Any, expected: Any) -> None:
    assert got.device.type == "cuda" and got.dtype == expected.dtype
    np.testing.assert_array_equal(got.cpu().double().numpy(), expected.double().numpy())


def close(got: Any, expected: Any) -> None:
    assert got.device.type == "cuda" and got.dtype == expected.dtype
    x, y = got.cpu().double().numpy(), expected.double().numpy()
    tolerance = TOLERANCES[expected.dtype]
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1, np.abs(y).max(initial=0)))


def on_both(f: Callable[..., Any], *tensors: Any) -> tuple[Any, Any]:
    return f(*(t.to("cuda") for t in tensors)), f(*tensors)


# ---- many writes to one place ----


@pytest.mark.parametrize("places", [1, 2, 130, 5000])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
def test_scatter_add_of_many_to_few(places: int, dtype: Any) -> None:
    n = 1 if dtype in (torch.bfloat16, torch.uint8) else 3  # sums stay exact
    index = torch.tensor(rng.integers(0, places, (2, 3000)))
    x, src = whole((2, places), dtype), torch.tensor(rng.integers(0, n, (2, 3000)) % 2).to(dtype)
    if dtype is torch.bfloat16 and places < 100:
        src = src * 0
    expected = x.double().numpy().copy()
    for row in range(2):
        np.add.at(expected[row], index.numpy()[row], src.double().numpy()[row])
    got = x.to("cuda").scatter_add(1, index.to("cuda"), src.to("cuda"))
    if dtype is torch.uint8:
        expected = expected % 256
    np.testing.assert_array_equal(got.cpu().double().numpy(), expected)


@pytest.mark.parametrize("reduce", ["multiply", "amin", "amax"])
def test_scatter_reduce_of_many_to_few(reduce: str) -> None:
    index, x = torch.tensor(rng.integers(0, 5, 2000)), numbers((5,), torch.float64)
    src = (
        numbers((2000,), torch.float64) if reduce != "multiply" else whole((2000,), torch.float64, 2) * 2 - 1
    )
    got, expected = on_both(lambda a, i, s: a.scatter(0, i, s, reduce=reduce), x, index, src)
    same(got, expected)


@pytest.mark.parametrize("shape", [(1, 7), (4000, 3), (70, 64), (300, 768), (300, 33)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_embedding_of_repeated_tokens(shape: tuple[int, int], dtype: Any) -> None:
    n, dim = shape
    tokens = torch.tensor(np.minimum(rng.zipf(1.3, n) - 1, 10))  # most are the same few
    table, grad = numbers((11, dim), dtype), numbers((n, dim), dtype)
    results = []
    for device in ("cuda", "cpu"):
        t = table.to(device).requires_grad_()
        out = F.embedding(tokens.to(device), t, padding_idx=2)
        out.backward(grad.to(device))
        results.append((out.detach(), t.grad))
    same(results[0][0], results[1][0])
    close(results[0][1], results[1][1])
    assert results[0][1][2].tolist() == [0] * dim


def test_index_add_along_inner_dims() -> None:
    for shape, dim in (((3, 9, 5), 1), ((9,), 0), ((2, 3, 9), 2), ((9, 640), 0)):
        index = torch.tensor(rng.integers(0, 9, 700))
        src_shape = tuple(700 if d == dim else s for d, s in enumerate(shape))
        got, expected = on_both(
            lambda a, i, s, d=dim: a.index_add(d, i, s, alpha=2), whole(shape), index, whole(src_shape)
        )
        same(got, expected)


def test_index_put_accumulates_into_transposed_memory() -> None:
    x = whole((6, 5, 4)).permute(2, 0, 1)  # [4, 6, 5]
    i, j = torch.tensor(rng.integers(-4, 4, (9, 40))), torch.tensor(rng.integers(-6, 6, (40,)))
    for indices, shape in (((i,), (9, 40, 6, 5)), ((i, j), (9, 40, 5)), ((i, j), (5,)), ((j % 4, j), (1, 5))):
        values = whole(shape)
        got, expected = on_both(
            lambda a, v, *index: a.clone().index_put_(index, v, accumulate=True), x, values, *indices
        )
        same(got, expected)


# ---- order ----


def test_the_last_write_stays() -> None:
    index = torch.tensor(rng.integers(0, 50, 3000))
    values = torch.arange(3000)
    last = {int(i): k for k, i in enumerate(index.numpy())}
    expected = [last[i] for i in range(50)]
    x = torch.zeros(50, dtype=torch.int64, device="cuda")
    assert x.index_put((index.cuda(),), values.cuda()).tolist() == expected
    assert x.scatter(0, index.cuda(), values.cuda()).tolist() == expected
    many = x.expand(3, 50).scatter(1, index.cuda().expand(3, 3000), values.cuda().expand(3, 3000))
    assert many.tolist() == [expected] * 3


RUNS = """
import hashlib, sys
import numpy as np
import warptape as torch
import warptape.nn.functional as F
rng = np.random.default_rng(1)
def number(*shape): return torch.tensor(rng.standard_normal(shape)).float().cuda()
def index(high, *shape): return torch.tensor(rng.integers(0, high, shape)).cuda()
for _ in range(int(sys.argv[1])):
    rng = np.random.default_rng(1)
    table = number(40, 48).requires_grad_()
    F.embedding(index(40, 900), table).backward(number(900, 48))
    x = number(3, 30)
    results = [
        table.grad,
        x.scatter_add(1, index(30, 3, 4000), number(3, 4000)),
        x.index_add(1, index(30, 2000), number(3, 2000)),
        x.index_put((index(3, 2000), index(30, 2000)), number(2000), accumulate=True),
        x.index_put((index(3, 2000), index(30, 2000)), number(2000)),
        torch._foreach_norm([number(20000), number(7)], 2)[0],
        torch.sort(index(9, 5, 700).float(), -1)[1],
        F.max_pool2d(number(2, 3, 20, 20), 3, 1, 1),
    ]
    print(hashlib.sha256(b"".join(r.cpu().numpy().tobytes() for r in results)).hexdigest())
"""


def runs(count: int, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(count)],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.split()


def test_runs_are_equal_bit_by_bit() -> None:
    """Whatever order blocks and warps run in; on a GPU the variable means nothing and runs are repeated."""
    digests = [
        d for order in ("forward", "reverse", "shuffled") for d in runs(3, WARPTAPE_EMULATOR_ORDER=order)
    ]
    assert len(digests) == 9 and len(set(digests)) == 1


# ---- masks and tiles ----


@pytest.mark.parametrize("n", [0, 1, 31, 4095, 4096, 4097, 70_001])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.float32, torch.int64])
def test_nonzero_at_the_edges_of_tiles(n: int, dtype: Any) -> None:
    x = (whole((n,), high=3) - 1).to(dtype)
    assert x.cuda().nonzero()[:, 0].tolist() == np.flatnonzero(x.double().numpy()).tolist()
    mask, y = x.bool(), whole((n,), high=100)
    got, expected = on_both(lambda m, v: v[m], mask, y)
    same(got, expected)
    got, expected = on_both(lambda m, v: v.masked_scatter(m, v.flip(0)), mask, y)
    same(got, expected)


def test_signed_zeros_and_nan_count_as_they_are() -> None:
    x = torch.tensor([0.0, -0.0, float("nan"), 1e-45, -float("inf")])
    for dtype in FLOATS:
        assert x.to(dtype).cuda().nonzero().tolist() == x.to(dtype).nonzero().tolist()


def test_tensors_of_many_dims() -> None:
    x = whole((2, 1, 3, 2, 2, 1, 2, 3, 2, 2, 2)).permute(10, 8, 0, 6, 4, 2, 1, 3, 5, 7, 9)
    index = torch.tensor(rng.integers(0, 2, tuple(x.shape)))
    for f in (
        lambda a, i: torch.gather(a, 0, i),
        lambda a, i: a.scatter(0, i, a),
        lambda a, i: a.flip([0, 3, 10]),
        lambda a, i: a[a > 3],
        lambda a, i: (a > 3).nonzero(),
        lambda a, i: a.tril(1),
        lambda a, i: a[:, i.flatten()[:9] % 2],
    ):
        got, expected = on_both(f, x, index)
        same(got, expected)


# ---- sorting ----


@pytest.mark.parametrize("shape", [(1,), (700,), (60, 5), (3, 4, 130)])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int8, torch.bool])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_with_nan_last(shape: tuple[int, ...], dtype: Any, descending: bool) -> None:
    x = (whole(shape) - 4).to(dtype)
    if x.is_floating_point():
        flat = x.view(-1)
        flat[:: max(1, x.numel() // 5)] = float("nan")
        flat[-1] = -0.0
    for got, expected in zip(*on_both(lambda t: torch.sort(t, -1, descending), x), strict=True):
        same(got, expected)
    k = (shape[-1] + 1) // 2
    for got, expected in zip(*on_both(lambda t: torch.topk(t, k, -1, descending), x), strict=True):
        same(got, expected)


# ---- bad indices ----


def bad_calls() -> Iterator[tuple[str, Callable[[Any, Any], Any]]]:
    yield "embedding", lambda x, i: F.embedding(i, x)
    yield "gather", lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, 4))
    yield "scatter", lambda x, i: x.scatter(0, i[:, None].expand(-1, 4), 1.0)
    yield "scatter", lambda x, i: x.scatter_add(0, i.repeat(30)[:, None], x.repeat(50, 1)[:90, :1])
    yield "index_select", lambda x, i: torch.index_select(x, 0, i)
    yield "index_add", lambda x, i: x.index_add(0, i, x[:3])
    yield "index", lambda x, i: x[i]
    yield "index_put_", lambda x, i: x.index_put((i,), x[:3])


@pytest.mark.parametrize(("op", "call"), list(bad_calls()), ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("bad", [6, -7, 2**40])
def test_a_bad_index_is_raised_when_waited_for(op: str, call: Callable[[Any, Any], Any], bad: int) -> None:
    x = numbers((6, 4)).cuda()
    good = torch.tensor([1, 0, 5]).cuda()
    call(x, good)
    torch.cuda.synchronize()
    out = call(x, torch.tensor([1, bad, 5]).cuda())
    with pytest.raises(IndexError, match=f"{op}: .*{bad}"):
        torch.cuda.synchronize()
    assert out.shape == call(x, good).shape
    torch.cuda.synchronize()  # the context lives, and nothing is raised twice


def test_valid_indices_beside_a_bad_one_are_written() -> None:
    x, index = torch.zeros(6, device="cuda"), torch.tensor([1, 9, 5]).cuda()
    out = x.index_put((index,), torch.tensor([1.0, 2.0, 3.0]).cuda())
    with pytest.raises(IndexError):
        torch.cuda.synchronize()
    assert out.tolist() == [0, 1, 0, 0, 0, 3]
