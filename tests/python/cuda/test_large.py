"""One op of each family over more than 2^31 elements, where a 32-bit offset would wrap.

Tensors are rows of 251 numbers that are all alike: what is right for one row is right for all, so results are
checked as a whole on the device, against NumPy's for one row. 251 is prime: an offset that wrapped would fall
on another number. The same tests with a few rows run wherever there is a device, emulated ones included; they
show that the tests are right. The large ones need a GPU with 64 GiB free.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F

pytestmark = pytest.mark.cuda

WIDTH = 251
LARGE = 8_555_800  # rows: 2^31 + 22,152 elements
FREE = 64 << 30
SMALL = 40


def free_memory() -> int:
    """Of a real GPU; 0 of an emulated one."""
    try:
        return 0 if "emulated" in torch.cuda.get_device_name().lower() else torch.cuda.mem_get_info()[0]
    except RuntimeError:
        return 0


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def rows(request: pytest.FixtureRequest) -> Any:
    if request.param == LARGE and free_memory() < FREE:
        pytest.skip(f"needs a GPU (not emulated) with {FREE >> 30} GiB free")
    torch.cuda.empty_cache()
    yield request.param
    torch.cuda.empty_cache()


def pattern() -> np.ndarray:
    """Each of -125 ... 125 once, in no order."""
    return (np.arange(WIDTH) * 100 % WIDTH - 125).astype(np.int8)


def filled(rows: int, dtype: Any, row: np.ndarray | None = None) -> Any:
    """[rows, 251] in memory of its own, every row alike."""
    one = torch.tensor(pattern() if row is None else row).to("cuda").to(dtype)
    return one.expand(rows, WIDTH).clone(memory_format=torch.contiguous_format)


def check_rows(x: Any, one: np.ndarray, tolerance: float = 0.0) -> None:
    """Every row of x is its first one, to the bit, and that one is `one`."""
    assert x.shape[1:] == one.shape
    np.testing.assert_allclose(x[0].cpu().double().numpy(), one, rtol=tolerance, atol=tolerance)
    assert bool((x == x[0]).all())
    # Not by the kernels that were just relied on: numbers read one by one.
    flat, n = x.reshape(-1), x.numel()
    for at in {0, 1, n // 2, n - 2**20, n - 2, n - 1, 2**31 - 1, 2**31, 2**31 + 1}:
        if 0 <= at < n:
            assert flat[at].item() == x[0].reshape(-1)[at % one.size].item()


def test_copy_with_cast(rows: int) -> None:
    x = filled(rows, torch.int8)
    wide = x.to(torch.bfloat16)
    check_rows(wide, pattern())
    check_rows(wide.to(torch.int8), pattern())


def test_add(rows: int) -> None:
    x = filled(rows, torch.int8)
    check_rows(x + x, (pattern().astype(np.int64) * 2).astype(np.int8))  # flat
    one = torch.tensor(np.arange(WIDTH, dtype=np.int8)).to("cuda")
    check_rows(x + one, pattern() + np.arange(WIDTH).astype(np.int8))  # broadcast


def test_sum(rows: int) -> None:
    x = filled(rows, torch.int8, pattern() + np.int8(1))
    assert x.sum().item() == rows * WIDTH  # the pattern's own sum is 0
    np.testing.assert_array_equal(x.sum(0).cpu().numpy(), rows * (pattern() + np.int8(1)).astype(np.int64))
    assert bool((x.sum(1) == WIDTH).all())


def test_softmax(rows: int) -> None:
    x = pattern() / 32.0
    e = np.exp(x - x.max())
    check_rows(torch.softmax(filled(rows, torch.bfloat16, x), 1), e / e.sum(), 1e-2)


def test_layer_norm(rows: int) -> None:
    x = pattern() / 32.0
    leaf = filled(rows, torch.bfloat16, x).requires_grad_(True)
    weight = torch.ones(WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = F.layer_norm(leaf, (WIDTH,), weight)
    check_rows(out.detach(), x / np.sqrt(x.var() + 1e-5), 2e-2)
    grad = np.where(np.arange(WIDTH) == 7, 1.0, 0.0)
    out.backward(filled(rows, torch.bfloat16, grad))
    normed, scale = x / np.sqrt(x.var() + 1e-5), 1 / np.sqrt(x.var() + 1e-5)
    check_rows(leaf.grad, scale * (grad - 1 / WIDTH - normed * normed[7] / WIDTH), 2e-2)
    np.testing.assert_allclose(
        weight.grad.cpu().double().numpy(), rows * grad * normed[7], rtol=2e-2, atol=2e-2 * rows
    )


def test_embedding(rows: int) -> None:
    """Results and gradients of more than 2^31 elements; then a table of as many."""
    table = torch.tensor(np.stack([pattern(), -pattern()]).astype(np.float32)).to("cuda").to(torch.bfloat16)
    table.requires_grad_(True)
    index = torch.zeros(rows, dtype=torch.int64, device="cuda")
    out = F.embedding(index, table)
    check_rows(out.detach(), pattern())
    out.backward(torch.ones(1, 1, device="cuda", dtype=torch.bfloat16).expand(rows, WIDTH))
    np.testing.assert_allclose(table.grad.cpu().double().numpy()[0], rows, rtol=1e-2)
    np.testing.assert_array_equal(table.grad.cpu().double().numpy()[1], 0)
    del out, index
    large = filled(rows, torch.bfloat16)
    large[rows - 1] = 1.0
    last = F.embedding(torch.tensor([rows - 1, rows - 2, 0]).to("cuda"), large).cpu().double().numpy()
    np.testing.assert_array_equal(last, np.stack([np.ones(WIDTH), pattern(), pattern()]))


def test_gather(rows: int) -> None:
    x = filled(rows, torch.int8).view(1, -1)
    n = x.numel()
    places = np.array([[0, n // 2, n - 3, n - 2, n - 1]])
    got = torch.gather(x, 1, torch.tensor(places).to("cuda")).cpu().numpy()
    np.testing.assert_array_equal(got, pattern()[places % WIDTH])
    got = x.view(-1)[torch.tensor(places[0]).to("cuda")].cpu().numpy()
    np.testing.assert_array_equal(got, pattern()[places[0] % WIDTH])


def test_cat(rows: int) -> None:
    half = rows // 2
    x = torch.cat([filled(half, torch.int8), filled(rows - half, torch.int8)])
    assert x.shape == (rows, WIDTH)
    check_rows(x, pattern())
    beside = torch.cat([filled(rows, torch.int8)[:, :100], filled(rows, torch.int8)[:, 100:]], 1)
    check_rows(beside, pattern())


def test_dropout(rows: int) -> None:
    """Kept elements are scaled; numbers do not come again after 2^31."""
    n = rows * WIDTH
    x = torch.ones(n, device="cuda", dtype=torch.bfloat16)
    torch.manual_seed(0)
    kept = F.dropout(x, 0.25, training=True) != 0
    count = kept.sum().item()
    assert abs(count / n - 0.75) < 5 / np.sqrt(n)
    tail = min(n - 2**31, 1 << 14) if n > 2**31 else n // 2
    first, last = kept[:tail].cpu().numpy(), kept[n - tail :].cpu().numpy()
    assert abs(last.mean() - 0.75) < 5 / np.sqrt(tail)
    assert 0.5 < (first == last).mean() < 0.75  # 0.625 where draws do not depend on each other
    if n > 2**31:
        again = kept[n - 2**31 - tail : n - 2**31].cpu().numpy()
        assert 0.5 < (again == last).mean() < 0.75


def test_cross_entropy(rows: int) -> None:
    x = pattern() / 32.0
    logits = filled(rows, torch.bfloat16, x).requires_grad_(True)
    target = torch.full((rows,), 7, dtype=torch.int64, device="cuda")
    loss = F.cross_entropy(logits, target, reduction="none")
    probabilities = np.exp(x) / np.exp(x).sum()
    expected = -np.log(probabilities[7])
    check_rows(loss.detach().view(rows, 1), np.array([expected]), 1e-2)
    loss.backward(torch.ones_like(loss))
    check_rows(logits.grad, probabilities - (np.arange(WIDTH) == 7), 1e-2)
    mean = F.cross_entropy(logits.detach(), target).item()
    assert abs(mean - expected) < 1e-2 * expected


def test_topk_by_row(rows: int) -> None:
    values, indices = torch.topk(filled(rows, torch.int8), 3, dim=1)
    best = np.argsort(-pattern().astype(np.int64))[:3]
    check_rows(values, pattern()[best])
    check_rows(indices, best)


def test_adamw(rows: int) -> None:
    row, grad = (pattern() / 128.0).astype(np.float32), np.float32(pattern()) / 128 + np.float32(0.5)
    p = filled(rows, torch.bfloat16, row).requires_grad_(True)
    p.grad = filled(rows, torch.bfloat16, grad)
    torch.optim.AdamW([p], lr=0.125, weight_decay=0.0).step()
    check_rows(p.detach(), row - 0.125 * np.sign(grad), 1e-2)  # Adam's first step is lr by the sign
