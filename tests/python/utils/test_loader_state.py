"""The state of a DataLoader: a pass that is taken up elsewhere goes on as the one that was not left."""

from __future__ import annotations

import io
import itertools
import random
import time

import numpy as np
import pytest
import warptape as wt
from warptape.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from warptape.utils.data._state import Progress


class Squares(Dataset):
    def __init__(self, n=23):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return int(i) ** 2


class Shuffled(IterableDataset):
    """A part of a range for each worker, through a buffer that draws from Python's generator."""

    def __init__(self, n=29):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        part = range(self.n) if info is None else range(info.id, self.n - 4 * info.id, info.num_workers)
        buffer = list(itertools.islice(part, 3))
        for i in itertools.islice(part, 3, None):
            at = random.randrange(3)
            yield buffer[at]
            buffer[at] = i
        yield from buffer


class Counting(IterableDataset):
    """A stream with a state: going on costs no reading."""

    def __init__(self, n=20):
        self.n, self.at, self.read = n, 0, 0

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        start, self.at = self.at, 0
        for count, i in enumerate(range(first, self.n, step)):
            if count < start:
                continue
            self.at = count + 1
            self.read += 1
            yield i
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Odd(Sampler):
    """A sampler of a user's, without a state."""

    def __len__(self):
        return 17

    def __iter__(self):
        yield from (random.randrange(17) for _ in range(9))
        yield from wt.randperm(8).tolist()


class Own(Sampler):
    """A sampler of a user's, with a state."""

    def __init__(self):
        self.given = self.rounds = 0

    def __len__(self):
        return 17

    def __iter__(self):
        while self.given < 17:
            self.given += 1
            yield (self.given * (5 + self.rounds)) % 17
        self.given, self.rounds = 0, self.rounds + 1

    def state_dict(self):
        return {"given": self.given, "rounds": self.rounds}

    def load_state_dict(self, state):
        self.given, self.rounds = state["given"], state["rounds"]


def kept(state):
    """The state after torch.save and a load of weights alone."""
    file = io.BytesIO()
    wt.save(state, file)
    file.seek(0)
    return wt.load(file, weights_only=True)


def joined(lists):
    return [*itertools.chain.from_iterable(lists)]


def values(batches):
    return [b.tolist() if hasattr(b, "tolist") else b for b in batches]


def seed(number=5):
    wt.manual_seed(number)
    random.seed(number)


def seeded():
    return wt.Generator().manual_seed(3)


MADE = {
    "sequential": lambda **o: DataLoader(Squares(), 4, **o),
    "shuffled": lambda **o: DataLoader(Squares(), 4, shuffle=True, **o),
    "generator": lambda **o: DataLoader(Squares(), 4, shuffle=True, generator=seeded(), **o),
    "single": lambda **o: DataLoader(Squares(9), None, shuffle=True, **o),
    "drop_last": lambda **o: DataLoader(Squares(), 4, shuffle=True, drop_last=True, **o),
    "replacement": lambda **o: DataLoader(
        Squares(), 9, sampler=RandomSampler(range(23), True, 80, seeded()), **o
    ),
    "rounds": lambda **o: DataLoader(Squares(), 9, sampler=RandomSampler(range(23), num_samples=60), **o),
    "subset": lambda **o: DataLoader(Squares(), 2, sampler=SubsetRandomSampler([*range(0, 23, 2)]), **o),
    "weighted": lambda **o: DataLoader(Squares(), 2, sampler=WeightedRandomSampler(wt.arange(23.0), 14), **o),
    "batches": lambda **o: DataLoader(
        Squares(), batch_sampler=BatchSampler(RandomSampler(range(23)), 3, False), **o
    ),
    "lists": lambda **o: DataLoader(Squares(), batch_sampler=[[1, 2], [3], [4, 5, 6], [7], [8]], **o),
    "odd": lambda **o: DataLoader(Squares(), 2, sampler=Odd(), **o),
    "own": lambda **o: DataLoader(Squares(), 2, sampler=Own(), **o),
    "stream": lambda **o: DataLoader(Shuffled(), 3, **o),
    "counting": lambda **o: DataLoader(Counting(), 3, **o),
    "stream of samples": lambda **o: DataLoader(Counting(), None, **o),
}


def left_and_taken_up(make, after, before_workers, after_workers):
    """Two passes of a loader, and the same with another one that takes the first up after some batches."""
    seed()
    loader = make(num_workers=before_workers)
    whole = values(loader), values(loader)
    seed()
    loader = make(num_workers=before_workers)
    start = values(itertools.islice(loader, after))
    state = kept(loader.state_dict())
    other = make(num_workers=after_workers)
    other.load_state_dict(state)
    return whole, (start + values(other), values(other))


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_a_pass_goes_on_in_another_loader(name, after):
    whole, both = left_and_taken_up(MADE[name], after, 0, 0)
    assert both[0] == whole[0]
    assert both[1] == whole[1]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")  # on two processors
