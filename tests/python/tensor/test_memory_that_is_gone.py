"""Tensors whose storage has been resized: an error where it has no memory, never a read of what was there."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch

READS: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + 1,
    "add_": lambda x: x.add_(1),
    "fill_": lambda x: x.fill_(1),
    "copy_": lambda x: torch.ones(4).copy_(x),
    "into": lambda x: x.copy_(torch.ones(4)),
    "matmul": lambda x: x @ torch.ones(4),
    "sum": torch.sum,
    "sort": torch.sort,
    "index": lambda x: x[torch.tensor([0])],
    "gather": lambda x: x.gather(0, torch.tensor([0])),
    "item": lambda x: x[0].item(),
    "numpy": lambda x: x.numpy(),
    "tolist": lambda x: x.tolist(),
    "repr": repr,
    "data_ptr": lambda x: x.data_ptr(),
    "clone": torch.clone,
    "cat": lambda x: torch.cat([x, x]),
    "view": lambda x: x.view(2, 2).sum(),
    "out": lambda x: torch.add(torch.ones(4), 1, out=x),
    "norm": lambda x: torch.nn.functional.layer_norm(x, (4,)),
    "dlpack": lambda x: torch.from_dlpack(x).sum(),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
}


@pytest.mark.parametrize("name", READS)
def test_a_storage_without_memory_is_not_read(name: str) -> None:
    x = torch.arange(4.0)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="resized to 0 bytes"):
        READS[name](x)


def test_memory_comes_back() -> None:
    x = torch.arange(4.0)
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(16)
    assert x.fill_(2).tolist() == [2.0] * 4


def test_saving_a_storage_without_memory() -> None:
    x = torch.arange(4.0)
    x.untyped_storage().resize_(0)
    try:
        torch.save(x, buffer := io.BytesIO())
    except RuntimeError:
        return
    with pytest.raises(RuntimeError):
        torch.load(io.BytesIO(buffer.getvalue()))


def test_the_end_of_a_smaller_storage_stays() -> None:
    x = torch.arange(4096.0)
    storage = x.untyped_storage()
    storage.resize_(8)
    others = [torch.full((4096,), -1.0) for _ in range(8)]
    assert storage.nbytes() == 8
    assert x.tolist() == list(range(4096))  # it is nobody else's memory
    storage.resize_(4 * 4096)
    assert x.sum().item() == 4095 * 2048 and len(others) == 8


def test_empty_tensors_need_no_memory() -> None:
    x = torch.empty(0)
    x.untyped_storage().resize_(0)
    assert (x + 1).tolist() == [] and x.data_ptr() == 0
