"""Datasets and datasets made of datasets."""

from __future__ import annotations

import pytest
import warptape as wt
from warptape.utils.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)


class Squares(Dataset):
    """Counts how it is read."""

    def __init__(self, n):
        self.n, self.single, self.many = n, 0, 0

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.single += 1
        return i * i


class ManySquares(Squares):
    def __getitems__(self, indices):
        self.many += 1
        return [i * i for i in indices]


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        return self.n


def test_tensor_dataset():
    x, y = wt.arange(6).reshape(3, 2), wt.arange(3)
    data = TensorDataset(x, y)
    assert len(data) == 3 and data.tensors[0] is x
    a, b = data[1]
    assert a.tolist() == [2, 3] and b.item() == 1
    assert data[-1][1].item() == 2 and data[0:2][0].shape == (2, 2)


def test_concat():
    data = Squares(3) + Squares(2)
    assert isinstance(data, ConcatDataset) and len(data) == 5
    assert [data[i] for i in range(5)] == [0, 1, 4, 0, 1] == [data[i - 5] for i in range(5)]
    assert data.cumulative_sizes == [3, 5]
    assert [ConcatDataset([Squares(0), Squares(2), Squares(0), Squares(1)])[i] for i in range(3)] == [0, 1, 0]
    with pytest.warns(DeprecationWarning, match="renamed"):
        assert data.cummulative_sizes == [3, 5]


def test_stack():
    data = StackDataset(Squares(3), ManySquares(3))
    assert len(data) == 3 and data[2] == (4, 4) and data.__getitems__([0, 2]) == [(0, 0), (4, 4)]
    named = StackDataset(a=Squares(3), b=ManySquares(3))
    assert named[1] == {"a": 1, "b": 1} and named.__getitems__([2]) == [{"a": 4, "b": 4}]
    assert named.datasets["b"].many == 1


def test_subset():
    data = Subset(Squares(10), [5, 3, 1])
    assert len(data) == 3 and [data[i] for i in range(3)] == [25, 9, 1]
    many = Subset(ManySquares(10), [5, 3, 1])
    assert many.__getitems__([0, 2]) == [25, 1] and (many.dataset.many, many.dataset.single) == (1, 0)
    rows = Subset(TensorDataset(wt.arange(10)), [5, 6, 7])
    assert rows[[0, 2]][0].tolist() == [5, 7]


def test_chain():
    data = Stream(2) + Stream(3)
    assert isinstance(data, ChainDataset) and list(data) == [0, 1, 0, 1, 2] and len(data) == 5
    with pytest.raises(AssertionError, match="only supports IterableDataset"):
        list(ChainDataset([Squares(2)]))


def test_random_split_golden():
    """Orders recorded from PyTorch 2.13."""

    def split(lengths):
        generator = wt.Generator()
        generator.manual_seed(42)
        return [part.indices for part in random_split(range(11), lengths, generator=generator)]

    assert split([3, 8]) == [[6, 8, 9], [2, 1, 10, 0, 7, 3, 5, 4]]
    assert split([0.3, 0.3, 0.4]) == [[6, 8, 9, 2], [1, 10, 0], [7, 3, 5, 4]]


def test_random_split():
    data = Squares(10)
    a, b = random_split(data, [0.25, 0.75])
    assert (len(a), len(b)) == (3, 7) and sorted(a.indices + b.indices) == list(range(10))
    assert a.dataset is data and a[0] == a.indices[0] ** 2
    with pytest.warns(UserWarning, match="index 1 is 0"):
        assert [len(p) for p in random_split(Squares(1), [0.5, 0.5])] == [1, 0]
    wt.manual_seed(3)
    first = random_split(data, [5, 5])[0].indices
    wt.manual_seed(3)
    assert random_split(data, [5, 5])[0].indices == first


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: TensorDataset(wt.ones(2), wt.ones(3)), AssertionError, r"Size mismatch.*\[2, 3\]"),
        (lambda: TensorDataset(wt.arange(3))[5], IndexError, None),
        (lambda: ConcatDataset([]), ValueError, "empty"),
        (lambda: ConcatDataset([Stream(2)]), AssertionError, "ChainDataset"),
        (lambda: ConcatDataset([Squares(3)])[3], IndexError, "index 3 is out of range for 3"),
        (lambda: ConcatDataset([Squares(3)])[-4], ValueError, "absolute value"),
        (lambda: StackDataset(), ValueError, "At least one"),
        (lambda: StackDataset(Squares(2), Squares(3)), ValueError, r"\[2, 3\]"),
        (lambda: StackDataset(Squares(2), b=Squares(2)), ValueError, "both types"),
        (lambda: random_split(Squares(10), [3, 3]), ValueError, "10 samples"),
        (lambda: random_split(Squares(10), [0.5, 0.6]), ValueError, "Sum of input lengths"),
        (lambda: random_split(Squares(10), [1.2, -0.2]), ValueError, "index 0 is not between"),
        (lambda: Dataset()[0], NotImplementedError, "__getitem__"),
    ],
)
def test_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_stack_checks_what_a_part_returns():
    class Short(Squares):
        def __getitems__(self, indices):
            return [0]

    with pytest.raises(ValueError, match="Expected 2, got 1 from Short"):
        StackDataset(Short(3)).__getitems__([0, 1])
