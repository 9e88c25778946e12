"""Older names of torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import warptape as torch
from warptape import nn
from warptape.distributed import checkpoint
from warptape.distributed.checkpoint.save import AsyncCheckpointerType


def test_save_and_load_state_dict(tmp_path: Path) -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    with pytest.warns(FutureWarning, match="`save_state_dict` is deprecated .* use `save` instead"):
        checkpoint.save_state_dict({"net": net}, checkpoint.FileSystemWriter(tmp_path / "at"))
    with pytest.warns(FutureWarning, match="`load_state_dict` is deprecated .* use `load` instead"):
        checkpoint.load_state_dict({"net": other}, checkpoint.FileSystemReader(tmp_path / "at"))
    assert torch.equal(net.weight, other.weight) and torch.equal(net.bias, other.bias)


def test_async_save_to_a_writer(tmp_path: Path) -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    before = net.weight.detach().clone()
    future = checkpoint.async_save(
        {"net": net},
        storage_writer=checkpoint.FileSystemWriter(tmp_path / "at"),
        async_checkpointer_type=AsyncCheckpointerType.THREAD,
    )
    with torch.no_grad():
        net.weight.zero_()  # what is written was copied
    future.result()
    checkpoint.load({"net": other}, checkpoint_id=tmp_path / "at")
    assert torch.equal(other.weight, before)
    with pytest.raises(NotImplementedError, match="a thread of this process writes"):
        checkpoint.async_save(
            {}, checkpoint_id=tmp_path, async_checkpointer_type=AsyncCheckpointerType.PROCESS
        )
    with pytest.raises(ValueError, match="expected checkpoint_id or storage_writer"):
        checkpoint.async_save({})


def test_modules_of_torch() -> None:
    from warptape._missing import module_name

    assert module_name("torch.distributed._shard.checkpoint") == checkpoint.__name__
    for name, function in (("saver", checkpoint.save), ("loader", checkpoint.load)):
        module = module_name(f"torch.distributed.checkpoint.state_dict_{name}")
        assert function.__module__ == module
