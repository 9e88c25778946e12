"""warptape.multiprocessing: tensors that processes share, and how they get there."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import resource
import sys
import threading

import numpy as np
import pytest
import warptape as wt
from launched import started
from time_limits import seconds
from warptape import multiprocessing as mp

PROGRAM = """
import os, signal, sys, time
import warptape as wt
import warptape.multiprocessing as mp

class Net(wt.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = wt.nn.Linear(3, 3)
        self.b = wt.nn.Linear(3, 3)
        self.b.weight = self.a.weight

def work(net, x, tasks, results):
    y, z = tasks.get()
    x.add_(1)
    y.mul_(2)
    with wt.no_grad():
        net.a.bias.fill_(7)
    same = net.b.weight.data_ptr() == net.a.weight.data_ptr(), z.data_ptr() == y.data_ptr() + 4
    results.put((same, y, wt.arange(3) ** 2))

def square(x):
    return x * x

def rank(i, x):
    x[i] = i + 1

if __name__ == "__main__":
    context = mp.get_context(METHOD)
    net, x, y = Net(), wt.zeros(2).share_memory_(), wt.ones(4)
    net.share_memory()
    tasks, results = context.Queue(), context.SimpleQueue()
    process = context.Process(target=work, args=(net, x, tasks, results))
    process.start()
    tasks.put((y, y[1:3]))
    same, back, made = results.get()
    process.join()
    back[0] = 9
    print(process.exitcode, same, x.tolist(), y.tolist(), net.a.bias.tolist(), made.tolist())
    with context.Pool(2) as pool:
        print([t.tolist() for t in pool.map(square, [wt.full((2,), float(i)) for i in range(3)])])
        print([t.item() for t in pool.imap(square, wt.arange(3))], pool.apply(square, (wt.tensor(5),)).item())
    shared = wt.zeros(3)
    mp.start_processes(rank, (shared.share_memory_(),), nprocs=3, start_method=METHOD)
    print(shared.tolist())
"""
PRINTED = """\
0 (True, True) [1.0, 1.0] [9.0, 2.0, 2.0, 2.0] [7.0, 7.0, 7.0] [0, 1, 4]
[[0.0, 0.0], [1.0, 1.0], [4.0, 4.0]]
[0, 1, 4] 25
[1.0, 2.0, 3.0]
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_share_tensors_both_ways(tmp_path, method):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("METHOD", repr(method)))
    with started([sys.executable, str(path)]) as job:
        code, out, err = job.finish(120)
        assert (code, out) == (0, PRINTED), err
        assert job.left() == []


def test_share_memory_moves_the_storage_and_keeps_what_is_seen_of_it():
    x = wt.arange(6.0)
    view, array = x[2:], x.numpy()
    assert not x.is_shared()
    assert x.share_memory_() is x
    place = x.data_ptr()
    assert x.is_shared() and view.is_shared() and x.share_memory_().data_ptr() == place
    view[0] = -1
    assert x.tolist() == [0, 1, -1, 3, 4, 5]
    assert array.tolist() == [0, 1, 2, 3, 4, 5]  # its memory is still there
    assert x.numpy().tolist() == x.tolist()
    assert wt.zeros(0).share_memory_().is_shared() and not x.clone().is_shared()
    p = wt.nn.Parameter(wt.ones(2))
    (p.share_memory_() * 3).sum().backward()
    assert p.is_shared() and p.grad.tolist() == [3, 3]


def test_shared_tensors_in_a_forked_child():
    x, plain = wt.zeros(2).share_memory_(), wt.zeros(2)
    pid = os.fork()
    if pid == 0:
        x.add_(5)
        plain.add_(5)
        os._exit(0)
    os.waitpid(pid, 0)
    assert (x.tolist(), plain.tolist()) == ([5, 5], [0, 0])


def test_a_message_outlives_its_sender_and_needs_no_name():
    first, second = mp.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        second.send({"x": wt.arange(3), "text": "x" * 200_000})
        os._exit(0)
    os.waitpid(pid, 0)
    got = first.recv()
    assert got["x"].tolist() == [0, 1, 2] and len(got["text"]) == 200_000
    second.close()
    with pytest.raises(EOFError):
        first.recv()


