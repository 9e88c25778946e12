"""inspect.signature of ops: PyTorch's parameters, from the declarations."""

from __future__ import annotations

import inspect

import pytest
import warptape as torch
import warptape.nn.functional as F

CASES = [
    (torch.softmax, "(input, dim, dtype=None, *, out=None)"),
    (torch.Tensor.softmax, "(self, dim, dtype=None, *, out=None)"),
    (torch.ones(2).softmax, "(dim, dtype=None, *, out=None)"),
    (torch.add, "(input, other, *, alpha=1, out=None)"),
    (torch.zeros, "(*size, dtype=None, device=None, requires_grad=False, out=None)"),
    (torch.bernoulli, "(input, *, generator=None, dtype=None, out=None)"),
    (torch.Tensor.view, "(self, *size)"),
    (torch.linalg.svd, "(A, full_matrices=True, *, driver=None, out=None)"),
    (torch.fft.rfft, "(input, n=None, dim=-1, norm=None, *, out=None)"),
    (
        F.cross_entropy,
        "(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction='mean', "
        "label_smoothing=0.0)",
    ),
]
PLACES = (torch, F, torch.linalg, torch.special, torch.fft, torch.masked, torch.signal.windows, torch.Tensor)


@pytest.mark.parametrize(("op", "expected"), CASES)
def test_signature(op, expected):
    assert str(inspect.signature(op)) == expected


def test_every_op_has_a_signature():
    ops = [getattr(place, name) for place in PLACES for name in dir(place) if hasattr(place, name)]
    ops = [op for op in ops if type(op) is type(torch.add)]
    assert len(ops) > 1000
    for op in ops:
        assert isinstance(inspect.signature(op), inspect.Signature)


def test_arguments_are_bound_by_name():
    bound = inspect.signature(torch.topk).bind(torch.ones(3), 2, largest=False)
    bound.apply_defaults()
    assert bound.arguments["k"] == 2 and bound.arguments["dim"] == -1 and not bound.arguments["largest"]
    with pytest.raises(TypeError, match="missing a required argument: 'k'"):
        inspect.signature(torch.topk).bind(torch.ones(3))
