"""The allocator's counters, limits and errors; page-locked memory."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as torch

pytestmark = pytest.mark.cuda
MIB = 1 << 20


def test_counters_follow_tensors() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 * MIB
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before >= 4 * MIB
    assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
    held = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before


def test_stats_and_summary() -> None:
    stats = torch.cuda.memory_stats()
    assert (
        list(stats) == sorted(stats) and stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    )
    text = torch.cuda.memory_summary()
    assert "allocated_bytes.all" in text and "reserved_bytes.all" in text
    free, total = torch.cuda.mem_get_info()
    assert 0 <= free <= total == torch.cuda.get_device_properties().total_memory


def test_limit_gives_an_error_and_recovers() -> None:
    total = torch.cuda.mem_get_info()[1]
    held = torch.ones(MIB, device="cuda")
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 8 * MIB) / total)
        with pytest.raises(torch.cuda.OutOfMemoryError, match="memory"):
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        assert (held + 1).sum().item() == 2 * MIB
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").numel() == 64 * MIB
    with pytest.raises(ValueError, match="0~1"):
        torch.cuda.set_per_process_memory_fraction(2.0)
    with pytest.raises(TypeError, match="float"):
        torch.cuda.set_per_process_memory_fraction(1)


def test_page_locked_memory() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and pinned.tolist() == x.tolist()
    assert pinned.pin_memory() is pinned
    assert torch.tensor([1.0, 2.0], pin_memory=True).is_pinned()
    assert not x.cuda().is_pinned()
    with pytest.raises(torch.DeviceError, match="only dense CPU tensors"):
        x.cuda().pin_memory()
    transposed = x.t().pin_memory()
    assert transposed.is_pinned() and transposed.tolist() == x.t().tolist()


def test_loader_pins_batches() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    for (batch,) in torch.utils.data.DataLoader(data, 3, pin_memory=True):
        assert batch.is_pinned()


@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_both_ways(non_blocking: bool) -> None:
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((37, 53)).astype(np.float32))
    there = x.to("cuda", non_blocking=non_blocking)
    back = there.to("cpu", non_blocking=non_blocking)
    torch.cuda.synchronize()
    assert torch.equal(back, x)
    turned = x.cuda().t().to("cpu", non_blocking=non_blocking)
    torch.cuda.synchronize()
    assert torch.equal(turned, x.t())
    into = torch.zeros(53, 37).t()
    into.copy_(there, non_blocking=non_blocking)
    torch.cuda.synchronize()
    assert torch.equal(into, x)
    wide = torch.zeros(37, 53, dtype=torch.float64)
    wide.copy_(there, non_blocking=non_blocking)
    torch.cuda.synchronize()
    assert torch.equal(wide, x.double())
    assert there.to("cuda") is there and there.cuda() is there
