"""SparseAdam: a step of the rows that a gradient names, Adam's where it names all."""

from __future__ import annotations

import pytest
import warptape as wt

ROWS = wt.tensor([[0, 2]])


def sparse(values: wt.Tensor, size: tuple[int, ...]) -> wt.Tensor:
    return wt.sparse_coo_tensor(ROWS, values, size)


@pytest.mark.parametrize("maximize", [False, True])
def test_named_rows_take_adams_step(maximize: bool) -> None:
    wt.manual_seed(0)
    start = wt.randn(4, 3)
    p, dense = start.clone().requires_grad_(), start[ROWS[0]].clone().requires_grad_()
    ours = wt.optim.SparseAdam([p], lr=0.1, maximize=maximize)
    adam = wt.optim.Adam([dense], lr=0.1, maximize=maximize)
    for _ in range(3):
        g = wt.randn(2, 3)
        p.grad, dense.grad = sparse(g, (4, 3)), g
        ours.step()
        adam.step()
    wt.testing.assert_close(p.detach()[ROWS[0]], dense.detach())
    assert p.detach()[1::2].tolist() == start[1::2].tolist()
    assert ours.state[p]["exp_avg"][1::2].abs().sum() == 0


def test_rows_named_twice_are_added_first() -> None:
    a, b = wt.ones(2, 1).requires_grad_(), wt.ones(2, 1).requires_grad_()
    a.grad = wt.sparse_coo_tensor(wt.tensor([[1, 1]]), wt.tensor([[1.0], [2.0]]), (2, 1))
    b.grad = wt.sparse_coo_tensor(wt.tensor([[1]]), wt.tensor([[3.0]]), (2, 1))
    optimizer = wt.optim.SparseAdam([a, b])
    optimizer.step()
    assert a.tolist() == b.tolist() and a[0] == 1 and a[1] < 1


def test_what_is_refused() -> None:
    p = wt.ones(3, requires_grad=True)
    optimizer = wt.optim.SparseAdam([p])
    p.grad = wt.ones(3)
    with pytest.raises(RuntimeError, match="does not support dense gradients"):
        optimizer.step()
    assert p.tolist() == [1, 1, 1] and not optimizer.state[p]
    with pytest.raises(ValueError, match="does not support complex parameters"):
        wt.optim.SparseAdam([wt.ones(2, dtype=wt.complex64, requires_grad=True)])
    for options in ({"betas": (1.0, 0.9)}, {"eps": -1.0}, {"lr": -1.0}):
        with pytest.raises(ValueError, match="Invalid"):
            wt.optim.SparseAdam([p], **options)
