"""Profiles of what a device does, by CUPTI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import warptape as torch
from warptape.autograd import profiler as autograd_profiler
from warptape.profiler import ProfilerActivity, profile, record_function

pytestmark = pytest.mark.cuda


def test_kernels_belong_to_the_ops_that_launched_them(tmp_path: Path) -> None:
    a = torch.randn(64, 64, device="cuda")
    torch.cuda.synchronize()
    with profile() as p:
        with record_function("outer"):
            b = a.exp()
        b.cpu()
    assert ProfilerActivity.CUDA in torch.profiler.supported_activities()
    outer, exp = (next(e for e in p.events() if e.name == n) for n in ("outer", "aten::exp"))
    (kernel,) = exp.kernels
    assert kernel.device == 0 and kernel.duration > 0 and exp.cpu_parent is outer and not outer.kernels
    assert outer.device_time_total == exp.self_device_time_total == kernel.duration
    assert p.profiler is not None
    done = p.profiler.device_activities
    assert [d.category for d in done] == ["kernel", "gpu_memcpy"] and done[1].name == "Memcpy DtoH"
    assert done[1].bytes == 64 * 64 * 4
    assert done[0].time_range.start >= exp.time_range.start  # one clock for host and device
    table = p.key_averages().table(sort_by="cuda_time_total")
    assert "Self CUDA" in table and "Self CUDA time total" in table

    p.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (launched,) = [e for e in events if e.get("cat") == "kernel"]
    starts = {e["id"]: e for e in events if e.get("cat") == "ac2g" and e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e.get("cat") == "ac2g" and e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == 2
    assert launched["ts"] in [e["ts"] for e in ends.values()]


def test_backward_kernels_and_memory() -> None:
    w = torch.randn(32, 32, device="cuda", requires_grad=True)
    with profile(profile_memory=True) as p:
        (w * w).sum().backward()
    node = next(e for e in p.events() if e.name == "MulBackward0")
    assert node.device_time_total > 0 and node.forward is not None
    product = next(e for e in p.events() if e.name == "aten::mul")
    assert product.device_memory_usage >= 32 * 32 * 4 and product.cpu_memory_usage == 0
    assert "CUDA Mem" in p.key_averages().table()


def test_only_the_cpu() -> None:
    x = torch.ones(4, device="cuda")
    with profile(activities=[ProfilerActivity.CPU]) as p:
        x.exp()
    assert p.profiler is not None and not p.profiler.device_activities
    assert "CUDA" not in p.key_averages().table()
    with profile() as p:  # switched on again
        x.exp()
    assert p.profiler is not None and len(p.profiler.device_activities) == 1


def test_emit_nvtx() -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    with autograd_profiler.emit_nvtx():
        x.exp().sum().backward()
    assert x.grad is not None
