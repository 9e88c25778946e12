"""torch.distributed.pipelining.schedules: the schedules, and the classes that they derive from."""

from ..._missing import install_getattr as _install_getattr
from ...parallel.pipeline import PipelineSchedule as _PipelineSchedule
from ...parallel.pipeline import PipelineScheduleMulti, PipelineScheduleSingle
from . import *  # noqa: F403
from . import __all__ as _public

__all__ = [*_public, "PipelineScheduleMulti", "PipelineScheduleSingle", "_PipelineSchedule"]

_install_getattr(__name__)