def test_a_storage_that_comes_back_is_the_same():
    first, second = mp.Pipe()
    x = wt.arange(8)
    first.send((x, x[4:], wt.zeros(0, 2), wt.nn.Parameter(wt.ones(1)), x.to(wt.bool)))
    y, part, empty, parameter, flags = second.recv()
    assert y.data_ptr() == x.data_ptr() and part.data_ptr() == y[4:].data_ptr()
    assert empty.shape == (0, 2) and isinstance(parameter, wt.nn.Parameter) and flags.dtype is wt.bool
    del x, first
    assert y.tolist() == list(range(8))


def test_more_descriptors_than_one_packet_takes():
    first, second = mp.Pipe()
    count = len(os.listdir("/proc/self/fd"))
    first.send([wt.tensor([i]) for i in range(700)])
    assert [t.item() for t in second.recv()] == list(range(700))
    assert len(os.listdir("/proc/self/fd")) <= count
    first.send([wt.tensor([i]) for i in range(3)])
    first.send_bytes(b"plain")
    assert len(second.recv_bytes()) > 5  # not unpickled: its descriptors are closed with the next message
    assert second.recv_bytes() == b"plain" and len(os.listdir("/proc/self/fd")) <= count


def test_the_limit_of_open_files():
    """The soft limit is raised, the hard one is an error that names it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for limits, count in (((64, hard), 300), ((64, 64), 0)):
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            kept = []
            try:
                kept += [wt.ones(1).share_memory_() for _ in range(300)]
            except wt.OutOfMemoryError as error:
                os._exit(0 if count == 0 and "ulimit -n" in str(error) else 1)
            os._exit(0 if len(kept) == count else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_queues():
    q = mp.Queue(maxsize=1)
    q.put(wt.ones(2))
    with pytest.raises(queue.Full):
        q.put(wt.ones(2), timeout=0.01)
    assert q.get().tolist() == [1, 1]
    with pytest.raises(queue.Empty):
        q.get(timeout=0.01)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        q.put(lambda: 0)
    x = wt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        q.put(x * 2)
    q.put(x)
    assert q.get().requires_grad
    j = mp.JoinableQueue()
    done = threading.Thread(target=j.join)
    j.put((wt.arange(2), "text"))
    done.start()
    assert j.get()[0].tolist() == [0, 1]
    j.task_done()
    done.join(seconds(10))
    assert not done.is_alive()
    for each in (q, j):
        each.close()
        each.join_thread()


def test_the_standard_librarys_queues_copy():
    q = multiprocessing.SimpleQueue()
    x = wt.ones(2)
    q.put(x)
    y = q.get()
    assert y.tolist() == [1, 1] and y.data_ptr() != x.data_ptr() and not x.is_shared()


def test_names_and_strategies():
    assert set(multiprocessing.__all__) < set(mp.__all__)
    assert mp.get_all_sharing_strategies() == {"file_descriptor", "file_system"}
    assert mp.get_sharing_strategy() == "file_descriptor"
    mp.set_sharing_strategy("file_system")
    assert mp.get_sharing_strategy() == "file_system"
    mp.set_sharing_strategy("file_descriptor")
    with pytest.raises(ValueError, match="'names'"):
        mp.set_sharing_strategy("names")
    with pytest.raises(ValueError, match="thread"):
        mp.get_context("thread")
    context = mp.get_context("fork")
    assert isinstance(context, multiprocessing.context.BaseContext) and context.get_start_method() == "fork"


def test_what_is_refused():
    x = wt.arange(4)
    with pytest.raises(wt.ShapeError, match="reach beyond the 32 bytes"):
        wt._C._on_storage(x, wt.int64, (3,), (1,), 2)
    with pytest.raises(wt.ShapeError, match="as many strides"):
        wt._C._on_storage(x, wt.int64, (3,), (1, 1), 0)
    assert wt._C._on_storage(x, wt.int32, (2, 2), (4, 2), 0).tolist() == [[0, 1], [2, 3]]
    assert np.array_equal(wt._C._storage_bytes(x[2:]).numpy(), np.arange(4).view(np.uint8))
    with pytest.raises(wt.DeviceError, match="share_memory_"):
        wt.empty(2, device="meta").share_memory_()
