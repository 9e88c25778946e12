"""Pipeline parallelism: torch.distributed.pipelining's names, and schedules as pure lists of actions."""

from .actions import Action, Kind, ScheduleError, with_transfers
from .checks import check_schedule, plan
from .partition import measure_layers, partition, split_into_stages
from .picture import draw_timelines
from .runtime import (
    PipelineSchedule,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBH1,
    get_schedule_class,
)
from .schedules import SCHEDULES, gpipe, interleaved_1f1b, one_f_one_b, zb_h1
from .simulator import Durations, Timeline, simulate_schedule
from .stage import PipelineStage

__all__ = [name for name in dir() if not name.startswith("_")]
