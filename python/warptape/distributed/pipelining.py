"""torch.distributed.pipelining: stages and schedules of `warptape.parallel.pipeline`."""

from .._missing import lookup as _lookup
from ..parallel.pipeline import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    get_schedule_class,
)

__all__ = ["PipelineStage", "Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B", "get_schedule_class"]

__getattr__ = _lookup(__name__)
