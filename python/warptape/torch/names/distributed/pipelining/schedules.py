"""torch.distributed.pipelining.schedules: the schedules, and the classes that they derive from."""

from warptape.parallel.pipeline import PipelineSchedule as _PipelineSchedule
from warptape.parallel.pipeline import PipelineScheduleMulti, PipelineScheduleSingle
from warptape.parallel.pipeline.runtime import _PipelineScheduleRuntime

from . import *  # noqa: F403
from . import __all__ as _public

__all__ = [
    *_public,
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "_PipelineSchedule",
    "_PipelineScheduleRuntime",
]
