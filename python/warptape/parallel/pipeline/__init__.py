"""Pipeline parallelism: torch.distributed.pipelining's names, and schedules as pure lists of actions."""

from .actions import Action, Kind, ScheduleError, with_transfers
from .checks import check_schedule, plan
from .partition import measure_layers, partition, split_into_stages
from .picture import draw_timelines
from .runtime import (
    PipelineSchedule,
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBH1,
    ScheduleZBVZeroBubble,
    get_schedule_class,
)
from .schedules import (
    SCHEDULES,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    looped_bfs,
    one_f_one_b,
    with_weight_gradients,
    zb_h1,
    zb_v,
)
from .simulator import Durations, Timeline, simulate_schedule
from .stage import PipelineStage

__all__ = [name for name in dir() if not name.startswith("_")]
