"""Pipeline parallelism: torch.distributed.pipelining's names, and schedules as pure lists of actions."""

from .actions import Action, Kind, ScheduleError, with_transfers
from .checks import check_schedule, plan
from .schedules import SCHEDULES, gpipe, interleaved_1f1b, one_f_one_b, zb_h1
from .simulator import Durations, Timeline, simulate_schedule

__all__ = [name for name in dir() if not name.startswith("_")]
