"""A forked child has its parent's groups in memory, and must not take part in its place."""

from __future__ import annotations

from pathlib import Path

from launched import launch

SCRIPT = """
import os, sys, traceback
from datetime import timedelta
import warptape as wt
import warptape.distributed as dist

dist.init_process_group(timeout=timedelta(seconds=30))
rank, ranks = dist.get_rank(), dist.get_world_size()
group = dist.new_group(list(range(ranks)))
dist.all_reduce(wt.ones(2), async_op=True).wait()  # a thread of the group's, which the child lacks
pending = dist.all_reduce(wt.ones(2), async_op=True)
model = wt.nn.parallel.DistributedDataParallel(wt.nn.Linear(2, 2))
model(wt.ones(1, 2)).sum().backward()


def of_its_own():
    dist.destroy_process_group()
    dist.init_process_group("shm", store=dist.HashStore(), rank=0, world_size=1)
    x = wt.ones(2)
    dist.all_reduce(x, async_op=True).wait()
    assert x.tolist() == [1, 1]


refused = [
    lambda: dist.all_reduce(wt.ones(1)),
    lambda: dist.all_reduce(wt.ones(1), async_op=True),
    lambda: dist.barrier(group),
    lambda: dist.send(wt.ones(1), (rank + 1) % ranks),
    lambda: dist.isend(wt.ones(1), (rank + 1) % ranks),
    lambda: dist.all_gather_object([None] * ranks, 1),
    lambda: dist.monitored_barrier(),
    lambda: dist.new_group(list(range(ranks))),
    lambda: pending.wait(),
    lambda: model(wt.ones(1, 2)).sum().backward(),
]


def child():
    assert (dist.get_rank(), dist.get_world_size(), dist.is_initialized()) == (rank, ranks, True)
    assert dist.get_process_group_ranks(group) == list(range(ranks)) and dist.get_rank(group) == rank
    for call in refused:
        try:
            call()
        except dist.DistBackendError as error:
            assert f"was forked from rank {rank}, process {os.getppid()}" in str(error), error
        else:
            raise AssertionError("a call of a child went through")


for what in (child, dist.destroy_process_group, of_its_own):
    for end in (os._exit, sys.exit):  # without and with the destructors
        pid = os.fork()
        if pid == 0:
            try:
                what()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            end(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    x = wt.full((2,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [ranks * (ranks - 1) / 2] * 2
    dist.barrier(group)
pending.wait()
if rank == 0:  # alone: it must not even ask the other ranks, who would never answer
    pid = os.fork()
    if pid == 0:
        try:
            dist.new_group([0])
        except dist.DistBackendError as error:
            os._exit("was forked from rank 0" not in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
dist.barrier(group)


class Ranks(wt.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return wt.tensor([i, dist.get_rank(), dist.get_world_size()])


loader = wt.utils.data.DataLoader(Ranks(), batch_size=2, num_workers=2, multiprocessing_context="fork")
assert [b.tolist() for b in loader] == [[[i, rank, ranks], [i + 1, rank, ranks]] for i in (0, 2)]
dist.barrier()
print(f"done {rank}")  # one write: the ranks share a terminal
"""


def test_a_child_may_ask_but_not_take_part(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    code, out, err = launch("--nproc-per-node", 2, path)
    assert code == 0, err
    assert all(f"done {rank}" in out for rank in range(2)), out
