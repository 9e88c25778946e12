"""The programs that a compiled function keeps."""

from __future__ import annotations

import pytest
import warptape as torch

MOST = 256


@pytest.mark.parametrize("grad", [False, True])
def test_there_are_so_many_at_most(grad: bool) -> None:
    w = torch.ones(2, requires_grad=grad)
    f = torch.compile(lambda x: (x * w * 2 + 1).relu().sum(-1), fullgraph=True)
    for _ in range(2):
        for n in range(1, MOST + 50):
            y = f(torch.full((n, 2), 3.0))
            assert y.tolist() == [14] * n
            if grad:
                w.grad = None
                y.sum().backward()
                assert w.grad.tolist() == [6.0 * n] * 2
    assert f.explain().graph_count <= 2 * MOST if grad else f.explain().graph_count == MOST


def test_those_in_use_stay() -> None:
    f = torch.compile(lambda x: (x * 2 + 1).sin(), fullgraph=True)
    often = torch.ones(3, 5)
    for n in range(1, MOST + 50):
        f(torch.ones(n))
        f(often)
    runs = [p["runs"] for p in f.region.programs()]
    assert len(runs) == MOST and max(runs) == MOST + 49
