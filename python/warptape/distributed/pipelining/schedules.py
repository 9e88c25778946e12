"""torch.distributed.pipelining.schedules: the classes that schedules derive from, and the schedules."""

from ..._missing import install_getattr as _install_getattr
from ...parallel.pipeline import (
    PipelineSchedule as _PipelineSchedule,
)
from ...parallel.pipeline import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    get_schedule_class,
)

__all__ = [
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "Schedule1F1B",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "_PipelineSchedule",
    "get_schedule_class",
]

_install_getattr(__name__)
