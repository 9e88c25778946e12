"""Numbers that the dtype of a tensor cannot hold: refused, wrapped or compared as by PyTorch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch

REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "clamp min": lambda x, v: x.clamp(min=v),
    "clamp max": lambda x, v: x.clamp(max=v),
    "clamp both": lambda x, v: x.clamp(0, v),
    "clamp_": lambda x, v: x.clamp_(min=v),
    "clamp_min": lambda x, v: torch.clamp_min(x, v),
    "clip": lambda x, v: torch.clip(x, max=v),
    "pow": lambda x, v: x.pow(abs(v)),
    "add alpha": lambda x, v: x.add(x, alpha=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "addmm": lambda x, v: torch.addmm(x, x.view(2, 1), x.view(1, 2), alpha=v),
    "index_add": lambda x, v: x.index_add(0, torch.tensor([0]), x[:1], alpha=v),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([0]), v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "scatter": lambda x, v: x.scatter(0, torch.tensor([0]), v),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "full_like": torch.full_like,
    "fill_": lambda x, v: x.fill_(v),
    "foreach": lambda x, v: torch._foreach_clamp_min([x], v),
    "item": lambda x, v: x.__setitem__(0, v),
    "mask": lambda x, v: x.__setitem__(x > 0, torch.tensor(v)),
    "tensor": lambda x, v: torch.tensor([v], dtype=x.dtype),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (torch.uint8, 300),
        (torch.uint8, -300),
        (torch.int8, 128),
        (torch.int8, -129),
        (torch.int16, 1 << 15),
        (torch.int32, -(1 << 31) - 1),
        (torch.int32, 1 << 40),
    ],
    ids=str,
)
def test_refused(name: str, dtype: torch.dtype, number: int) -> None:
    x = torch.tensor([1, 2]).to(dtype)
    with pytest.raises(RuntimeError, match="without overflow"):
        REFUSED[name](x, number)
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.int8, 128), (torch.uint8, 256), (torch.int16, 1 << 15), (torch.float16, 2049)]
)
def test_randperm(dtype: torch.dtype, most: int) -> None:
    assert torch.randperm(most, dtype=dtype).sort()[0].tolist() == list(range(most))
    with pytest.raises(RuntimeError):
        torch.randperm(most + 1, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_comparisons_see_the_number(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 44, 100]).to(dtype)
    for number in (300, 1 << 8, 1 << 33, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        if number > torch.iinfo(dtype).max:
            assert not bool((x == number).any() | (x > number).any() | (x >= number).any())
            assert bool((x != number).all() & (x < number).all() & (x <= number).all())
    assert bool((x > -1).all() & (x != -1).all())


def test_arithmetic_wraps() -> None:
    x = torch.tensor([1, 10, 100], dtype=torch.uint8)
    assert (x + 300).tolist() == [45, 54, 144]
    assert torch.maximum(x, torch.tensor(300)).tolist() == [44, 44, 100]  # 300 is 44 before they are compared
    assert x.clamp(min=torch.tensor(300)).tolist() == [44, 44, 100]
    assert (x // 257).tolist() == [1, 10, 100]
    assert (x + ((1 << 63) + 5)).tolist() == [6, 15, 105]
    assert (x + ((1 << 63) + 5)).dtype == torch.uint8


def test_numbers_of_64_bits() -> None:
    largest = (1 << 64) - 1
    assert torch.full((2,), largest, dtype=torch.uint64).tolist() == [largest] * 2
    assert torch.tensor([largest], dtype=torch.uint64).item() == largest
    assert int(torch.tensor([largest], dtype=torch.uint64)) == largest
    assert torch.full((1,), 1 << 63, dtype=torch.float64).item() == 2.0**63
    assert (torch.ones(1) * (1 << 63)).item() == 2.0**63
    for number in (1 << 64, -(1 << 63) - 1, 1 << 70):
        for call in (
            lambda v: torch.ones(1) + v,
            lambda v: torch.full((1,), v),
            lambda v: torch.ones(1) == v,
        ):
            with pytest.raises(OverflowError):
                call(number)
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.full((1,), 1 << 63, dtype=torch.int64)


def test_a_factor_of_bools_is_a_bool() -> None:
    x = torch.tensor([True, False])
    assert torch.add(x, x, alpha=-1).tolist() == [True, False]


@pytest.mark.parametrize(("dtype", "number"), [("int64", 2.5), ("bool", 3), ("int32", 1.0), ("uint8", -1)])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_masks_take_a_number_of_another_dtype(dtype: str, number: float, shape: tuple[int, ...]) -> None:
    x = torch.zeros(4, dtype=getattr(torch, dtype))
    mask = torch.tensor([True, False, True, False])
    x[mask] = torch.tensor(number).reshape(shape)
    want = torch.zeros(4, dtype=x.dtype).masked_fill(mask, number)
    assert x.tolist() == want.tolist() and bool(x.any())


def test_masks_without_dims() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    for flag in (True, False):
        mask = torch.tensor(flag)
        want = [[9.0] * 3] * 2 if flag else x.tolist()
        assert x.index_put((mask,), torch.tensor(9.0)).tolist() == want
        assert x.index_put((mask,), torch.full((1, 2, 3), 9.0)).tolist() == want
        assert x.clone().index_put_((mask,), torch.tensor(9.0)).tolist() == want
    both = x.index_put((torch.tensor(True), torch.tensor([1])), torch.tensor(9.0))
    assert both.tolist() == [[0.0, 1.0, 2.0], [9.0] * 3]
    summed = x.index_put((torch.tensor(True),), torch.tensor(1.0), accumulate=True)
    assert summed.tolist() == (x + 1).tolist()
    leaf = torch.zeros(2, 3, requires_grad=True)
    leaf.index_put((torch.tensor(True),), torch.tensor(2.0)).sum().backward()
    assert leaf.grad.tolist() == [[0.0] * 3] * 2
