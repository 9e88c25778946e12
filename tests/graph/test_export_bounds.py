"""Programs at sizes that were not recorded: what eager code gives, or an error; never memory of others."""

from __future__ import annotations

import warnings

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape.export import Dim, export

LARGEST = 40
TABLE = torch.arange(64 * 3.0).view(64, 3)
LAYER = nn.Embedding(64, 3)
LSTM, GRU = nn.LSTM(3, 4), nn.GRU(3, 4, batch_first=True)
CONV, NORM, POOL = nn.Conv1d(3, 4, 3, stride=2), nn.BatchNorm1d(3).eval(), nn.MaxPool1d(2)


def by_size(x):
    return x * 2 if x.shape[0] > 20 else x + 1


# Of x [n, 3], in terms of which sizes are taken apart.
FUNCTIONS = {
    "first": lambda x: x[:4] * 1,
    "last": lambda x: x[-4:] * 1,
    "all but first": lambda x: x[1:] * 1,
    "all but last": lambda x: x[:-1] * 1,
    "middle": lambda x: x[2:-2] * 1,
    "as in the example": lambda x: x[:6] * 1,
    "every third": lambda x: x[1:30:3] * 1,
    "half": lambda x: x[: x.shape[0] // 2] * 1,
    "upper half": lambda x: x[x.shape[0] // 2 :] * 1,
    "half, rounded up": lambda x: x[: (x.shape[0] + 1) // 2] * 1,
    "last row": lambda x: x[-1] * 1,
    "row in the middle": lambda x: x[x.shape[0] // 2] * 1,
    "fixed row": lambda x: x[5] * 1,
    "parity": lambda x: x * (x.shape[0] % 2),
    "modulo 7": lambda x: x * (x.shape[0] % 7),
    "threshold": by_size,
    "narrow": lambda x: x.narrow(0, 1, x.shape[0] - 1) * 1,
    "narrow, fixed": lambda x: x.narrow(0, 0, 6) * 1,
    "select": lambda x: x.select(0, x.shape[0] - 1) * 1,
    "positions": lambda x: TABLE[: x.shape[0]] + x,
    "arange": lambda x: x + torch.arange(x.shape[0])[:, None],
    "embedding": lambda x: LAYER(torch.arange(x.shape[0])) + x,
    "chunk": lambda x: torch.cat(x.chunk(2)[::-1]),
    "split": lambda x: x.split(4)[0] * 1,
    "tensor_split": lambda x: x.tensor_split(3)[1] * 1,
    "unbind": lambda x: x.unbind(0)[0] * 1,
    "rows": lambda x: sum(row.sum() for row in x),
    "as_strided": lambda x: x.clone().as_strided((x.shape[0], 2), (3, 1)) * 1,
    "as_strided, fixed": lambda x: x.clone().as_strided((6, 2), (3, 1)) * 1,
    "unfold": lambda x: x.unfold(0, 3, 2) * 1,
    "diagonal": lambda x: (x @ x.T).diagonal(1) * 1,
    "flat": lambda x: x.reshape(-1).view(x.shape[0], 3)[:, 1:] * 1,
    "flat, counted": lambda x: x.reshape(3 * x.shape[0]).view(-1, 3) * 1,
    "pairs": lambda x: x.reshape(x.shape[0] // 2, 2, 3) * 1,
    "gather": lambda x: x.gather(0, torch.zeros(2, 3, dtype=torch.int64) + x.shape[0] - 1),
    "index": lambda x: x[torch.tensor([0, 2, 5])],
    "index_select": lambda x: x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1)),
    "scatter": lambda x: torch.zeros(x.shape[0], 3).index_copy(0, torch.arange(x.shape[0]), x),
    "mask": lambda x: x[x > 20] * 1,
    "mask, then slice": lambda x: x[x > 20][1:] * 1,
    "nonzero": lambda x: (x > 20).nonzero()[:3] * 1,
    "unique": lambda x: x.floor().unique()[-2:] * 1,
    "where": lambda x: torch.where(x > 20)[0][:2] * 1,
    "lstm": lambda x: LSTM(x[:, None])[0],
    "gru": lambda x: GRU(x[None])[0],
    "convolution": lambda x: CONV(x.T[None]),
    "pool": lambda x: POOL(x.T[None]).flatten(1),
    "norm": lambda x: F.layer_norm(NORM(x), (3,)),
    "interpolate": lambda x: F.interpolate(x.T[None], size=x.shape[0] * 2),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "mean": lambda x: x.sum(0) / x.shape[0],
    "written": lambda x: x.clone().index_put_((torch.tensor([0]),), torch.zeros(3)),
    "slice written": lambda x: torch.zeros_like(x).add_(1)[:4].mul_(2),
    "repeat": lambda x: x.repeat(2, 1)[: x.shape[0] + 1] * 1,
    "size as result": lambda x: (x * 1, x.shape[0])[0] if x.dim() == 2 else x,
}


def outcome(f, x):
    try:
        return f(x)
    except Exception as error:
        return error


def equal(got, want):
    return got.shape == want.shape and torch.allclose(got, want, rtol=0, atol=0, equal_nan=True)


def inputs(n):
    """A part of a larger memory, whose other numbers would be seen."""
    return torch.arange(600.0).reshape(200, 3)[100 : 100 + n] % 41


@pytest.mark.parametrize("example", [6, 5])
@pytest.mark.parametrize("low", [0, 1, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_exported_at_any_size(name, low, example):
    f = FUNCTIONS[name]
    dim = Dim("n", min=low, max=LARGEST)
    with torch.no_grad():
        try:
            program = export(f, (inputs(example),), dynamic_shapes=({0: dim},)).module()
        except (RuntimeError, ValueError, IndexError):
            return  # refused
        ran = 0
        for n in (0, 1, 2, low, 3, 4, 5, 6, 7, 12, 13, 18, 19, LARGEST - 1, LARGEST, LARGEST + 1):
            got, want = outcome(program, inputs(n)), outcome(f, inputs(n))
            ran += not isinstance(got, Exception)
            assert isinstance(got, Exception) or equal(got, want), (name, n, got, want)
        assert ran


@pytest.mark.parametrize("name", FUNCTIONS)
def test_traced_at_any_size(name):
    f = FUNCTIONS[name]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.jit.trace(f, (inputs(6),))
        except (RuntimeError, ValueError, IndexError):
            return
        for n in (0, 1, 2, 5, 6, 7, 12, 18, 41):
            got, want = outcome(program, inputs(n)), outcome(f, inputs(n))
            assert isinstance(got, Exception) or equal(got, want), (name, n, got, want)


def test_what_must_be_exported():
    """The common ways to take sizes apart are computed, not refused."""
    refused = {"parity", "modulo 7", "threshold", "split", "unbind", "rows"}
    for name in FUNCTIONS.keys() - refused:
        with torch.no_grad():
            sizes = ({0: Dim("n", min=2, max=LARGEST)},)
            program = export(FUNCTIONS[name], (inputs(6),), dynamic_shapes=sizes).module()
            assert equal(program(inputs(6)), FUNCTIONS[name](inputs(6))), name


def test_sizes_told_as_results():
    with pytest.raises(NotImplementedError, match="depends on the sizes"):
        export(lambda x: (x, x.shape[0]), (torch.ones(3),), dynamic_shapes=({0: Dim("n")},))


def test_derived_and_odd_names():
    n = Dim("größe", min=1, max=9)
    for size, dim in ((6, 2 * n), (5, n + 1)):
        program = export(lambda x: x * 2, (torch.ones(4, 3),), dynamic_shapes=({0: dim},))
        assert program.module()(torch.ones(size, 3)).shape == (size, 3)
    program = export(lambda x: x * 2, (torch.ones(4),), dynamic_shapes=({0: 2 * n},)).module()
    for size in (3, 20):
        with pytest.raises(torch.ShapeError):
            program(torch.ones(size))


def test_views_stay_within_their_storage():
    from warptape import _C

    x = torch.ones(6, 3)
    for start, length, step in ((0, 7, 1), (-1, 2, 1), (5, 2, 1), (0, 2, 6), (0, -1, 1), (0, 1 << 62, 1)):
        with pytest.raises(IndexError):
            _C._private._slice(x, 0, start, length, step)
    with pytest.raises(ValueError):
        _C._private._slice(x, 0, 0, 1, 0)
    for start, end, step in ((0, 99, 1), (-99, 99, 2), (4, 2, 1), (-2, -1, 1), (1, -1, 1 << 62)):
        got = _C._private.slice(x, 0, start, end, step)
        assert got.shape == x[start:end:step].shape
    for size, stride, offset in (((7, 3), (3, 1), 0), ((6, 3), (3, 1), 1), ((1 << 62, 4), (1 << 61, 1), 0)):
        with pytest.raises((torch.ShapeError, ValueError)):
            x.as_strided(size, stride, offset)
    assert x[6:].shape == (0, 3) and x[::100].shape == (1, 3)
