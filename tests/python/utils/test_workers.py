"""DataLoader with worker processes: what it gives, and errors. Their ends are in test_worker_ends.py."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import os
import pickle
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import warptape as wt
from launched import started
from time_limits import seconds
from warptape.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

SCRIPT = str(Path(__file__).with_name("loading.py"))
# Of what loading.py printed with PyTorch 2.13.
RECORDED = {
    "fork": "7926ffd9a22c86847adb4be9d85f5447529c583d5ebbccc0f817126993505496",
    "spawn": "5eb697eb9d709c03f21c563365f4884362aa7b52f34d35409ff4072dad60434e",
    "forkserver": "5eb697eb9d709c03f21c563365f4884362aa7b52f34d35409ff4072dad60434e",
}


def loaded(package: str, method: str) -> str:
    with started([sys.executable, SCRIPT, package, method]) as job:
        code, out, err = job.finish(120)
        assert code == 0, err
        assert job.left() == []
    return out


@pytest.mark.parametrize("method", RECORDED)
def test_samples_order_and_random_numbers_are_pytorchs(method):
    assert hashlib.sha256(loaded("warptape", method).encode()).hexdigest() == RECORDED[method]


@pytest.mark.parity
def test_samples_order_and_random_numbers_beside_pytorch():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    assert loaded("warptape", "fork").splitlines() == loaded("torch", "fork").splitlines()


class By(Dataset):
    """`make(i)` for i in range(n)."""

    def __init__(self, make, n=8):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i)


class Tagged(wt.Tensor):
    pass


def one(batch):
    return batch[0]


# Memory -----------------------------------------------------------------------------------------------------


def test_batches_that_are_kept_stay_as_they_were():
    loader = DataLoader(By(lambda i: (wt.full((40_000,), float(i)), i), 60), 2, num_workers=2)
    kept = list(loader)
    assert all(b.is_shared() for batch in kept for b in batch)
    assert all(
        (x[:, 0].tolist(), x[:, -1].tolist()) == ([2.0 * i, 2.0 * i + 1],) * 2
        for i, (x, _) in enumerate(kept)
    )
    views = [x[1, 5:6] for x, _ in kept[:30]]
    labels = [y.numpy() for _, y in kept]
    del kept
    for x, _ in loader:  # into memory of other workers
        x.fill_(-1)
    assert [v.item() for v in views] == [2.0 * i + 1 for i in range(30)]
    assert [y.tolist() for y in labels] == [[2 * i, 2 * i + 1] for i in range(30)]


def test_memory_of_batches_that_are_gone_is_written_again():
    loader = DataLoader(By(lambda i: wt.full((50_000,), float(i)), 64), 4, num_workers=1)
    seen = {}
    for i, x in enumerate(loader):
        assert x[:, 7].tolist() == [4.0 * i + k for k in range(4)]
        seen.setdefault(x.data_ptr(), []).append(i)
        del x
    assert len(seen) <= 6, seen


def test_a_batch_that_a_forked_child_may_read_is_not_written_again():
    loader = DataLoader(By(lambda i: wt.full((50_000,), float(i)), 32), 1, num_workers=1)
    batches = iter(loader)
    x = next(batches)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0 if (x == 0).all().item() else 1)
    del x
    assert [b[0, 0].item() for b in batches] == [float(i) for i in range(1, 32)]
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(read), os.close(write)


def test_a_collate_fn_may_keep_what_it_made():
    made = []

    def collate(samples):
        if not made:
            made.append(wt.utils.data.default_collate(samples))
        return made[0], samples[0]

    got = [(x.clone(), i) for x, i in DataLoader(By(lambda i: i, 40), 2, num_workers=1, collate_fn=collate)]
    assert all(x.tolist() == [0, 1] for x, _ in got) and [i for _, i in got] == list(range(0, 40, 2))


def test_tensors_of_one_batch_alias_as_in_the_worker():
    base = wt.arange(10.0)

    def overlapping(i):
        return base[2:6], base[4:].view(2, 3), base[:0], base

    a, b, empty, whole = next(iter(DataLoader(By(overlapping), 1, num_workers=1, collate_fn=one)))
    assert (a.tolist(), b.tolist(), empty.shape, whole.tolist()) == (
        [2.0, 3.0, 4.0, 5.0],
        [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]],
        (0,),
        list(range(10)),
    )
    b[0, 0] = -1
    assert a[2].item() == -1 and whole[4].item() == -1


def test_a_view_does_not_bring_its_storage_along():
    data = wt.arange(4_000_000)
    x, y, z = next(
        iter(
            DataLoader(
                By(lambda i: (data[50:60], data[55:70:3], data[9000:9001])), 1, num_workers=1, collate_fn=one
            )
        )
    )
    assert (x.tolist(), y.tolist(), z.tolist()) == (list(range(50, 60)), [55, 58, 61, 64, 67], [9000])
    x[5] = 0
    assert y[0].item() == 0
    assert wt._C._storage_bytes(x).numel() < 1000


def test_tensors_of_share_memory_are_one_in_all_processes():
    counts = wt.zeros(3).share_memory_()

    def count(i):
        counts[get_worker_info().id] += 1
        return counts

    loader = DataLoader(By(count, 12), None, num_workers=2)
    got = list(loader)
    assert counts.tolist() == [6, 6, 0]
    assert all(g.tolist() == [6, 6, 0] for g in got)
    got[0][2] = 5
    assert counts[2].item() == 5


def test_samples_of_every_kind():
    def sample(i):
        t = wt.ones(2).as_subclass(Tagged)
        t.note = "kept"
        return {
            "t": t,
            "p": wt.nn.Parameter(wt.ones(1)),
            "n": np.arange(3),
            "empty": wt.zeros(0, 3, dtype=wt.int8),
            "bf": wt.ones(2, dtype=wt.bfloat16),
            "scalar": wt.tensor(True),
            "steps": wt.arange(6).view(2, 3).t(),
            "text": "x" * 100_000,
            "many": [wt.tensor([k]) for k in range(600)],
        }

    got = list(DataLoader(By(sample, 3), None, num_workers=1, collate_fn=lambda x: x))[2]
    assert (type(got["t"]).__name__, got["t"].note, got["t"].tolist()) == ("Tagged", "kept", [1, 1])
    assert isinstance(got["p"], wt.nn.Parameter) and got["p"].requires_grad
    assert (got["n"].tolist(), got["empty"].shape, got["bf"].dtype) == ([0, 1, 2], (0, 3), wt.bfloat16)
    assert got["scalar"].item() is True and got["steps"].stride() == (1, 3) and len(got["text"]) == 100_000
    assert [m.item() for m in got["many"]] == list(range(600))


# Options ----------------------------------------------------------------------------------------------------


def test_large_tasks_and_batches_do_not_wait_for_each_other():
    """Both directions are full: neither side may wait for the other to read."""
    order = [list(range(i, i + 30_000)) for i in range(40)]
    loader = DataLoader(
        By(lambda i: i),
        batch_sampler=order,
        num_workers=1,
        prefetch_factor=30,
        collate_fn=lambda b: [str(b)] * 2,
    )
    assert [b[0][:7] for b in loader] == [str(o)[:7] for o in order]
    small = DataLoader(By(lambda i: i, 3000), 1, num_workers=1, prefetch_factor=2000)
    assert [b.item() for b in small] == list(range(3000))


def test_workers_have_one_thread_and_may_use_the_runtime_that_was_busy_at_the_fork():
    a = wt.rand(300, 300)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            (a @ a).sum()
            wt.empty(3_000_000).normal_()  # holds the generator's lock

    busy = threading.Thread(target=work)
    busy.start()
    try:
        for _ in range(5):
            loader = DataLoader(
                By(lambda i: ((a @ a).sum() - (a @ a).sum(), wt.get_num_threads())), 4, num_workers=2
            )
            assert [(x.tolist(), n.tolist()) for x, n in loader] == [([0.0] * 4, [1] * 4)] * 2
    finally:
        stop.set()
        busy.join()


def test_order_of_completion():
    def slow(i):
        time.sleep(seconds(0.5) if i == 0 else 0)
        return i

    late = [b.item() for b in DataLoader(By(slow, 6), 1, num_workers=2, in_order=False)]
    assert sorted(late) == list(range(6)) and late[0] != 0
    assert [b.item() for b in DataLoader(By(slow, 6), 1, num_workers=2)] == list(range(6))


def test_persistent_workers_stay_and_a_pass_may_be_left_early():
    loader = DataLoader(By(lambda i: (i, os.getpid())), 2, num_workers=2, persistent_workers=True)
    first = next(iter(loader))
    passes = [list(loader) for _ in range(3)]
    assert [[x.tolist() for x, _ in p] for p in passes] == [[[0, 1], [2, 3], [4, 5], [6, 7]]] * 3
    assert len({pid.tolist()[0] for p in [[first], *passes] for _, pid in p}) == 2


def test_timeout():
    loader = DataLoader(By(lambda i: time.sleep(seconds(1)) or i), 1, num_workers=1, timeout=0.1)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.1 seconds"):
        next(iter(loader))


def test_warnings():
    with pytest.warns(
        UserWarning, match=r"will create 1000 worker processes in total\. Our suggested max number"
    ):
        DataLoader(By(int), num_workers=1000)
    loader = DataLoader(By(int), 8, num_workers=1, pin_memory=True, pin_memory_device="cuda")
    if not wt.cuda.is_available():
        with pytest.warns(UserWarning, match="pin") as caught:
            assert len(list(loader)) == 1
        texts = [str(w.message) for w in caught]
        assert (
            texts[0].startswith("pin_memory_device is deprecated") and "no accelerator is found" in texts[1]
        )
        assert all(w.filename == __file__ for w in caught)


def test_stream_that_workers_repeat_is_warned_of():
    class Twice(IterableDataset):
        def __iter__(self):
            return iter(range(3))

        def __len__(self):
            return 3

    loader = DataLoader(Twice(), None, num_workers=2)
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="but 6 samples have been fetched"):
        assert sorted(loader) == [0, 0, 1, 1, 2, 2]


def test_fork_does_not_warn_of_the_runtimes_threads(monkeypatch):
    """Python 3.12 and newer count them."""
    fork = os.fork

    def warning_fork():
        warnings.warn(
            "This process is multi-threaded, use of fork() may lead to deadlocks",
            DeprecationWarning,
            stacklevel=2,
        )
        return fork()

    if threading.active_count() > 1:
        pytest.skip("another thread of this process would be warned of rightly")
    monkeypatch.setattr(os, "fork", warning_fork)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(DataLoader(By(lambda i: i), 8, num_workers=1))) == 1


def test_iterators_are_not_copied_into_pickles():
    batches = iter(DataLoader(By(lambda i: i), num_workers=1))
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(batches)


def test_worker_info():
    def info(i):
        w = get_worker_info()
        return w.id, w.num_workers, w.seed, w.dataset.n

    wt.manual_seed(5)
    got = list(DataLoader(By(info), None, num_workers=2))
    base = got[0][2]
    assert got == [[i % 2, 2, base + i % 2, 8] for i in range(8)]
    assert get_worker_info() is None


# Errors -----------------------------------------------------------------------------------------------------


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)


def raises(error):
    def make(i):
        if i == 3:
            raise error
        return i

    return make


def test_exceptions_come_with_their_traceback_and_the_pass_goes_on():
    loader = DataLoader(By(raises(ValueError("told you"))), 1, num_workers=2)
    batches = iter(loader)
    assert [next(batches).item() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError) as caught:
        next(batches)
    text = str(caught.value)
    assert text.startswith(
        "Caught ValueError in DataLoader worker process 1.\nOriginal Traceback (most recent call last)"
    )
    assert "in make" in text and text.endswith("ValueError: told you\n")
    assert [b.item() for b in batches] == [4, 5, 6, 7]


def test_exceptions_of_other_kinds():
    class Local(Exception):
        pass

    for error, kind, text in (
        (KeyError("absent"), KeyError, "Caught KeyError"),
        (TwoArguments(1, 2), RuntimeError, "Caught TwoArguments in DataLoader worker process 0"),
        (Local("here"), RuntimeError, "Caught Local in DataLoader worker process 0"),
        (StopIteration(), StopIteration, "Caught StopIteration"),
    ):
        batches = iter(DataLoader(By(raises(error)), 4, num_workers=1))
        with pytest.raises(kind) as caught:
            next(batches)
        assert text in str(caught.value) and "\\n" not in str(caught.value)


def test_failures_around_the_dataset():
    def broken(worker):
        raise OSError(f"no disk for {worker}")

    with pytest.raises(OSError, match=r"(?s)Caught OSError in DataLoader worker process 0.*no disk for 0"):
        list(DataLoader(By(int), num_workers=1, worker_init_fn=broken))
    with pytest.raises(Exception, match=r"(?s)Caught \w+ in DataLoader worker process 0.*pickle"):
        list(DataLoader(By(lambda i: lambda: i), None, num_workers=1, collate_fn=lambda x: x))
    grown = wt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        list(DataLoader(By(lambda i: grown * 2), None, num_workers=1))
    with pytest.raises(RuntimeError, match="equal size"):
        list(DataLoader(By(lambda i: [0] * (i + 1)), 2, num_workers=1))


def test_spawned_workers_need_what_can_be_pickled():
    loader = DataLoader(By(lambda i: i), num_workers=1, multiprocessing_context="spawn")
    with (
        pytest.warns(UserWarning, match="Got pickle error when attempting to start a worker"),
        pytest.raises((AttributeError, pickle.PicklingError)),
    ):
        iter(loader)


def test_no_descriptor_is_kept():
    loader = DataLoader(By(lambda i: wt.full((30_000,), float(i)), 40), 1, num_workers=2)
    kept = list(loader)
    del kept[5:]
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    more = [list(loader) for _ in range(3)]
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before, more[0][0].shape


def test_default_collate_of_tensor_datasets():
    x, y = wt.rand(20, 1, 8, 8), wt.arange(20)
    got = list(DataLoader(TensorDataset(x, y), 5, num_workers=2))
    assert wt.equal(wt.cat([g[0] for g in got]), x) and wt.equal(wt.cat([g[1] for g in got]), y)
