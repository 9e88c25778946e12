"""Sparse gradients: of embedding(sparse=True), how they add up, and the optimizers that take them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import warptape as wt
import warptape.nn.functional as F
from warptape import nn, optim

ROWS, DIM = 7, 3
INDEX = wt.tensor([[1, 4, 1], [0, 4, 6]])


def table(seed: int = 0) -> wt.Tensor:
    return wt.randn(ROWS, DIM, generator=wt.Generator().manual_seed(seed)).requires_grad_()


def gradients(function: Any) -> tuple[Any, wt.Tensor]:
    """Of the sum of function(weight, sparse) squared: with and without sparse."""
    out = []
    for sparse in (True, False):
        weight = table()
        function(weight, sparse).square().sum().backward()
        out.append(weight.grad)
    return out[0], out[1]


LOOKUPS: dict[str, Any] = {
    "plain": lambda w, sparse: F.embedding(INDEX, w, sparse=sparse),
    "int32": lambda w, sparse: F.embedding(INDEX.int(), w, sparse=sparse),
    "padding": lambda w, sparse: F.embedding(INDEX, w, padding_idx=4, sparse=sparse),
    "by frequency": lambda w, sparse: F.embedding(INDEX, w, scale_grad_by_freq=True, sparse=sparse),
    "no index": lambda w, sparse: F.embedding(INDEX[:0], w, sparse=sparse),
    "bags": lambda w, sparse: F.embedding_bag(INDEX, w, sparse=sparse),
    "bags at offsets": lambda w, sparse: F.embedding_bag(
        INDEX.flatten(), w, wt.tensor([0, 2, 2]), mode="sum", sparse=sparse
    ),
    "twice": lambda w, sparse: (
        F.embedding(INDEX, w, sparse=sparse) + F.embedding(INDEX.flip(0), w, sparse=sparse)
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_sparse_gradient_is_the_dense_one(name: str) -> None:
    sparse, dense = gradients(LOOKUPS[name])
    assert sparse.is_sparse and sparse.layout == wt.sparse_coo and not dense.is_sparse
    assert sparse.shape == dense.shape and sparse.dtype == dense.dtype
    wt.testing.assert_close(sparse.to_dense(), dense)


def test_rows_that_are_looked_up_and_no_others_are_there() -> None:
    weight = table()
    F.embedding(INDEX, weight, padding_idx=4, sparse=True).sum().backward()
    assert weight.grad.coalesce().indices().tolist() == [[0, 1, 6]]
    assert weight.grad.coalesce().values().tolist() == [[1.0] * 3, [2.0] * 3, [1.0] * 3]


def test_gradients_add_up_over_passes_and_become_dense_beside_a_dense_one() -> None:
    weight = table()
    for _ in range(2):
        F.embedding(INDEX, weight, sparse=True).sum().backward()
    assert weight.grad.is_sparse
    twice = weight.grad.to_dense()
    weight.sum().backward()
    assert not weight.grad.is_sparse
    wt.testing.assert_close(weight.grad, twice + 1)
    F.embedding(INDEX, weight, sparse=True).sum().backward()
    wt.testing.assert_close(weight.grad, twice * 1.5 + 1)


@pytest.mark.parametrize("sparse_first", [True, False])
def test_a_tied_weight_gets_a_dense_gradient(sparse_first: bool) -> None:
    found = []
    for sparse in (True, False):
        weight = table()
        rows, product = F.embedding(INDEX, weight, sparse=sparse).sum(), wt.ones(2, DIM) @ weight.t()
        (rows + product.sum() if sparse_first else product.sum() + rows).backward()
        found.append(weight.grad)
    assert not found[0].is_sparse
    wt.testing.assert_close(*found)


def test_grad_hooks_and_anomaly_mode_see_the_sparse_tensor() -> None:
    weight, seen = table(), []
    weight.register_hook(lambda g: seen.append(g.is_sparse))
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.is_sparse))
    with wt.autograd.detect_anomaly():
        loss = F.embedding(INDEX, weight, sparse=True).sum()
        (found,) = wt.autograd.grad(loss, weight, retain_graph=True)
        loss.backward()
    assert found.is_sparse and seen == [True, True, True]
    wt.testing.assert_close(weight.grad.to_dense(), found.to_dense())


def test_a_gradient_is_kept_copied_and_saved() -> None:
    layer = nn.Embedding(ROWS, DIM, sparse=True)
    layer(INDEX).sum().backward()
    dense = layer.weight.grad.to_dense()
    for other in (copy.deepcopy(layer.weight.grad), pickle.loads(pickle.dumps(layer.weight.grad))):
        wt.testing.assert_close(other.to_dense(), dense)
    layer.zero_grad()
    assert layer.weight.grad is None


def test_a_gradient_is_changed_in_place() -> None:
    weight = table()
    F.embedding(INDEX, weight, sparse=True).sum().backward()
    before = weight.grad.to_dense()
    weight.grad.mul_(3)
    wt.testing.assert_close(weight.grad.to_dense(), 3 * before)
    optim.SGD([weight], 0.1).zero_grad(set_to_none=False)
    assert weight.grad.is_sparse and not weight.grad.to_dense().any()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("factor", [1.0, float("inf")])
def test_a_scaler_unscales_and_judges_a_sparse_gradient(fused: bool, factor: float) -> None:
    weight = table()
    before = weight.detach().clone()
    optimizer, scaler = optim.SGD([weight], 0.5, fused=fused), wt.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale((factor * F.embedding(INDEX, weight, sparse=True)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    rows = wt.tensor([1.0, 2, 0, 0, 2, 0, 1])[:, None]
    wt.testing.assert_close(weight.detach(), before - 0.5 * rows if factor == 1 else before)
    assert scaler.get_scale() == (4.0 if factor == 1 else 2.0)


def test_function_transforms() -> None:
    def loss(weight: wt.Tensor) -> wt.Tensor:
        return F.embedding(INDEX, weight, sparse=True).square().sum()

    _, dense = gradients(LOOKUPS["plain"])
    wt.testing.assert_close(wt.func.grad(loss)(table().detach()).to_dense(), dense)
    both = wt.func.vmap(wt.func.grad(loss))(
        wt.stack([table().detach()] * 2)
    )  # dense, for rows have a dim more
    wt.testing.assert_close(both, wt.stack([dense] * 2))


def test_a_compiled_function_has_the_sparse_gradient() -> None:
    weight = table()
    step = wt.compile(lambda w: (F.embedding(INDEX, w, sparse=True) * 2).square().sum())
    for _ in range(4):
        weight.grad = None
        step(weight).backward()
        assert weight.grad.is_sparse
        wt.testing.assert_close(weight.grad.to_dense(), 4 * gradients(LOOKUPS["plain"])[1])


# ---- optimizers ----

MAKE: dict[str, Any] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD maximize": lambda p: optim.SGD(p, 0.1, maximize=True),
    "SGD momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "SGD decay": lambda p: optim.SGD(p, 0.1, weight_decay=0.1),
    "Adagrad": lambda p: optim.Adagrad(p, 0.1, lr_decay=0.01),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_step_is_that_of_the_dense_gradient(name: str) -> None:
    found = []
    for sparse in (True, False):
        weight, other = table(), table(1)
        optimizer = MAKE[name]([weight, other])
        for index in (INDEX, INDEX[0], INDEX[1] // 2):
            optimizer.zero_grad()
            (F.embedding(index, weight, sparse=sparse) + other[0]).square().sum().backward()
            optimizer.step()
        found.append((weight, other))
    for sparse_one, dense_one in zip(*found, strict=True):
        wt.testing.assert_close(sparse_one, dense_one)


def test_sparse_adam_leaves_other_rows_alone() -> None:
    layer = nn.Embedding(ROWS, DIM, sparse=True)
    optimizer, before = optim.SparseAdam(layer.parameters(), lr=0.1), layer.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        layer(INDEX).square().sum().backward()
        optimizer.step()
    changed = (layer.weight.detach() != before).any(1)
    assert changed.tolist() == [True, True, False, False, True, False, True]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adadelta", "NAdam"])
def test_other_optimizers_refuse_a_sparse_gradient(name: str) -> None:
    layer = nn.Embedding(ROWS, DIM, sparse=True)
    optimizer, before = getattr(optim, name)(layer.parameters()), layer.weight.detach().clone()
    layer(INDEX).sum().backward()
    with pytest.raises(
        RuntimeError, match=f"{name} does not support sparse gradients, please consider SparseAdam"
    ):
        optimizer.step()
    assert wt.equal(layer.weight, before)


def test_adagrad_refuses_weight_decay() -> None:
    layer = nn.Embedding(ROWS, DIM, sparse=True)
    layer(INDEX).sum().backward()
    with pytest.raises(RuntimeError, match="not compatible with sparse gradients"):
        optim.Adagrad(layer.parameters(), weight_decay=0.1).step()
