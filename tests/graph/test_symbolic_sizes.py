"""Sizes that depend on values: exported programs compute with them, and depend on them in no other way."""

from __future__ import annotations

import io
import math

import pytest
import warptape as torch
from warptape import nn
from warptape.export import Dim, export, load, save
from warptape.export.passes import optimize_pass

EXAMPLE = torch.tensor([1.0, -2, 3, 4, -5, 6])
INPUTS = [
    EXAMPLE,
    torch.tensor([-1.0, -2, -3, -4, -5, 6]),
    torch.arange(1.0, 7),
    -torch.ones(6),
    torch.tensor([0.0, 2, 2, 2, -2, -2]),
]
FUNCTIONS = {
    "masked mean": lambda x: x[x > 0].sum() / x[x > 0].numel(),
    "zeros": lambda x: torch.zeros((x > 0).nonzero().shape[0], 2),
    "bincount": lambda x: x * torch.bincount(x.clamp(min=0).long()).shape[0],
    "size()": lambda x: x[x > 0].size(0) + x,
    "arithmetic": lambda x: torch.full((2 * x[x > 0].shape[0] + 1,), 3.0) * (7 - x[x > 0].numel() * 2),
    "half": lambda x: torch.ones(x[x > 0].numel() // 2, 3),
    "halves of halves": lambda x: torch.ones((x[x > 0].numel() + 5) // 2 // 2 + 1),
    "two counts": lambda x: torch.ones(x[x > 0].numel(), x[x < 0].numel()) * x[x < 0],
    "product": lambda x: torch.zeros(x[x > 0].numel() * x[x < 0].numel()),
    "difference": lambda x: x - (x[x > 0].numel() - x[x < 0].numel()),
    "view": lambda x: torch.stack([x[x > 0]] * 2).view(2 * x[x > 0].numel(), 1),
    "all of a matrix": lambda x: torch.zeros(x.reshape(2, 3)[:, :2][x.reshape(2, 3)[:, 0] > 0].numel()),
    "the same size": lambda x: torch.zeros(x[x > 0].shape) + x[x > 0],
    "repeat": lambda x: x[:2].repeat(x[x > 0].numel() + 1),
    "expand": lambda x: x[:1, None].expand(-1, x[x > 0].numel()) * 2,
    "quotient": lambda x: x / (x[x > 0].numel() / 3 + 1),
    "root": lambda x: x * (x[x > 0].numel() + 1) ** 0.5,
    "narrow": lambda x: x.narrow(0, 0, x[x > 0].numel()) * 1,
    "in place": lambda x: torch.zeros(x[x > 0].numel()).add_(x[x > 0]),
}


def same(got, want):
    alike = got.shape == want.shape and got.dtype == want.dtype
    return alike and torch.allclose(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_values(name):
    f = FUNCTIONS[name]
    program = export(f, (EXAMPLE,))
    file = io.BytesIO()
    save(program, file)
    file.seek(0)
    loaded = load(file)
    assert str(loaded) == str(program)
    modules = [
        p.module() for p in (program, loaded, optimize_pass(program), optimize_pass(program, freeze=True))
    ]
    for x in INPUTS:
        for module in modules:
            assert same(module(x), f(x)), name
    assert all(low == 0 for low, _ in program.range_constraints.values()) and program.range_constraints


@pytest.mark.parametrize("name", ["masked mean", "zeros", "arithmetic", "two counts"])
def test_beside_sizes_that_vary(name):
    f = FUNCTIONS[name]
    program = export(f, (EXAMPLE,), dynamic_shapes=({0: Dim("u0", min=2, max=40)},)).module()
    for n in (2, 3, 6, 13, 40):
        x = torch.arange(float(n)) - n // 3
        assert same(program(x), f(x))


@pytest.mark.parametrize("name", ["masked mean", "zeros", "arithmetic", "half"])
def test_as_fx(name):
    f = FUNCTIONS[name]
    module = export(f, (EXAMPLE,)).graph_module
    for x in INPUTS[:3]:
        (got,) = module(x) if isinstance(module(x), tuple) else (module(x),)
        assert same(got, f(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 2 if x[x > 0].numel() > 2 else x,
        lambda x: x * (x[x > 0].shape[0] == 2),
        lambda x: sum(range(x[x > 0].numel())) + x,
        lambda x: x * math.sqrt(x[x > 0].numel()),
        lambda x: x * int(x[x > 0].numel()),
        lambda x: x * len(x[x > 0]),
        lambda x: [x][x[x > 0].numel() - 4],
        lambda x: x * (x[x > 0].numel() % 2),
        lambda x: x * (x[x > 0].numel() // 2 * 3),
        lambda x: x * {4: 1}[x[x > 0].numel()],
        lambda x: torch.tensor(x[x > 0].numel()) + x,
        lambda x: x + x[x > 0].stride()[0],
        lambda x: (x, x[x > 0].numel()),
        lambda x: torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a / 2, (x,)) * bool(x[x > 0].numel()),
    ],
)
def test_refused(f):
    with pytest.raises((NotImplementedError, RuntimeError, TypeError, ValueError)):
        export(f, (EXAMPLE,))


def test_refusals_name_the_line():
    with pytest.raises(NotImplementedError, match=r"a size that depends on values at .*test_symbolic_sizes"):
        export(lambda x: x if x[x > 0].numel() > 2 else -x, (EXAMPLE,))


def test_a_file_that_does_not_say_what_a_symbol_is():
    from .stranger_files import opened, taken_apart

    text, parts = taken_apart(export(FUNCTIONS["zeros"], (EXAMPLE,)))
    assert "size=[u0, 2]" in text
    with pytest.raises(RuntimeError, match="nothing before tells what u0 is"):
        opened(text.replace("int64[u0, u1]", "int64[?, u1]"), parts)
    narrow = opened(text.replace("u0 in [0, inf]", "u0 in [0, 3]"), parts)
    assert narrow(INPUTS[1]).shape == (1, 2)
    with pytest.raises(torch.ShapeError, match="u0 = 4 is outside of the range"):
        narrow(EXAMPLE)


def test_dead_calls_that_tell_a_size_stay():
    program = export(lambda x: torch.zeros(x[x > 0].numel()), (EXAMPLE,))
    better = optimize_pass(program, freeze=True).module()
    for x in INPUTS:
        assert better(x).shape == x[x > 0].shape


class Scaled(nn.Module):
    def forward(self, x):
        y = x.flatten(1)
        return (y @ y.t()) / x.shape[1] ** 0.5 + x.shape[0]


def test_a_trace_computes_with_sizes_of_inputs():
    module = torch.jit.trace(Scaled(), (torch.ones(2, 3, 4),))
    for shape in ((2, 3, 4), (1, 1, 1), (5, 9, 2), (0, 3, 4)):
        x = torch.arange(float(math.prod(shape))).reshape(shape)
        assert same(module(x), Scaled()(x))
