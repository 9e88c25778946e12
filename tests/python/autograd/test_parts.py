"""Lists of views of one tensor: one node, whose backward writes the gradient of the whole once."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import warptape as torch

CUTS = {
    "split": lambda t: t.split(4, 1),
    "sizes": lambda t: t.split([2, 0, 7], 1),
    "chunk": lambda t: t.chunk(2, -1),
    "unbind": lambda t: t.unbind(1),
    "transposed": lambda t: t.transpose(0, 1).split(3, 0),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_gradients(cut: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    x = torch.randn(4, 9, 5, dtype=torch.float64, requires_grad=True)
    parts = cut(x)
    assert torch.autograd.gradcheck(lambda t: tuple(cut(t)), (x,))
    assert torch.autograd.gradgradcheck(lambda t: tuple(v * v for v in cut(t)), (x,))
    for i, part in enumerate(parts):  # one alone: the others' gradients are zeros
        (alone,) = torch.autograd.grad(part.sum(), x, retain_graph=True)
        expected = torch.zeros_like(x)
        cut(expected)[i].fill_(1)
        assert torch.equal(alone, expected)


@pytest.mark.parametrize(
    ("cut", "name"),
    [
        (lambda t: t.split(2), "SplitBackward0"),
        (lambda t: t.split([1, 3]), "SplitWithSizesBackward0"),
        (lambda t: t.chunk(2), "SplitBackward0"),
        (lambda t: t.unbind(), "UnbindBackward0"),
    ],
)
def test_parts_share_a_node(cut: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], name: str) -> None:
    parts = cut(torch.ones(4, 2, requires_grad=True))
    assert {part.grad_fn.name() for part in parts if part.grad_fn} == {name}
    assert [part.output_nr for part in parts] == list(range(len(parts)))


def test_of_nothing() -> None:
    x = torch.zeros(0, 3, requires_grad=True)
    assert [p.shape for p in x.chunk(3)] == [(0, 3)] * 3 and x.unbind(0) == ()
    torch.cat(x.split(2)).sum().backward()
    assert x.grad is not None and x.grad.shape == (0, 3)


def test_metadata_stays_as_long_as_the_node() -> None:
    class Note:
        pass

    y = torch.ones(2, requires_grad=True) * 2
    note = Note()
    y.grad_fn.metadata["note"] = note
    assert y.grad_fn.metadata == {"note": note}
    seen = weakref.ref(note)
    del note
    assert seen() is not None
    del y
    assert seen() is None