@pytest.mark.parametrize("name", ["generator", "shuffled", "odd", "own", "stream", "counting", "weighted"])
@pytest.mark.parametrize(("one", "other"), [(2, 2), (2, 0), (0, 2), (1, 3), (3, 2)])
def test_another_number_of_workers_keeps_the_order(name, one, other):
    whole, both = left_and_taken_up(MADE[name], 3, one, other)
    assert both[0] == whole[0]


def test_a_pass_is_taken_up_twice_and_later_ones_are_whole():
    for workers in (0, 2):
        seed()
        loader = MADE["generator"](num_workers=workers)
        whole = [values(loader) for _ in range(3)]
        seed()
        loader, got = MADE["generator"](num_workers=workers), []
        for _ in range(2):
            got += values(itertools.islice(loader, 2))
            state = loader.state_dict()
            loader = MADE["generator"](num_workers=workers)
            loader.load_state_dict(state)
            assert loader.state_dict()["batches"] == len(got)
            iterator = iter(loader)
            assert loader.state_dict()["batches"] == len(got)
            again = MADE["generator"](num_workers=workers)
            again.load_state_dict(kept(loader.state_dict()))
            assert values(again) == whole[0][len(got) :]
            del iterator
            loader.load_state_dict(state)
        assert got + values(loader) == whole[0]
        assert values(loader) == whole[1]
        state = loader.state_dict()  # between two passes
        assert (state["begun"], state["batches"]) == (False, 0)
        fresh = MADE["generator"](num_workers=workers)
        fresh.load_state_dict(kept(state))
        assert values(fresh) == whole[2]


def test_a_state_is_left_alone():
    """What the loader does later changes no state that it gave or took."""
    loader = MADE["counting"](num_workers=0)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    before = kept(state)
    next(iterator)
    assert state["streams"] == before["streams"]
    other = MADE["counting"](num_workers=0)
    other.load_state_dict(state)
    list(other)
    assert state["streams"] == before["streams"]


def test_a_stream_with_a_state_is_not_read_again():
    loader = DataLoader(Counting(3000), 3)
    list(itertools.islice(loader, 900))
    dataset = Counting(3000)
    other = DataLoader(dataset, 3)
    other.load_state_dict(loader.state_dict())
    assert next(iter(other)).tolist() == [2700, 2701, 2702]
    assert dataset.read == 3


def test_the_process_draws_the_same_numbers_after_going_on():
    """Going on takes nothing from the process's generators, in which a model may draw."""
    for name in ("shuffled", "subset", "weighted"):
        loader = MADE[name](num_workers=0)
        next(iter(loader))
        other = MADE[name](num_workers=0)
        other.load_state_dict(loader.state_dict())
        seed(8)
        want = wt.rand(2).tolist(), random.random()
        seed(8)
        next(iter(other))
        assert (wt.rand(2).tolist(), random.random()) == want


