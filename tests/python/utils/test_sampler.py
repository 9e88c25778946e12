"""Orders of samples: golden ones recorded from PyTorch 2.13, and the samplers' rules."""

from __future__ import annotations

from collections import Counter

import pytest
import warptape as wt
from warptape.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


def seeded(seed):
    generator = wt.Generator()
    generator.manual_seed(seed)
    return generator


# Golden orders ----------------------------------------------------------------------------------------------


def test_random_sampler_from_the_default_generator():
    wt.manual_seed(0)
    sampler = RandomSampler(range(12))
    assert list(sampler) == [6, 0, 1, 2, 5, 9, 4, 10, 11, 7, 3, 8]
    assert list(sampler) == [6, 11, 9, 8, 2, 1, 4, 5, 3, 10, 7, 0]


def test_random_sampler_from_a_generator():
    assert list(RandomSampler(range(12), generator=seeded(7))) == [3, 4, 0, 5, 7, 9, 11, 6, 8, 1, 10, 2]
    more = RandomSampler(range(5), num_samples=13, generator=seeded(7))
    assert list(more) == [0, 1, 3, 2, 4, 3, 4, 1, 2, 0, 3, 2, 0]
    drawn = RandomSampler(range(1000), replacement=True, num_samples=40, generator=seeded(7))
    # fmt: off
    assert list(drawn) == [
        615, 892, 721, 286, 283, 347, 287, 279, 988, 761, 158, 631, 8, 217, 262, 930, 666, 472, 983, 518,
        596, 840, 895, 751, 708, 368, 443, 127, 930, 678, 451, 940, 116, 463, 605, 176, 416, 727, 365, 360,
    ]
    # fmt: on


def test_abandoned_pass_leaves_the_generator_where_pytorch_does():
    generator = seeded(7)
    assert next(iter(RandomSampler(range(1000), True, 100, generator))) == 615
    assert wt.randint(1000, (2,), generator=generator).tolist() == [116, 463]


def test_subset_random_sampler():
    sampler = SubsetRandomSampler([3, 1, 4, 1, 5, 9, 2, 6], generator=seeded(3))
    assert len(sampler) == 8 and list(sampler) == [4, 5, 1, 9, 1, 3, 2, 6]


def test_distributed_sampler():
    shares = [list(DistributedSampler(range(11), 3, rank, seed=5)) for rank in range(3)]
    assert shares == [[9, 8, 3, 1], [5, 10, 6, 4], [0, 2, 7, 9]]
    dropping = DistributedSampler(range(11), 3, 1, seed=5, drop_last=True)
    assert len(dropping) == 3 and list(dropping) == [5, 10, 6]
    dropping.set_epoch(1)
    assert list(dropping) == [0, 1, 9]


# Rules ------------------------------------------------------------------------------------------------------


def test_sequential_and_batches():
    assert list(SequentialSampler("abc")) == [0, 1, 2] and len(SequentialSampler("abc")) == 3
    for drop_last, expected in ((False, [[0, 1, 2], [3, 4, 5], [6]]), (True, [[0, 1, 2], [3, 4, 5]])):
        batches = BatchSampler(SequentialSampler(range(7)), 3, drop_last)
        assert list(batches) == expected and len(batches) == len(expected)
    assert list(BatchSampler(SequentialSampler(range(6)), 3, False)) == [[0, 1, 2], [3, 4, 5]]
    assert list(BatchSampler([], 3, False)) == []


def test_random_sampler_is_a_permutation_and_follows_the_length():
    data = list(range(10))
    sampler = RandomSampler(data)
    assert sorted(sampler) == data and len(sampler) == 10
    data.append(10)
    assert sorted(sampler) == data and len(sampler) == 11
    assert len(RandomSampler(data, num_samples=3)) == 3 == len(set(RandomSampler(data, num_samples=3)))


def test_own_generator_is_used_and_the_default_one_left_alone():
    before = wt.get_rng_state()
    list(RandomSampler(range(9), generator=seeded(1)))
    list(SubsetRandomSampler(range(9), generator=seeded(1)))
    list(WeightedRandomSampler([1.0, 2.0], 5, generator=seeded(1)))
    list(DistributedSampler(range(9), 2, 0))
    assert (wt.get_rng_state() == before).all()


