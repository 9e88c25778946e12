"""Sparse matrices, against the same arithmetic on dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as torch

INDICES, VALUES = [[0, 1, 1, 0], [2, 0, 2, 2]], [1.0, 2.0, 3.0, 4.0]
DENSE = [[0.0, 0.0, 5.0], [2.0, 0.0, 3.0]]  # (0, 2) is named twice


def make(**options):
    return torch.sparse_coo_tensor(np.array(INDICES, np.int32), torch.tensor(VALUES), (2, 3), **options)


def test_dense_and_back():
    x = make()
    assert x.to_dense().tolist() == DENSE and x.shape == (2, 3) and x._nnz() == 4 and x.is_sparse
    assert x.t().to_dense().tolist() == torch.tensor(DENSE).t().tolist()
    once = x.coalesce()
    assert once.indices().tolist() == [[0, 1, 1], [2, 0, 2]] and once.values().tolist() == [5, 2, 3]
    again = torch.tensor(DENSE).to_sparse()
    assert again.indices().tolist() == once.indices().tolist() and again.to_dense().tolist() == DENSE
    assert torch.sparse_coo_tensor(INDICES, VALUES).shape == (2, 3)
    assert torch.sparse.FloatTensor(INDICES, [1, 2, 3, 4]).dtype == torch.float32
    hybrid = torch.sparse_coo_tensor([[0, 2]], [[1.0, 2.0], [3.0, 4.0]], (3, 2))
    assert hybrid.to_dense().tolist() == [[1, 2], [0, 0], [3, 4]]


def test_arithmetic():
    x, dense, m = make(), torch.tensor(DENSE), torch.arange(6.0).reshape(3, 2)
    for found in (x @ m, torch.spmm(x, m), torch.sparse.mm(x, m), x.matmul(m)):
        assert torch.equal(found, dense @ m)
    assert torch.equal(x @ m[:, 0], dense @ m[:, 0]) and torch.equal(m.t() @ x.t(), m.t() @ dense.t())
    assert torch.equal(torch.ones(2, 3) + x, dense + 1) and torch.equal((x + x).to_dense(), dense * 2)
    assert torch.equal((2 * x / 4).to_dense(), dense / 2) and float(torch.sparse.sum(x)) == 10
    assert x.to(torch.float64).dtype == torch.float64 and x.sum(0).to_dense().tolist() == [2, 0, 8]
    assert (
        torch.eye(2) + torch.sparse_coo_tensor([[0], [1]], torch.ones(1), (2, 2), dtype=torch.int64)
    ).tolist() == [[1, 1], [0, 1]]


def test_buffer_of_a_module():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("adjacency", make(), persistent=False)
    model.double().to("cpu")
    assert model.adjacency.dtype == torch.float64 and "adjacency" not in model.state_dict()


def test_gradients():
    x, m = make(requires_grad=True), torch.arange(6.0).reshape(3, 2).requires_grad_()
    (x @ m).sum().backward()
    assert m.grad.tolist() == [[2, 2], [0, 0], [8, 8]]
    # the gradient of a value in row i, column j is the sum of m's row j
    assert x.grad._values().tolist() == [9, 1, 9] and not x._values().requires_grad


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda: torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (2,)),
            "for dim 0, size is 2 but found index 2",
        ),
        (lambda: torch.sparse_coo_tensor([[0, -1]], [1.0, 2.0], (2,)), "found negative index -1"),
        (
            lambda: torch.sparse_coo_tensor([[0, 1]], [1.0]),
            r"expected indices of \(sparse dims, n\) and n values",
        ),
        (lambda: torch.sparse_coo_tensor([[0]], [1.0], (2, 2)), "expected a size of 1 sparse dims"),
        (lambda: make().indices(), r"Cannot get indices on an uncoalesced tensor"),
        (lambda: make() @ torch.ones(2, 2), r"mm: expected \(m, k\) and \(k, n\), got \(2, 3\) and \(2, 2\)"),
        (lambda: make() + torch.sparse_coo_tensor([[0], [0]], [1.0], (1, 1)), "expected two sizes alike"),
    ],
)
def test_errors(call, words):
    with pytest.raises(RuntimeError, match=words):
        call()
