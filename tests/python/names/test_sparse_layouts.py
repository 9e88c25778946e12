"""Sparse tensors of every layout, against the same arithmetic on dense ones."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import warptape as torch

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]
DENSE = torch.tensor([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, -4.0, 5.0]])
SHORT = torch.sparse_coo_tensor([[1, 0, 1]], [1.0, 2.0, 3.0], (3,))


def same(found, wanted):
    torch.testing.assert_close(found.to_dense(), wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_layout(layout):
    x, m = DENSE.to_sparse(layout=layout), torch.randn(4, 5)
    assert isinstance(x, torch.Tensor) and x.layout == layout and x.shape == (3, 4) and x._nnz() == 5
    assert (x.is_sparse, x.is_sparse_csr) == (layout == torch.sparse_coo, layout == torch.sparse_csr)
    for other in LAYOUTS:
        same(x.to_sparse(layout=other), DENSE)
    for found in (x @ m, torch.mm(x, m), torch.sparse.mm(x, m), torch.addmm(torch.zeros(1), x, m)):
        torch.testing.assert_close(found, DENSE @ m)
    torch.testing.assert_close(m.t() @ x.t(), m.t() @ DENSE.t())
    torch.testing.assert_close(torch.sparse.addmm(m[:3], x, m, beta=2, alpha=3), m[:3] * 2 + DENSE @ m * 3)
    torch.testing.assert_close(x @ m[:, 0], DENSE @ m[:, 0])
    same(x.t(), DENSE.t())
    same(x @ x.t(), DENSE @ DENSE.t())
    same(x + x, DENSE * 2)
    same(x - x, DENSE * 0)
    same(x * m[:, :3].t(), DENSE * m[:, :3].t())
    same(x * x, DENSE * DENSE)
    same(x / 2, DENSE / 2)
    same(-x.abs(), -DENSE.abs())
    same(x.double().float(), DENSE)
    same(x[2], DENSE[2])
    assert x.sum() == DENSE.sum() and x.detach().mul_(3).values().sum() == DENSE.sum() * 3
    same(m[:, :3].t().contiguous().sparse_mask(x), m[:, :3].t() * (DENSE != 0) / 3 * 3)
    again = [copy.deepcopy(x), pickle.loads(pickle.dumps(x))]
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    again.append(torch.load(file)["x"])
    for y in again:
        assert y.layout == layout
        torch.testing.assert_close(y.to_dense(), x.to_dense())
    with pytest.raises(NotImplementedError, match=f"exp is not implemented for {layout}"):
        x.exp()
    with pytest.raises(RuntimeError, match="sparse"):
        x.tolist()


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_reductions_of_rows(reduce, dtype):
    x, m = DENSE.to(dtype).to_sparse_csr(), torch.randn(4, 70).to(dtype)
    products = DENSE.to(dtype)[:, :, None] * m
    if reduce in ("sum", "mean"):
        wanted = products.sum(1) / ((DENSE != 0).sum(1, keepdim=True).clamp(min=1) if reduce == "mean" else 1)
    else:
        away = torch.where(DENSE[:, :, None] != 0, products, -torch.inf if reduce == "amax" else torch.inf)
        wanted = getattr(away, reduce)(1).nan_to_num(posinf=0, neginf=0)
    error = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(torch.sparse.mm(x, m, reduce), wanted.to(dtype), rtol=error, atol=error)


def test_gradients():
    # (1, 2) is named twice, and stays so
    index = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]])
    v = torch.randn(4, dtype=torch.float64, requires_grad=True)
    m = torch.randn(3, 17, dtype=torch.float64, requires_grad=True)

    def coo(v):
        return torch.sparse_coo_tensor(index, v, (2, 3))

    def csr(v):
        return torch.sparse_csr_tensor([0, 1, 4], [2, 0, 1, 2], v, (2, 3))

    check, again = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    for make in (coo, csr):
        assert check(lambda v, m, make=make: make(v) @ m, (v, m))
        assert again(lambda v, m, make=make: make(v) @ m, (v, m))
        assert check(lambda v, make=make: (make(v) * m[:2, :3].detach()).to_dense(), (v,))
        assert check(lambda v, make=make: (make(v) @ make(v).t()).to_dense(), (v,))
        assert check(lambda m, make=make: m.t() @ make(v.detach()).t(), (m,))
    for reduce in ("mean", "amax", "amin"):
        assert check(lambda v, m, reduce=reduce: torch.sparse.mm(csr(v), m, reduce), (v, m))
    assert check(lambda v: torch.sparse.softmax(coo(v), 1).to_dense(), (v,))
    assert check(lambda v: torch.sparse.log_softmax(coo(v), 0).coalesce().values(), (v,))
    x = csr(v.detach()).requires_grad_()
    (gradient,) = torch.autograd.grad((x @ m).sum(), x)
    assert gradient.layout == torch.sparse_csr and x.grad is None and x.is_leaf
    (x @ m).sum().backward()
    assert torch.equal(x.grad.to_dense(), gradient.to_dense())


def test_places():
    x = DENSE.to_sparse()
    same(x.index_select(1, torch.tensor([3, 0, 3])), DENSE[:, [3, 0, 3]])
    same(torch.cat([x, x], 1), torch.cat([DENSE, DENSE], 1))
    same(torch.stack([x, x], 1), torch.stack([DENSE, DENSE], 1))
    same(x.unsqueeze(0).permute(2, 0, 1), DENSE[None].permute(2, 0, 1))
    same(torch.narrow_copy(x, 1, 1, 2) if hasattr(torch, "narrow_copy") else x.narrow(1, 1, 2), DENSE[:, 1:3])
    same(torch.sparse.sum(x, 1), DENSE.sum(1))
    same(torch.sparse.sum(x, (0, 1)), DENSE.sum())
    same(x.to_sparse_csr().sum(1, keepdim=True), DENSE.sum(1, keepdim=True))
    blocks = torch.stack([x, x * 2])
    m = torch.randn(2, 4, 3)
    torch.testing.assert_close(torch.bmm(blocks, m), torch.bmm(torch.stack([DENSE, DENSE * 2]), m))
    hybrid = torch.sparse_coo_tensor([[2, 0, 2]], torch.ones(3, 4), (5, 4))
    assert hybrid.sparse_dim() == hybrid.dense_dim() == 1 and torch.sparse.sum(hybrid, 0).tolist() == [3] * 4
    same(torch.sparse.spdiags(torch.ones(1, 3), torch.zeros(1, dtype=torch.long), (3, 3)), torch.eye(3))
    sampled = torch.sparse.sampled_addmm(DENSE.to_sparse_csr(), torch.ones(3, 2), torch.ones(2, 4), beta=0.5)
    same(sampled, torch.where(DENSE != 0, DENSE / 2 + 2, 0.0))
    softmax = torch.sparse.softmax(x, 1).to_dense()
    wanted = torch.where(DENSE != 0, DENSE, -torch.inf).softmax(1).nan_to_num()
    torch.testing.assert_close(softmax, wanted)


def test_index_conversions():
    convert = torch._convert_indices_from_coo_to_csr
    assert convert(torch.tensor([0, 0, 1, 3]), 5).tolist() == [0, 2, 3, 3, 4, 4]
    assert convert(torch.tensor([], dtype=torch.int64), 2, out_int32=True).dtype == torch.int32
    crow, col = torch.tensor([0, 2, 2, 3]), torch.tensor([1, 2, 0])
    back = torch._convert_indices_from_csr_to_coo
    assert back(crow, col).tolist() == [[0, 0, 2], [1, 2, 0]]
    assert back(crow, col, transpose=True).tolist() == [[1, 2, 0], [0, 0, 2]]


def test_text():
    text = """tensor(crow_indices=tensor([0, 1, 3]),
       col_indices=tensor([2, 0, 2]),
       values=tensor([5., 2., 3.]), size=(2, 3), nnz=3,
       layout=torch.sparse_csr)"""
    assert repr(torch.sparse_csr_tensor([0, 1, 3], [2, 0, 2], [5.0, 2, 3])) == text
    text = """tensor(indices=tensor([[1, 0, 1]]),
       values=tensor([1., 2., 3.]),
       size=(3,), nnz=3, layout=torch.sparse_coo)"""
    assert repr(SHORT) == text
    assert "dtype" not in repr((torch.zeros(2, 3) > 0).to_sparse())
    long = torch.sparse_coo_tensor([list(range(20))], torch.ones(20), (20,))
    assert repr(long).splitlines()[:2] == [
        "tensor(indices=tensor([[ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13,",
        "                        14, 15, 16, 17, 18, 19]]),",
    ]


@pytest.mark.parametrize(
    "call, error, words",
    [
        (
            lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 5], [1.0, 2.0], (2, 3)),
            RuntimeError,
            "0 <= col_indices < ncols",
        ),
        (lambda: torch.sparse_csr_tensor([0, 2, 1], [0, 1], [1.0, 2.0], (2, 3)), RuntimeError, "-1. == nnz"),
        (lambda: torch.sparse_csr_tensor([0, 1], [0, 1], [1.0, 2.0], (2, 3)), RuntimeError, "3 compressed"),
        (lambda: torch.sparse_csr_tensor([0, 2], [0], [1.0, 2.0]), RuntimeError, "one length"),
        (lambda: DENSE.to_sparse_csr().indices(), RuntimeError, "indices expected sparse coordinate"),
        (lambda: DENSE.to_sparse_csr().row_indices(), RuntimeError, "expected sparse column"),
        (lambda: DENSE.to_sparse_csr() @ torch.ones(3), RuntimeError, r"got \(3, 4\) and \(3,\)"),
        (lambda: DENSE.to_sparse() @ torch.ones(4, dtype=torch.float64), RuntimeError, "the same dtype"),
        (lambda: torch.sparse.mm(DENSE.to_sparse_csr(), DENSE.t(), "prod"), ValueError, "reduce"),
        (lambda: DENSE.to_sparse() + 1, NotImplementedError, "add of a number"),
        (lambda: DENSE.to_sparse()[:2], NotImplementedError, "indexing by other than numbers"),
        (lambda: DENSE.to_sparse().index_select(0, torch.tensor([7])), IndexError, "out of range"),
        (lambda: torch.cat([DENSE.to_sparse(), DENSE.to_sparse_csr()]), NotImplementedError, "cat"),
        (lambda: torch.nn.functional.softmax(DENSE.to_sparse(), 0), NotImplementedError, "softmax"),
        (lambda: torch.sparse_coo_tensor((2, 3)).numpy(), TypeError, "to_dense"),
        (
            lambda: torch.sparse_compressed_tensor([0], [], [], layout="torch.sparse_bsr"),
            NotImplementedError,
            "bsr",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_indices_are_checked_where_they_are_read():
    crow, col, one = torch.tensor([0, 2]), torch.tensor([0, 9]), torch.ones(2)
    for bad in ((crow, col), (torch.tensor([0, 5]), col * 0), (torch.tensor([-3, 2]), col * 0)):
        with pytest.raises(IndexError):
            torch._C._private._csr_matmul(*bad, one, torch.ones(3, 2))