def test_weighted_sampler():
    weights = [0.0, 1.0, 3.0, 0.0, 6.0]
    sampler = WeightedRandomSampler(weights, 4000, generator=seeded(0))
    counts = Counter(sampler)
    assert len(sampler) == 4000 == sum(counts.values())
    assert set(counts) == {1, 2, 4}
    for index in counts:  # five standard deviations of a binomial
        p = weights[index] / 10
        assert abs(counts[index] - 4000 * p) < 5 * (4000 * p * (1 - p)) ** 0.5
    all_of_them = WeightedRandomSampler([1.0, 2.0, 3.0], 3, replacement=False, generator=seeded(0))
    assert sorted(all_of_them) == [0, 1, 2]


@pytest.mark.parametrize("length, replicas", [(11, 3), (12, 3), (2, 5), (1, 4), (7, 1), (0, 2)])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_distributed_shares(length, replicas, shuffle, drop_last):
    samplers = [
        DistributedSampler(range(length), replicas, r, shuffle=shuffle, drop_last=drop_last)
        for r in range(replicas)
    ]
    shares = [list(s) for s in samplers]
    assert {len(s) for s in shares} == {len(samplers[0])}
    drawn = Counter(i for share in shares for i in share)
    if drop_last:
        assert len(samplers[0]) == length // replicas and all(n == 1 for n in drawn.values())
    else:
        assert len(samplers[0]) == -(-length // replicas) and sorted(drawn) == list(range(length))
        assert not drawn or max(drawn.values()) - min(drawn.values()) <= 1


def test_distributed_epochs_differ():
    sampler = DistributedSampler(range(50), 2, 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: RandomSampler(range(3), num_samples=0), ValueError, "num_samples=0"),
        (lambda: RandomSampler(range(3), num_samples=2.0), ValueError, "num_samples=2.0"),
        (lambda: RandomSampler([]), ValueError, "num_samples=0"),
        (lambda: list(RandomSampler([], num_samples=3)), ValueError, "empty"),
        (lambda: RandomSampler(range(3), replacement=1), TypeError, "replacement=1"),
        (lambda: WeightedRandomSampler([1.0], 0), ValueError, "num_samples=0"),
        (lambda: WeightedRandomSampler([1.0], 1, replacement=2), ValueError, "replacement=2"),
        (lambda: WeightedRandomSampler([[1.0]], 1), ValueError, r"\(1, 1\)"),
        (lambda: list(WeightedRandomSampler([1.0, 2.0], 3, replacement=False)), RuntimeError, None),
        (lambda: BatchSampler(range(3), 0, False), ValueError, "batch_size=0"),
        (lambda: BatchSampler(range(3), True, False), ValueError, "batch_size=True"),
        (lambda: BatchSampler(range(3), 2, 1), ValueError, "drop_last=1"),
        (lambda: DistributedSampler(range(3), 2, 2), ValueError, "Invalid rank 2"),
        (lambda: DistributedSampler(range(3), 2, -1), ValueError, "Invalid rank -1"),
        (lambda: DistributedSampler(range(3)), (ValueError, RuntimeError), "num_replicas and rank"),
        (lambda: list(Sampler()), NotImplementedError, "__iter__"),
    ],
)
def test_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(3))
def test_parity(seed):
    torch = pytest.importorskip("torch")

    def orders(package):
        data = package.utils.data
        generator = package.Generator()
        generator.manual_seed(seed)
        package.manual_seed(seed)
        found = [list(data.RandomSampler(range(n))) for n in (1, 2, 31, 1000)]
        found += [list(data.RandomSampler(range(n), True, 70, generator)) for n in (1, 3, 10**6)]
        found += [list(data.SubsetRandomSampler(range(100), generator))]
        found += [s.indices for s in data.random_split(range(101), [0.2, 0.3, 0.5], generator)]
        found += [list(data.DistributedSampler(range(103), 4, r, seed=seed)) for r in range(4)]
        return found

    assert orders(wt) == orders(torch)
