"""A message is on its way also while its sender waits in another group."""

from __future__ import annotations

from datetime import timedelta

import warptape as wt
import warptape.distributed as dist
from time_limits import seconds


def test_senders_that_wait_in_another_group() -> None:
    # Ranks 0 and 3 send more than a channel holds, and go on to a sum with 1 and 2, which first wait for it:
    # pipeline and tensor parallelism together do so.
    def rank() -> float:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        across, within = mesh["pp"].get_group(), mesh["tp"].get_group()
        me, message = dist.get_rank(), wt.full((1 << 20,), 1.0 + dist.get_rank())
        work = None
        if me in (0, 3):
            work = dist.isend(message, group=across, group_dst=1 - me // 2)
        else:
            dist.recv(message, group=across, group_src=1 - me // 2)
        total = wt.tensor([float(message[-1])])
        dist.all_reduce(total, group=within)
        if work is not None:
            work.wait()
        return total.item()

    limit = timedelta(seconds=seconds(20))
    assert dist.simulate(4, rank, timeout=limit) == [5.0, 5.0, 5.0, 5.0]
