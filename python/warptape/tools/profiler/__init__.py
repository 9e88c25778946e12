"""torch.profiler: which ops, tape nodes, collectives and compiled regions take the time and the memory.

with profile(record_shapes=True) as prof:
    loss = model(x).sum()
    loss.backward()
print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))
prof.export_chrome_trace("trace.json")  # for https://ui.perfetto.dev
"""

from __future__ import annotations

from ...autograd.profiler import kineto_available, record_function
from ...autograd.profiler_util import DeviceType
from ._memory import MemoryBlock, MemoryTimeline
from ._roofline import Roofline, RooflineRow, roofline
from ._snapshot import plot_snapshot
from .profiler import (
    ExecutionTraceObserver,
    ProfilerAction,
    ProfilerActivity,
    profile,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)

__all__ = [
    "DeviceType",
    "ExecutionTraceObserver",
    "MemoryBlock",
    "MemoryTimeline",
    "ProfilerAction",
    "ProfilerActivity",
    "Roofline",
    "RooflineRow",
    "kineto_available",
    "plot_snapshot",
    "profile",
    "record_function",
    "roofline",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]
