"""Ops that are composed of others: forms of arguments and results that the op table's rows do not hold."""

from __future__ import annotations

import pytest
import warptape as wt


def test_one_tensor_or_several() -> None:
    number = wt.tensor(1.0)
    assert wt.atleast_1d(number).shape == (1,)
    for found in (wt.atleast_2d(number, wt.ones(3)), wt.atleast_2d([number, wt.ones(3)])):
        assert isinstance(found, tuple) and [t.shape for t in found] == [(1, 1), (1, 3)]
    assert wt.atleast_3d() == wt.broadcast_tensors() == () and wt.broadcast_shapes() == ()
    assert wt.broadcast_shapes(2, (3, 1), [1]) == (3, 2)
    with pytest.raises(wt.ShapeError, match="broadcast_shapes"):
        wt.broadcast_shapes((2,), (3,))


def test_tensor_split_at_a_tensor() -> None:
    x = wt.arange(5)
    for at in (2, wt.tensor(2)):
        assert [t.tolist() for t in wt.tensor_split(x, at)] == [[0, 1, 2], [3, 4]]
    for at in ((1, 9, -2), wt.tensor([1, 9, -2])):
        assert [t.tolist() for t in x.tensor_split(at)] == [[0], [1, 2, 3, 4], [], [3, 4]]
    with pytest.raises(wt.DtypeError, match="dtype of long"):
        x.tensor_split(wt.tensor([1.0]))


def test_tensordot_dims() -> None:
    a, b = wt.rand(2, 3), wt.rand(3, 2)
    for dims in (1, ([1], [0]), wt.tensor(1), wt.tensor([[1], [0]])):
        assert wt.equal(wt.tensordot(a, b, dims), a @ b)
    # A dim of size 1 is broadcast.
    assert wt.allclose(wt.tensordot(wt.ones(1, 2), a.t(), ([0], [0])), a.sum(1).expand(2, 2))
    with pytest.raises(wt.DtypeError, match="same dtype"):
        wt.tensordot(a, b.double(), 1)


def test_where_of_bytes_warns() -> None:
    with pytest.warns(UserWarning, match="uint8 condition"):
        assert wt.where(wt.tensor([1, 0], dtype=wt.uint8), 1, 2).tolist() == [1, 2]
    assert wt.tensor([1.0, 2.0]).where(wt.tensor([True, False]), 0).tolist() == [1, 0]


def test_unique_of_slices() -> None:
    x = wt.tensor([[[2, 1], [0, 5]], [[1, 9], [0, 5]], [[2, 1], [0, 5]]])
    values, inverse, counts = x.unique(dim=0, return_inverse=True, return_counts=True)
    assert wt.equal(values, x[:2].flip(0)) and inverse.tolist() == [1, 0, 1] and counts.tolist() == [1, 2]
    # The slices of the last dim are ordered by their elements in the order of the other dims.
    assert x.unique(dim=2)[..., 0].tolist() == x[..., 1].tolist()
    assert wt.ones(0, 3).unique(dim=0).shape == (0, 3)
    with pytest.raises(wt.ShapeError, match="0 sized dimensions"):
        wt.ones(0, 3).unique(dim=1)
    with pytest.raises(NotImplementedError, match="derivative"):
        wt.ones(2, requires_grad=True).unique().sum().backward()


def test_ranges_that_end_is_part_of() -> None:
    with pytest.warns(UserWarning, match="deprecated"):
        assert wt.range(1, 2.5, 0.5).tolist() == [1, 1.5, 2, 2.5]
    out = wt.empty(0, dtype=wt.int64)
    with pytest.warns(UserWarning, match="deprecated"):
        assert wt.range(0, 3, out=out) is out and out.tolist() == [0, 1, 2, 3]
    assert wt.logspace(2, 5, 1).tolist() == [100]
    assert wt.logspace(0, 1j, 2).dtype is wt.complex64


def test_equal_looks_at_values() -> None:
    assert wt.equal(wt.tensor([1, 2]), wt.tensor([1.0, 2.0])) and not wt.equal(wt.ones(2), wt.ones(1, 2))
    assert wt.equal(wt.ones(3, 3).t(), wt.ones(3, 3)) and not wt.equal(wt.tensor(wt.nan), wt.tensor(wt.nan))


def test_meta_tensors_have_shapes_alone() -> None:
    x = wt.empty(3, 4, device="meta")
    for found, shape in [
        (wt.hstack([x, x]), (3, 8)),
        (wt.diff(x, 2), (3, 2)),
        (wt.rot90(x), (4, 3)),
        (wt.trace(x), ()),
        (wt.vander(x[0]), (4, 4)),
        (wt.multinomial(x, 2), (3, 2)),
        (wt.triu_indices(3, 3, device="meta"), (2, 6)),
    ]:
        assert found.is_meta and found.shape == shape


def test_in_place_views() -> None:
    x = wt.ones(2, 3, requires_grad=True)
    y = x * 1
    y.unsqueeze_(0).squeeze_(0).transpose_(0, 1).t_().swapaxes_(0, 1)
    assert y.shape == (3, 2) and type(y.stride()) is tuple and y.stride() == (1, 3) and y.stride(-1) == 3
    (y * wt.arange(6).view(3, 2)).sum().backward()
    assert wt.equal(x.grad, wt.arange(6).view(3, 2).t())


def test_vander_of_at_most_one_column() -> None:
    """Nothing of x is in it, so that no gradient is recorded, as in PyTorch."""
    x = wt.ones(3, requires_grad=True)
    for n, expected in ((0, [[], [], []]), (1, [[1.0], [1.0], [1.0]])):
        out = wt.vander(x, n)
        assert out.tolist() == expected
        assert not out.requires_grad
