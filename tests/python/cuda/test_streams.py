"""Devices, streams and events by torch.cuda's names."""

from __future__ import annotations

import pytest
import warptape as torch

pytestmark = pytest.mark.cuda


def test_devices() -> None:
    cuda = torch.cuda
    assert cuda.is_available() and cuda.device_count() >= 1
    cuda.init()
    assert cuda.is_initialized() and cuda.current_device() == 0
    found = cuda.get_device_properties(0)
    assert found.name == cuda.get_device_name() and found.total_memory > 0 and found.warp_size == 32
    assert (found.major, found.minor) == cuda.get_device_capability("cuda:0")
    text = repr(found)
    assert text.startswith(f"_CudaDeviceProperties(name='{found.name}', major={found.major}, minor=")
    assert "multi_processor_count=" in text and text.endswith("MB)")
    assert cuda.can_device_access_peer(0, 0) is False
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        cuda.get_device_name("cpu")
    cuda.synchronize()


def test_default_stream_is_current() -> None:
    current, default = torch.cuda.current_stream(), torch.cuda.default_stream()
    assert current == default and hash(current) == hash(default)
    assert default.cuda_stream == 0 and default.device == torch.device("cuda:0")
    assert repr(default) == "<torch.cuda.Stream device=cuda:0 cuda_stream=0x0>"
    assert current != torch.cuda.Stream()


def test_contexts_nest_and_restore() -> None:
    a, b = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    outer = torch.cuda.current_stream()
    with torch.cuda.stream(a):
        assert torch.cuda.current_stream() == a
        with b:
            assert torch.cuda.current_stream() == b
            with torch.cuda.stream(None):
                assert torch.cuda.current_stream() == b
        assert torch.cuda.current_stream() == a
    assert torch.cuda.current_stream() == outer
    torch.cuda.set_stream(b)
    try:
        assert torch.cuda.current_stream() == b
    finally:
        torch.cuda.set_stream(outer)
    external = torch.cuda.ExternalStream(a.cuda_stream)
    assert external == a
    with torch.cuda.device(0), torch.cuda.device_of(torch.ones(1, device="cuda")):
        assert torch.cuda.current_device() == 0


def test_streams_wait_for_each_other() -> None:
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.arange(1000.0).pin_memory()
    with torch.cuda.stream(a):
        y = x.to("cuda", non_blocking=True)
        for _ in range(20):
            y = y + 1
    b.wait_stream(a)
    with torch.cuda.stream(b):
        z = y * 2
        y.record_stream(b)
        host = z.to("cpu", non_blocking=True)
        done = b.record_event()
    assert host.is_pinned()
    done.synchronize()
    assert done.query() and host.tolist() == [2 * (i + 20.0) for i in range(1000)]
    b.synchronize()
    assert b.query() and a.query()


def test_events() -> None:
    plain = torch.cuda.Event()
    assert repr(plain) == "<torch.cuda.Event uninitialized>" and plain.device is None
    assert plain.query()
    plain.wait()
    plain.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="recorded before"):
        start.elapsed_time(end)
    start.record()
    torch.ones(1000, device="cuda") + 1
    end.record()
    end.synchronize()
    assert start.device == torch.device("cuda:0") and start.cuda_event
    assert start.elapsed_time(end) >= 0
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(plain)
    with pytest.raises(NotImplementedError, match="interprocess"):
        torch.cuda.Event(interprocess=True)


def test_second_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    with torch.cuda.device(1):
        x = torch.ones(3, device="cuda")
        assert x.device == torch.device("cuda:1") and x.get_device() == 1
    assert torch.ones(3, device="cuda").device.index == 0
    y = x.cuda(0)
    assert y.device.index == 0 and (y + 1).tolist() == [2.0] * 3
    with torch.cuda.stream(torch.cuda.Stream(1)):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    with pytest.raises(torch.DeviceError, match="same device"):
        x + y
    event = torch.cuda.Event()
    event.record()
    with pytest.raises(torch.DeviceError, match="does not match"):
        event.record(torch.cuda.current_stream(1))


def test_nvtx() -> None:
    """Depths are counted by the profiler; without one there are none to check."""
    assert isinstance(torch.cuda.nvtx.range_push("outer"), int)
    with torch.cuda.nvtx.range("step {}", 3):
        torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_pop()