class Epochs(Dataset):
    """Samples of the epoch that set_epoch told."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.epoch * 10 + i


def test_persistent_workers_see_a_new_epoch():
    dataset = Epochs()
    loader = DataLoader(wt.utils.data.Subset(dataset, [0, 3]), 2, num_workers=2, persistent_workers=True)
    assert values(loader) == [[0, 3]]
    pids = [w.pid for w in loader._iterator._workers]
    dataset.set_epoch(4)
    assert values(loader) == [[40, 43]]
    assert values(loader) == [[40, 43]]
    assert [w.pid for w in loader._iterator._workers] == pids


def test_persistent_workers_take_a_state():
    seed()
    loader = MADE["generator"](num_workers=2, persistent_workers=True)
    whole = [values(loader) for _ in range(2)]
    loader = MADE["generator"](num_workers=2, persistent_workers=True)
    values(loader)
    start = values(itertools.islice(loader, 2))
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)
    assert start + values(loader) == whole[1]


# Ranks ------------------------------------------------------------------------------------------------------


def ranked(rank, world, shuffle=True, size=24):
    sampler = DistributedSampler(range(size), world, rank, shuffle=shuffle, seed=1)
    sampler.set_epoch(2)
    return DataLoader(Squares(size), 2, sampler=sampler)


def steps(loaders, n=None):
    """What all ranks get in each step, sorted."""
    return [sorted(joined(b.tolist() for b in step)) for step in itertools.islice(zip(*loaders), n)]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_another_number_of_ranks_shares_the_rest(world):
    loaders = [ranked(r, 2) for r in range(2)]
    start = steps(loaders, 3)  # 12 samples
    states = [kept(loader.state_dict()) for loader in loaders]
    assert states[0]["place"] == states[1]["place"]  # whichever a rank takes
    others = [ranked(r, world) for r in range(world)]
    for i, loader in enumerate(others):
        loader.load_state_dict(states[i % 2])
    rest = steps(others)
    order = [i**2 for i in ranked(0, 1).sampler]
    assert start == [sorted(order[i : i + 4]) for i in range(0, 12, 4)]
    width = 2 * world
    assert rest == [sorted(order[i : i + width]) for i in range(12, 24, width)]
    assert steps(others) == steps([ranked(r, world) for r in range(world)])  # the next pass is whole


def test_a_samplers_own_state():
    for make in (
        lambda: SequentialSampler(range(9)),
        lambda: RandomSampler(range(9), generator=seeded()),
        lambda: DistributedSampler(range(18), 2, 1),
        lambda: RandomSampler(range(9), replacement=True, num_samples=70, generator=seeded()),
    ):
        whole = list(make())
        for after in (0, 4, 9):
            sampler = make()
            start = list(itertools.islice(iter(sampler), after))
            other = make()
            other.load_state_dict(kept(sampler.state_dict()))
            assert start + list(other) == whole
        assert len(list(other)) == len(whole)
    sampler = DistributedSampler(range(18), 2, 1)
    list(itertools.islice(iter(sampler), 3))
    other = DistributedSampler(range(18), 2, 1)
    other.load_state_dict(sampler.state_dict())
    other.set_epoch(1)  # another epoch begins at its beginning
    assert len(list(other)) == 9


# Refusals ---------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    loader = MADE["sequential"]()
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ValueError, match="of a dataset of 23 samples, but this loader's has 24"):
        DataLoader(Squares(24), 4).load_state_dict(state)
    with pytest.raises(ValueError, match="of SequentialSampler, but this loader has RandomSampler"):
        MADE["shuffled"]().load_state_dict(state)
    with pytest.raises(ValueError, match=r"expected what DataLoader\.state_dict gave"):
        loader.load_state_dict({})
    with pytest.raises(ValueError, match="of 3 ranks, but there are 1"):
        loader.load_state_dict({**state, "world": 3})
    stream = MADE["stream"]()
    next(iter(stream))
    with pytest.raises(ValueError, match="of batches of 3 samples, but this loader's have 4"):
        DataLoader(Shuffled(), 4).load_state_dict(stream.state_dict())
    with pytest.raises(ValueError, match="of 9 samples, but this sampler has 8"):
        SequentialSampler(range(8)).load_state_dict(SequentialSampler(range(9)).state_dict())
    with pytest.raises(ValueError, match="of seed=0, but this sampler has seed=1"):
        DistributedSampler(range(4), 2, 0, seed=1).load_state_dict(
            DistributedSampler(range(4), 2, 0).state_dict()
        )
    with pytest.raises(ValueError, match="in_order=True"):
        DataLoader(Squares(), 4, num_workers=1, in_order=False).state_dict()


def test_a_sampler_derived_from_one_that_counts_is_asked_again():
    """One that overrides the order does not count; taking its place for the base's would repeat samples."""

    class Reversed(RandomSampler):
        def __iter__(self):
            return iter([*super().__iter__()][::-1])

    seed()
    make = lambda **o: DataLoader(Squares(), 4, sampler=Reversed(range(23)), **o)
    whole, both = left_and_taken_up(make, 2, 0, 0)
    assert both == whole


def test_another_batch_size_goes_on_with_the_next_sample():
    seed()
    loader = DataLoader(Squares(), 4, shuffle=True)
    start = values(itertools.islice(loader, 2))
    other = DataLoader(Squares(), 5, shuffle=True)
    other.load_state_dict(loader.state_dict())
    seed()
    order = joined(values(DataLoader(Squares(), 23, shuffle=True)))
    assert joined(start + values(other)) == order


def test_numpy_streams_go_on():
    class Drawn(IterableDataset):
        def __iter__(self):
            for _ in range(9):
                yield float(np.random.rand())  # noqa: NPY002

    for workers in (0, 1):
        np.random.seed(1)  # noqa: NPY002
        seed()
        loader = DataLoader(Drawn(), None, num_workers=workers)
        iterator = iter(loader)
        start = [next(iterator) for _ in range(4)]
        state = kept(loader.state_dict())
        rest = list(iterator)
        np.random.seed(1)  # noqa: NPY002
        np.random.rand(4)  # noqa: NPY002  (the process's own, as a checkpoint restores it)
        other = DataLoader(Drawn(), None, num_workers=workers)
        other.load_state_dict(state)
        assert start + list(other) == start + rest


class Images(Dataset):
    """Samples as small as those of MNIST."""

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        return wt.full((1, 28, 28), i / 2000), i % 10


def test_the_state_costs_little():
    """At most 2 % of a pass: what its start keeps, and one state. Of this thread's CPU time, the least of
    several, so that other programs do not count."""
    loader = DataLoader(Images(), 16, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    keeps = cpu_time(lambda: Progress(loader, True), 20)
    asked = cpu_time(loader.state_dict, 20)
    assert keeps + asked <= 0.02 * cpu_time(lambda: list(loader), 3)


def cpu_time(call, times):
    """The least of some calls, in seconds."""
    found = []
    for _ in range(times):
        start = time.thread_time()
        call()
        found.append(time.thread_time() - start)
    return min(found)
