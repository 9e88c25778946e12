"""What reached beyond its memory: shapes that do not fit, empty operands, bytes that are no truth values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as torch

BYTES = np.array([[0, 1, 2, 0, 255, 0, 128], [3, 0, 0, 1, 16, 2, 0]], np.uint8).repeat(9, 1)
TRUTH = BYTES != 0
F = torch.nn.functional


@pytest.fixture(params=["from_numpy", "frombuffer", "view", "file"])
def odd(request: pytest.FixtureRequest, tmp_path: Any) -> torch.Tensor:
    """A bool tensor in whose memory every byte but 0 is true."""
    if request.param == "from_numpy":
        return torch.from_numpy(BYTES.copy().view(np.bool_))
    if request.param == "frombuffer":
        return torch.frombuffer(bytearray(BYTES.tobytes()), dtype=torch.bool).reshape(BYTES.shape)
    viewed = torch.from_numpy(BYTES.copy()).view(torch.bool)
    if request.param == "view":
        return viewed
    torch.save(viewed, tmp_path / "odd.pt")
    return torch.load(tmp_path / "odd.pt")


X = torch.arange(float(BYTES.size)).reshape(BYTES.shape)
READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda m: m.nonzero(),
    "count_nonzero": torch.count_nonzero,
    "masked_select": lambda m: X.masked_select(m),
    "mask in brackets": lambda m: X[m],
    "masked_scatter": lambda m: X.masked_scatter(m, -X),
    "masked_fill": lambda m: X.masked_fill(m, 7),
    "index_put": lambda m: X.index_put((m,), torch.tensor(5.0)),
    "where": lambda m: torch.where(m, X, -X),
    "where of complex": lambda m: torch.where(m, X + 0j, -X + 0j),
    "sum": lambda m: m.sum(),
    "sum of a dim": lambda m: m.sum(0),
    "sum of the last dim": lambda m: m.sum(-1),
    "mean": lambda m: m.mean(dtype=torch.float32),
    "prod": lambda m: m.prod(0),
    "cumsum": lambda m: m.cumsum(1),
    "any": lambda m: m.any(1),
    "all": lambda m: m[:, 1:3].all(1),
    "any of all": lambda m: m.any(),
    "amax": lambda m: m.amax(1),
    "argmax": lambda m: m.int().argmax(1),
    "max": lambda m: m.max(1),
    "not": lambda m: ~m,
    "and": lambda m: m & m.roll(1, 1),
    "or": lambda m: m | m.roll(1, 1),
    "xor": lambda m: m ^ m.roll(1, 1),
    "eq": lambda m: m == m.roll(1, 1),
    "equal": lambda m: torch.equal(m, m.int() == 1),
    "add": lambda m: m + m,
    "mul": lambda m: m * X,
    "sort": lambda m: m.sort(1, stable=True),
    "argsort": lambda m: m.argsort(1, stable=True),
    "topk": lambda m: m.topk(3, 1).values,
    "unique": lambda m: torch.unique(m, return_counts=True),
    "bincount": lambda m: torch.bincount(m.reshape(-1).int()),
    "scatter_add": lambda m: torch.zeros(2, 63, dtype=torch.bool).scatter_add(0, m.long(), m),
    "index_add": lambda m: m.index_add(0, torch.tensor([0, 1]), m),
    "cat": lambda m: torch.cat([m, m]).sum(),
    "tolist": lambda m: m.tolist(),
    "item": lambda m: [m[0, 18].item(), bool(m[0, 18]), int(m[0, 18])],
    "repr": repr,
    "attention": lambda m: F.scaled_dot_product_attention(
        X[:, :8], X[:, :8].repeat(32, 1)[:63], X[:, :8].repeat(32, 1)[:63], attn_mask=m
    ),
    **{
        f"to {d}": operator.methodcaller("to", getattr(torch, d))
        for d in ("uint8", "int64", "float16", "bfloat16", "float32", "float64", "complex64")
    },
}


def plain(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return np.asarray(found.float().numpy() if found.dtype == torch.bfloat16 else found.numpy())
    return [plain(f) for f in found] if isinstance(found, (list, tuple)) else found


@pytest.mark.parametrize("name", READERS)
def test_any_byte_but_zero_is_true(odd: torch.Tensor, name: str) -> None:
    wanted = READERS[name](torch.from_numpy(TRUTH.copy()))
    found = READERS[name](odd)
    for f, w in zip(*(x if isinstance(x, (list, tuple)) else [x] for x in (plain(found), plain(wanted)))):
        f, w = ((x != 0) if getattr(x, "dtype", None) == np.bool_ else x for x in (f, w))
        np.testing.assert_array_equal(f, w)
    assert (odd.view(torch.uint8).numpy() == BYTES).all()


def test_expanded_sizes_are_checked() -> None:
    p = torch.tensor([1.0, 1.0])
    with pytest.raises(torch.ShapeError, match=r"bernoulli_: The expanded size of the tensor \(10\)"):
        torch.zeros(10).bernoulli_(p)
    with pytest.raises(torch.ShapeError, match="expand"):
        p.expand(4)
    with pytest.raises(torch.ShapeError, match="number of sizes"):
        torch.zeros(2, 2).expand(2)
    with pytest.raises(RuntimeError):
        p.expand(-1, 2)
    assert torch.zeros(3, 2).bernoulli_(p).tolist() == [[1, 1]] * 3


def test_index_select_of_a_number() -> None:
    x = torch.tensor(3.0)
    with pytest.raises(IndexError, match="Index to scalar can have only 1 value, got 0"):
        x.index_select(0, torch.tensor([], dtype=torch.int64))
    assert x.index_select(0, torch.tensor([0])).item() == 3


def test_convolution_without_channels() -> None:
    x, bias = torch.ones(2, 0, 5), torch.tensor([1.0, 2.0], requires_grad=True)
    weight = torch.ones(2, 0, 3, requires_grad=True)
    y = F.conv1d(x, weight, bias)
    assert y.tolist() == [[[1.0] * 3, [2.0] * 3]] * 2
    y.sum().backward()
    assert bias.grad is not None and bias.grad.tolist() == [6, 6]
    full = torch.ones(2, 3, 5, requires_grad=True)
    none = torch.ones(3, 0, 3, requires_grad=True)
    assert F.conv_transpose1d(full, none).shape == (2, 0, 7)
    F.conv_transpose1d(full, none).sum().backward()
    assert full.grad is not None and (full.grad == 0).all()
    assert none.grad is not None and none.grad.shape == none.shape
    for conv, w in ((F.conv1d, torch.ones(0, 3, 3)), (F.conv_transpose1d, torch.ones(0, 3, 3))):
        with pytest.raises(torch.ShapeError, match="expected weight to be at least 1 at dimension 0"):
            conv(full if conv is F.conv1d else x, w)
