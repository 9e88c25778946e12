"""DataLoader: batches, order, collation and refusals."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import warptape as wt
from warptape.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)

Point = namedtuple("Point", "x y")
TEN = TensorDataset(wt.arange(10))


class Stream(IterableDataset):
    def __init__(self, n, promised=None):
        self.n, self.promised = n, n if promised is None else promised

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        return self.promised


def batches(loader):
    return [b[0].tolist() if isinstance(b, (list, tuple)) else b.tolist() for b in loader]


# Batches and order ------------------------------------------------------------------------------------------


def test_batches_in_order():
    assert batches(DataLoader(TEN, 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches(DataLoader(TEN, 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (len(DataLoader(TEN, 4)), len(DataLoader(TEN, 4, drop_last=True)), len(DataLoader(TEN))) == (
        3,
        2,
        10,
    )
    loader = DataLoader(TEN, 4)
    assert batches(loader) == batches(loader)
    assert len(iter(loader)) == 3


def test_shuffled_order_golden():
    """Recorded from PyTorch 2.13: the orders, and the numbers that are drawn after them."""
    wt.manual_seed(1)
    loader = DataLoader(TEN, 4, shuffle=True)
    assert batches(loader) == [[4, 2, 0, 6], [8, 7, 9, 1], [5, 3]]
    assert batches(loader) == [[4, 8, 1, 5], [0, 2, 3, 6], [9, 7]]
    assert wt.randint(1000, (3,)).tolist() == [759, 432, 248]
    generator = wt.Generator()
    generator.manual_seed(9)
    loader = DataLoader(TEN, 4, shuffle=True, generator=generator)
    assert batches(loader) == [[4, 6, 8, 1], [5, 2, 7, 9], [0, 3]]
    assert batches(loader) == [[8, 7, 0, 2], [3, 1, 6, 9], [4, 5]]


@pytest.mark.parity
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "batch_size": 3}])
def test_parity_of_order_and_random_stream(options):
    torch = pytest.importorskip("torch")

    def run(package):
        package.manual_seed(11)
        loader = package.utils.data.DataLoader(
            package.utils.data.TensorDataset(package.arange(10)), **options
        )
        first = next(iter(loader))[0].tolist()
        return first, [b[0].tolist() for b in loader], package.randint(10**6, (4,)).tolist()

    assert run(wt) == run(torch)


def test_samplers():
    assert batches(DataLoader(TEN, 2, sampler=[3, 1, 4])) == [[3, 1], [4]]
    assert batches(DataLoader(TEN, batch_sampler=[[3, 1, 4], [1]])) == [[3, 1, 4], [1]]
    single = list(DataLoader(TEN, batch_size=None))
    assert len(single) == 10 and single[3][0].shape == () and single[3][0].item() == 3
    whole = list(DataLoader(TEN, batch_size=None, sampler=[[1, 2], [3]]))
    assert [w[0].tolist() for w in whole] == [[1, 2], [3]]


def test_streams():
    assert batches(DataLoader(Stream(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert batches(DataLoader(Stream(7), 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert batches(DataLoader(Stream(6), 3)) == [[0, 1, 2], [3, 4, 5]]
    assert list(DataLoader(Stream(3), batch_size=None)) == [0, 1, 2]
    assert (len(DataLoader(Stream(7), 3)), len(DataLoader(Stream(7), 3, drop_last=True))) == (3, 2)
    iterator = iter(DataLoader(Stream(2), 2))
    next(iterator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_stream_longer_than_promised():
    loader = DataLoader(Stream(7, promised=2), 2)
    assert len(loader) == 1
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.warns(UserWarning, match="was reported to be 2 .* but 3 samples have been fetched"):
        assert next(iterator).tolist() == [4, 5]


def test_batch_is_fetched_in_one_call_where_possible():
    class Many(Dataset):
        def __len__(self):
            return 5

        def __getitems__(self, indices):
            return [10 * i for i in indices]

    assert batches(DataLoader(Many(), 2)) == [[0, 10], [20, 30], [40]]


def test_collate_fn_and_errors_of_the_dataset():
    loader = DataLoader([1, 2, 3], 2, collate_fn=sum)
    assert list(loader) == [3, 3]

    class Broken(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            raise KeyError(f"sample {i}")

    with pytest.raises(KeyError, match="sample 0"):
        next(iter(DataLoader(Broken())))


def test_training_reads_the_same_data_as_by_hand():
    x = wt.arange(12, dtype=wt.float32).reshape(6, 2)
    for i, (a, b) in enumerate(DataLoader(TensorDataset(x, x.sum(1)), 2)):
        assert a.shape == (2, 2) and (a == x[2 * i : 2 * i + 2]).all() and (b == a.sum(1)).all()


def test_attributes_are_fixed():
    loader = DataLoader(TEN, 4)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set"):
            setattr(loader, name, None)
    loader.collate_fn = list
    assert loader.batch_size == 4 and get_worker_info() is None


@pytest.mark.skipif(wt.cuda.is_available(), reason="there is an accelerator")
def test_pin_memory_without_accelerator():
    with pytest.warns(UserWarning, match="no accelerator"):
        assert len(batches(DataLoader(TEN, 5, pin_memory=True))) == 2


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"num_workers": 2, "prefetch_factor": -1}, ValueError, "prefetch_factor option should be non-neg"),
        ({"num_workers": 2, "multiprocessing_context": "thread"}, ValueError, "valid start method in"),
        ({"num_workers": 2, "multiprocessing_context": 3}, TypeError, "valid context object or a string"),
        ({"num_workers": -1}, ValueError, "non-negative"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
        ({"persistent_workers": True}, ValueError, "persistent_workers"),
        ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context"),
        ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None"),
        ({"shuffle": True, "sampler": [1]}, ValueError, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[1]], "batch_size": 2}, ValueError, "batch_sampler option is mutually exclusive"),
        ({"batch_sampler": [[1]], "shuffle": True}, ValueError, "batch_sampler option is mutually exclusive"),
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"batch_size": 2.5}, ValueError, "batch_size=2.5"),
    ],
)
def test_refused(options, error, text):
    with pytest.raises(error, match=text):
        DataLoader(TEN, **options)


def test_refused_for_streams_and_empty_data():
    for name, value in (("shuffle", True), ("sampler", [1]), ("batch_sampler", [[1]])):
        with pytest.raises(ValueError, match=f"unspecified {name} option"):
            DataLoader(Stream(3), **{name: value})
    with pytest.raises(ValueError, match="num_samples=0"):
        DataLoader([], shuffle=True)
    assert list(DataLoader([])) == []


# Collation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch, expected, dtype",
    [
        ([1, 2], [1, 2], "int64"),
        ([1.0, 2.0], [1.0, 2.0], "float64"),
        ([True, False], [True, False], "bool"),
        ([np.float32(1), np.float32(2)], [1.0, 2.0], "float32"),
        ([np.array(1, dtype=np.int32), np.array(2, dtype=np.int32)], [1, 2], "int32"),
        ([np.ones(2), np.zeros(2)], [[1.0, 1.0], [0.0, 0.0]], "float64"),
        ([np.bool_(True)], [True], "bool"),
    ],
)
def test_collate_leaves(batch, expected, dtype):
    got = default_collate(batch)
    assert got.tolist() == expected and got.dtype == getattr(wt, dtype)


def test_collate_tensors():
    got = default_collate([wt.ones(2, dtype=wt.float32), wt.zeros(2, dtype=wt.float32)])
    assert got.tolist() == [[1.0, 1.0], [0.0, 0.0]] and got.dtype == wt.float32
    with pytest.raises(RuntimeError):
        default_collate([wt.ones(2), wt.ones(3)])
    with pytest.raises(RuntimeError):
        default_collate([np.ones(2), np.ones(3)])


def test_collate_structures():
    assert default_collate(["a", "b"]) == ["a", "b"]
    got = default_collate([{"a": 1, "b": [1.0, "x"]}, {"a": 2, "b": [3.0, "y"]}])
    assert got["a"].tolist() == [1, 2] and got["b"][0].tolist() == [1.0, 3.0] and got["b"][1] == ("x", "y")
    got = default_collate([(1, 2.0), (3, 4.0)])
    assert isinstance(got, list) and got[0].tolist() == [1, 3]
    got = default_collate([Point(1, 2.0), Point(3, 4.0)])
    assert isinstance(got, Point) and got.y.tolist() == [2.0, 4.0]
    for kind in (OrderedDict(a=1), defaultdict(int, a=1)):
        got = default_collate([kind, kind])
        assert type(got) is type(kind) and got["a"].tolist() == [1, 1] and kind["a"] == 1


@pytest.mark.parametrize(
    "batch, error, text",
    [
        ([None, None], TypeError, "found <class 'NoneType'>"),
        ([object()], TypeError, "collate_fn"),
        ([np.array(["a"])], TypeError, "numpy arrays"),
        ([[1, 2], [1]], RuntimeError, "equal size"),
    ],
)
def test_collate_refused(batch, error, text):
    with pytest.raises(error, match=text):
        default_collate(batch)


def test_convert():
    assert default_convert("a") == "a" and default_convert(3) == 3 and default_convert(None) is None
    assert default_convert(np.ones(2, dtype=np.float32)).dtype == wt.float32
    assert default_convert(np.float32(2)).item() == 2.0
    got = default_convert({"a": (1, np.ones(1)), "b": Point(1, np.zeros(1)), "c": np.array(["t"])})
    assert isinstance(got["a"], list) and got["a"][1].tolist() == [1.0]
    assert isinstance(got["b"], Point) and got["b"].y.tolist() == [0.0] and got["c"].tolist() == ["t"]
    tensor = wt.ones(2)
    assert default_convert(tensor) is tensor
