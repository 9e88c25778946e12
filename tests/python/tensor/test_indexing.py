"""x[...] and x[...] = value against NumPy, in all forms, and their errors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import warptape as wt

SHAPE = (4, 5, 3)


def pair(shape: tuple[int, ...] = SHAPE) -> tuple[wt.Tensor, np.ndarray]:
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return wt.from_numpy(array.copy()), array


def tensors(index: Any) -> Any:
    """The index with its arrays as tensors."""
    if isinstance(index, tuple):
        return tuple(tensors(i) for i in index)
    return wt.from_numpy(index) if isinstance(index, np.ndarray) else index


rng = np.random.default_rng(0)
MASK3, MASK2, MASK1 = rng.random(SHAPE) > 0.5, rng.random((4, 5)) > 0.5, np.array([True, False, True, True])
I = np.array
INDICES: dict[str, Any] = {
    "int": 1,
    "negative": -1,
    "ints": (1, -2, 0),
    "slice": slice(1, 3),
    "open slices": (slice(None, 2), slice(2, None)),
    "step": (slice(None, None, 2), slice(1, None, 3)),
    "negative bounds": slice(-3, -1),
    "bounds beyond": slice(-100, 100),
    "empty slice": slice(3, 1),
    "full": slice(None),
    "Ellipsis": ...,
    "Ellipsis last": (..., 1),
    "Ellipsis first": (1, ...),
    "Ellipsis between": (1, ..., -1),
    "Ellipsis of nothing": (0, 1, ..., 2),
    "None": None,
    "Nones": (None, 1, None, slice(None), None),
    "empty tuple": (),
    "list": [2, 0, 2],
    "list in a tuple": ([2, 0],),
    "negative list": [-1, 0],
    "empty list": ([],),
    "index array": I([[0, 1], [3, -1]]),
    "two arrays": (I([0, 1, 2]), I([4, 3, 0])),
    "broadcast arrays": (I([[0], [1]]), I([4, 3, 0])),
    "three arrays": (I([0, 1]), I([2, 3]), I([1, 1])),
    "array and slice": (I([3, 1]), slice(1, 4)),
    "slice and array": (slice(1, 3), I([3, 1])),
    "array and int": (I([3, 1]), 2),
    "arrays apart": (I([0, 1]), slice(None), I([2, 0])),
    "array after None": (None, I([0, 1]), None),
    "array and Ellipsis": (..., I([0, 2])),
    "arrays around Ellipsis": (I([0, 1]), ..., I([2, 0])),
    "mask": MASK3,
    "mask of two dims": MASK2,
    "mask of one dim": MASK1,
    "list mask": [True, False, True, True],
    "mask and slice": (MASK1, slice(1, 3)),
    "mask and array": (MASK1, I([0, 1, 2])),
    "slice and mask": (slice(None), I([True, False, True, False, True])),
    "empty mask": np.zeros(SHAPE, bool),
    "True": True,
    "False": False,
    "True and slice": (True, slice(1, 2)),
    "uint8-free int32 array": I([1, 2], dtype=np.int32),
}


@pytest.mark.parametrize("name", INDICES)
def test_get(name: str) -> None:
    x, a = pair()
    index = INDICES[name]
    found, expected = x[tensors(index)], a[index]
    assert tuple(found.shape) == expected.shape
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize(
    "value, name",
    [
        (value, name)
        for value in ("number", "array", "row")
        for name, index in INDICES.items()
        if value != "row" or np.zeros(SHAPE)[index].ndim  # a single element has no rows
    ],
)
def test_set(name: str, value: str) -> None:
    x, a = pair()
    index = INDICES[name]
    shape = a[index].shape
    new: Any = -7.0
    if value == "array":
        new = -np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) - 1
    elif value == "row":
        new = -np.arange(shape[-1], dtype=np.float32) - 1
    repeated = name in ("list", "index array") and value == "array"
    if repeated:
        new = np.full(shape, -1.0, np.float32)  # which of several values stays is not defined
    x[tensors(index)] = tensors(new)
    a[index] = new
    assert np.array_equal(x.numpy(), a)


def random_index(draw: random.Random) -> tuple[Any, ...]:
    items: list[Any] = []
    length = draw.randint(1, 3)
    for size in SHAPE[:length]:
        kind = draw.randrange(5)
        if kind == 0:
            items.append(draw.randrange(-size, size))
        elif kind == 1:
            ends = [draw.choice([None, draw.randrange(-size - 1, size + 2)]) for _ in range(2)]
            items.append(slice(ends[0], ends[1], draw.choice([None, 1, 2, 3])))
        elif kind == 2:
            items.append(np.array([draw.randrange(-size, size) for _ in range(2)]))
        elif kind == 3:
            items.append(np.array([[draw.randrange(size)], [draw.randrange(size)]]))
        else:
            items.append(slice(None))
    if any(isinstance(i, np.ndarray) for i in items):  # there NumPy takes an int for one of the arrays
        items = [slice(None) if isinstance(i, int) else i for i in items]
    for extra in (None, ...):
        if draw.random() < 0.3:
            items.insert(draw.randint(0, len(items)) if extra is None else len(items), extra)
    return tuple(items)


@pytest.mark.parametrize("seed", range(200))
def test_random_forms(seed: int) -> None:
    index = random_index(random.Random(seed))
    x, a = pair()
    x, a = x.transpose(0, 1).transpose(0, 1), a  # a view, to index through
    expected = a[index]
    found = x[tensors(index)]
    assert tuple(found.shape) == expected.shape, index
    assert np.array_equal(found.numpy(), expected), index
    x[tensors(index)] = 5.0
    a[index] = 5.0
    assert np.array_equal(x.numpy(), a), index


def test_basic_indexing_gives_views_and_advanced_gives_copies() -> None:
    x, _ = pair()
    for view in (x[1], x[1:3], x[..., 0], x[None], x[:], x[...]):
        assert view.data_ptr() >= x.data_ptr() and view._base is x
    x[1][2][0] = -1.0
    assert x[1, 2, 0].item() == -1.0
    for copy in (x[[0, 1]], x[wt.tensor([True, False, True, True])], x[x > 3]):
        assert copy._base is None
        copy.fill_(100.0)
    assert x.max().item() < 100.0


def test_zero_dim_index_tensors_and_numpy_ints() -> None:
    x, a = pair()
    assert x[wt.tensor(2)].tolist() == a[2].tolist()
    assert x[np.int64(-1)].tolist() == a[-1].tolist()
    assert x[wt.tensor(1) : wt.tensor(3)].tolist() == a[1:3].tolist()
    assert wt.tensor(3.0)[...].item() == 3.0 and wt.tensor(3.0)[None].tolist() == [3.0]
    assert wt.tensor(3.0)[wt.tensor(True)].tolist() == [3.0]


def test_in_place_operators_on_indices() -> None:
    x, a = pair()
    x[1, 2:] += 10
    x[0] *= 2
    a[1, 2:] += 10
    a[0] *= 2
    assert np.array_equal(x.numpy(), a)


def test_assigned_values_are_cast() -> None:
    x = wt.zeros(3, dtype=wt.int64)
    x[0], x[1] = 2.9, True
    x[2:] = wt.tensor([5.7])
    assert x.tolist() == [2, 1, 5]


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (4, IndexError, "index 4 is out of bounds for dimension 0 with size 4"),
    (-5, IndexError, "index -5 is out of bounds for dimension 0 with size 4"),
    ((0, 5), IndexError, "index 5 is out of bounds for dimension 1 with size 5"),
    ((0, 0, 0, 0), IndexError, "too many indices for tensor of dimension 3"),
    ((..., ...), IndexError, "single ellipsis"),
    (slice(None, None, -1), ValueError, "step must be positive"),
    (slice(None, None, 0), ValueError, "step"),
    (1.5, IndexError, "only integers, slices"),
    ("a", (IndexError, TypeError, ValueError), ""),
    (wt.tensor([0.5]), IndexError, "tensors used as indices must be"),
    (wt.tensor([4]), IndexError, "index 4 is out of bounds for dimension 0 with size 4"),
    (wt.tensor([[0], [-5]]), IndexError, "index -5 is out of bounds"),
    (wt.tensor([True, False]), IndexError, "shape of the mask"),
    ((wt.tensor([0, 1]), wt.tensor([0, 1, 2])), IndexError, "shape mismatch: indexing tensors could not be"),
    (2**70, IndexError, "64 bits|out of bounds|too large"),
]


@pytest.mark.parametrize(("index", "kind", "text"), ERRORS)
def test_errors(index: Any, kind: Any, text: str) -> None:
    x, a = pair()
    with pytest.raises(kind, match=text):
        x[index]
    with pytest.raises(kind, match=text):
        x[index] = 1.0
    assert np.array_equal(x.numpy(), a), "nothing was written"


def test_wrong_values() -> None:
    x, a = pair()
    with pytest.raises(RuntimeError, match="shape"):
        x[0] = wt.ones(7)
    with pytest.raises(RuntimeError, match="shape"):
        x[[0, 1]] = wt.ones(7)
    with pytest.raises(TypeError):
        del x[0]
    with pytest.raises(IndexError, match="0-dim tensor"):
        wt.tensor(1.0)[0]
    assert np.array_equal(x.numpy(), a)


class Swaps:
    """An index that gives the tensor other data when it is asked for its number."""

    def __init__(self, t: Any, data: Any) -> None:
        self.t, self.data = t, data

    def __index__(self) -> int:
        self.t.data = self.data
        return 1


def test_indices_that_change_what_is_indexed() -> None:
    for index in (lambda s: (s, 2, 3), lambda s: (slice(0, s), slice(None), 3)):
        t = wt.arange(24.0).view(2, 3, 4)
        with pytest.raises(RuntimeError, match="changed the tensor"):
            t[index(Swaps(t, wt.zeros(1)))]
    mask, t = wt.tensor(True), wt.ones(2, 3)
    with pytest.raises(IndexError, match="too many indices"):
        t[Swaps(mask, wt.zeros(3, dtype=wt.int64)), :, mask]


def test_lists_that_stand_for_tuples() -> None:
    x, array = wt.arange(6.0).view(2, 3), np.arange(6.0).reshape(2, 3)
    for index in ([[0, 1], [2, 0]], [slice(0, 1), 0], [None, 0], [0, [1]], [0, ...], [np.array([0]), 1]):
        with pytest.warns(UserWarning, match="^Using a non-tuple sequence for multidimensional indexing"):
            found = x[index]
        assert found.tolist() == array[tuple(index)].tolist()
    with pytest.warns(UserWarning, match="non-tuple"):
        assert x[[wt.tensor(1), wt.tensor(2)]].item() == 5
    with pytest.warns(UserWarning, match="non-tuple"):
        x[[[0, 1], [2, 0]]] = 9.0
    assert x.tolist() == [[0, 1, 9], [9, 4, 5]]
    assert x[[1, 0]].tolist() == x[wt.tensor([1, 0])].tolist()
    assert x[[True, False]].shape == (1, 3) and x[[]].shape == (0, 3)
    assert x[np.array([[0, 1]])].shape == (1, 2, 3)


def test_masks_of_bytes() -> None:
    x = wt.arange(6.0).view(2, 3)
    mask = wt.tensor([[1, 0, 0], [0, 2, 0]], dtype=wt.uint8)
    with pytest.warns(UserWarning, match="^indexing with dtype torch.uint8 is now deprecated"):
        assert x[mask].tolist() == [0, 4]
    with pytest.warns(UserWarning, match="uint8"):
        assert x[0, wt.tensor(1, dtype=wt.uint8)].tolist() == [[0, 1, 2]]
    with pytest.warns(UserWarning, match="uint8"):
        x[wt.tensor(0, dtype=wt.uint8)] = 7.0
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_leading_ones_of_a_value_are_cut_off() -> None:
    a = wt.arange(9.0).reshape(3, 3)
    a[[0, 1, 2], [0, 1, 2]] = wt.tensor([[[7.0, 8.0, 9.0]]])
    assert a.diagonal().tolist() == [7, 8, 9]
    a[wt.tensor(True)] = wt.zeros(1, 1, 3, 3)
    assert not a.any()
    with pytest.raises(RuntimeError, match="shape mismatch"):
        a[[0, 1]] = wt.zeros(2, 1, 2, 3)


def test_index_put_as_a_function() -> None:
    a = wt.zeros(3)
    assert wt.index_put_(a, (wt.tensor([1, 1]),), wt.ones(2), accumulate=True) is a
    assert a.tolist() == [0, 2, 0]


def test_take_along_dim_wants_int64() -> None:
    with pytest.raises(RuntimeError, match="dtype of indices should be Long"):
        wt.take_along_dim(wt.ones(2, 3), wt.zeros(2, 3, dtype=wt.int32), 0)


def test_strides_of_new_dims_of_one_element() -> None:
    t = wt.arange(6.0).reshape(2, 3)
    assert t.expand(1, 1, 2, 3).stride() == t[None, None].stride() == (6, 6, 3, 1)
    assert t.expand(4, 1, 2, 3).stride() == (0, 6, 3, 1)
    assert t.sum().expand(1, 1).stride() == (0, 0)


def test_the_older_order_of_addcmul_and_addcdiv() -> None:
    a, b, c = wt.ones(2), wt.tensor([2.0, 3.0]), wt.tensor([4.0, 5.0])
    with pytest.warns(UserWarning, match="overload of addcmul is deprecated"):
        assert wt.addcmul(a, 2, b, c).tolist() == [17, 31]
    with pytest.warns(UserWarning, match="overload of addcdiv_ is deprecated"):
        assert a.addcdiv_(4, b, c) is a and a.tolist() == pytest.approx([3, 3.4])


def test_no_address_of_no_elements() -> None:
    assert wt.ones(2, 2).resize_(0, 2).data_ptr() == 0


def test_values_of_another_dtype() -> None:
    x = wt.zeros(3, dtype=wt.float64)
    for index in ([0, 1], wt.tensor([0, 1])):
        with pytest.raises(RuntimeError, match="source and destination dtypes match"):
            x[index] = wt.ones(2)
        with pytest.raises(RuntimeError, match="source and destination dtypes match"):
            x[index] = wt.ones((), dtype=wt.int32)
        x[index] = [1.0, 2.0]  # a list has no dtype of its own
    x[wt.tensor([False, False, True])] = wt.ones((), dtype=wt.int32)  # as masked_fill_ takes it
    assert x.tolist() == [1, 2, 1]
    with pytest.raises(RuntimeError, match="shape mismatch"):  # said first
        x.long()[x > 0] = wt.ones(2)


def test_empty_indices() -> None:
    x = wt.arange(3)
    assert x[[]].shape == (0,) and x[wt.empty(0, dtype=wt.int64)].shape == (0,)
    with pytest.raises(IndexError, match="must be long, int, byte or bool"):
        x[wt.empty(0)]


def test_an_empty_dim_has_no_index() -> None:
    x = wt.empty(10, 0)
    assert x[[1, 2]].shape == (2, 0) and x[[], []].shape == (0,)
    with pytest.raises(IndexError, match="for dimension with size 0"):
        x[:, [0, 1]]


def test_index_add_refuses_what_it_overwrites() -> None:
    x, at = wt.zeros(6), wt.tensor([2, 1, 0])
    for call in (
        lambda: x.index_add_(0, at, x[:3]),
        lambda: at.index_add_(0, at, at.clone()),
        lambda: at.index_add_(0, at.clone(), at),
    ):
        with pytest.raises(RuntimeError, match="unsupported operation"):
            call()


def test_index_copy_of_single_elements() -> None:
    for shape in ((), (1,)):
        for index in (wt.tensor(0), wt.tensor([0])):
            for source in (wt.tensor(3.0), wt.tensor([3.0])):
                assert wt.ones(shape).index_copy_(0, index, source).item() == 3


def test_index_fill_of_a_complex_number() -> None:
    with pytest.raises(RuntimeError, match="complex Scalar to non-complex"):
        wt.ones(2, dtype=wt.int16).index_fill_(0, wt.tensor([0]), 1 + 1j)


def test_empty_views_are_contiguous() -> None:
    y = wt.ones(2, 3, 4, 5)[:, :, :, 1][:, 1:1]
    assert y.stride() == (60, 20, 5) and y.is_contiguous()


def test_a_reshape_that_copies_is_no_view() -> None:
    x = wt.ones(2, 2, requires_grad=True)
    flat = x.t().reshape(4)
    assert not flat._is_view()
    flat.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[1, 1], [1, 1]]
