"""torch._C._distributed_c10d: process groups, stores and options, which torch.distributed has as well."""

from __future__ import annotations

from typing import Any

import warptape.distributed as _distributed
from warptape._missing import unusable

_SAME = (
    "Backend",
    "FileStore",
    "HashStore",
    "PrefixStore",
    "ProcessGroup",
    "ReduceOp",
    "Store",
    "TCPStore",
    "Work",
)
globals().update({name: getattr(_distributed, name) for name in _SAME})


class _Options:
    """Options of a collective, as attributes: PyTorch's process groups take them from C++."""

    def __init__(self) -> None:
        self.timeout: Any = None


def _options(name: str, **fields: Any) -> type:
    return type(name, (_Options,), {"__module__": __name__, "__doc__": "Options of a collective.", **fields})


AllgatherOptions = _options("AllgatherOptions", asyncOp=True)
AllreduceOptions = _options("AllreduceOptions", reduceOp=_distributed.ReduceOp.SUM, asyncOp=True)
AllreduceCoalescedOptions = type("AllreduceCoalescedOptions", (AllreduceOptions,), {"__module__": __name__})
AllToAllOptions = _options("AllToAllOptions", asyncOp=True)
BarrierOptions = _options("BarrierOptions", device_ids=(), asyncOp=True)
BroadcastOptions = _options("BroadcastOptions", rootRank=0, rootTensor=0, asyncOp=True)
GatherOptions = _options("GatherOptions", rootRank=0, asyncOp=True)
ReduceOptions = _options("ReduceOptions", reduceOp=_distributed.ReduceOp.SUM, rootRank=0, asyncOp=True)
ReduceScatterOptions = _options("ReduceScatterOptions", reduceOp=_distributed.ReduceOp.SUM, asyncOp=True)
ScatterOptions = _options("ScatterOptions", rootRank=0, asyncOp=True)

_GROUPS = "process groups are made by init_process_group and new_group"
FakeProcessGroup = unusable("torch._C._distributed_c10d.FakeProcessGroup", _GROUPS)
ProcessGroupGloo = unusable("torch._C._distributed_c10d.ProcessGroupGloo", _GROUPS)
ProcessGroupNCCL = unusable("torch._C._distributed_c10d.ProcessGroupNCCL", _GROUPS)
GradBucket = unusable("torch._C._distributed_c10d.GradBucket", "buckets come from the hooks of DDP")
Reducer = unusable("torch._C._distributed_c10d.Reducer", "DistributedDataParallel reduces by itself")
