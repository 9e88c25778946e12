"""Functions of nn.functional as the top level has them: the same values under its own arguments."""

import numpy as np
import pytest
import warptape as wt
from warptape.nn import functional as F

X, Y = (wt.arange(24.0).sin().reshape(2, 3, 4), wt.arange(24.0).cos().reshape(2, 3, 4))
P, SIGN = X.flatten(1).softmax(1), wt.tensor([1.0, -1.0])
ROW, COLUMN = X.reshape(6, 4), wt.tensor([1.0, 2.0, 3.0])
IMAGE, GRID = X.reshape(1, 2, 3, 4), Y.reshape(1, 3, 4, 2)
THETA = wt.tensor([[[1.0, 0.5, 0.1], [0.2, 1.0, -0.1]]])
CTC = (Y.log_softmax(-1), wt.tensor([[1], [2], [3]]), (2, 2, 2), (1, 1, 1))
INDEX = wt.tensor([1, 0, 1])

# (name, arguments at the root, the same call of nn.functional)
SAME = [
    ("embedding", (ROW, INDEX, 1), lambda: F.embedding(INDEX, ROW, 1)),
    ("embedding", (ROW, INDEX), lambda: F.embedding(INDEX, ROW)),
    ("adaptive_max_pool1d", (X, 2), lambda: F.adaptive_max_pool1d(X, 2, return_indices=True)),
    ("max_pool1d", (X, 2), lambda: F.max_pool1d(X, 2)),
    ("max_pool2d", (X, 2, (), 1), lambda: F.max_pool2d(X, 2, padding=1)),
    (
        "batch_norm",
        (X, COLUMN, COLUMN, None, None, True, 0.1, 1e-5, False),
        lambda: F.batch_norm(X, None, None, COLUMN, COLUMN, True),
    ),
    (
        "instance_norm",
        (X, COLUMN, COLUMN, None, None, True, 0.1, 1e-5, False),
        lambda: F.instance_norm(X, None, None, COLUMN, COLUMN),
    ),
    ("alpha_dropout", (X, 0.5, False), lambda: X),
    ("feature_alpha_dropout", (X, 1.0, True), lambda: F.feature_alpha_dropout(X, 1.0, True)),
    ("conv_tbc", (X, wt.ones(2, 4, 5), wt.ones(5), 1), lambda: F.conv1d(
        X.permute(1, 2, 0), wt.ones(5, 4, 2), wt.ones(5), padding=1).permute(2, 0, 1)),
    ("grid_sampler", (IMAGE, GRID, 1, 2, True), lambda:
        F.grid_sample(IMAGE, GRID, "nearest", "reflection", True)),
    ("affine_grid_generator", (THETA, (1, 1, 2, 3), False), lambda:
        F.affine_grid(THETA, (1, 1, 2, 3), False)),
    ("celu", (X, 0.5), lambda: F.celu(X, 0.5)),
    ("threshold", (X, 0.1, 9.0), lambda: F.threshold(X, 0.1, 9.0)),
    ("cosine_similarity", (X, Y, 2), lambda: F.cosine_similarity(X, Y, 2)),
    ("prelu", (X, SIGN[:1]), lambda: F.prelu(X, SIGN[:1])),
    ("pixel_shuffle", (wt.ones(1, 4, 2, 2), 2), lambda: F.pixel_shuffle(wt.ones(1, 4, 2, 2), 2)),
    ("binary_cross_entropy_with_logits", (X, Y, None, COLUMN[:, None], 2), lambda:
        F.binary_cross_entropy_with_logits(X, Y, pos_weight=COLUMN[:, None], reduction="sum")),
    ("cosine_embedding_loss", (X[:, 0], Y[:, 0], SIGN, 0.1, 0), lambda:
        F.cosine_embedding_loss(X[:, 0], Y[:, 0], SIGN, 0.1, reduction="none")),
    ("ctc_loss", (*CTC, 0, 2, True), lambda: F.ctc_loss(*CTC[:2], *CTC[2:], reduction="sum")),
    ("hinge_embedding_loss", (X[:, 0, 0], SIGN, 0.5), lambda:
        F.hinge_embedding_loss(X[:, 0, 0], SIGN, 0.5, reduction="none")),
    ("kl_div", (P.log(), P.flip(1), 0), lambda: F.kl_div(P.log(), P.flip(1), reduction="none")),
    ("margin_ranking_loss", (X[:, 0, 0], Y[:, 0, 0], SIGN, 0.3), lambda:
        F.margin_ranking_loss(X[:, 0, 0], Y[:, 0, 0], SIGN, 0.3, reduction="none")),
    ("poisson_nll_loss", (X, P.reshape(2, 3, 4), True, True, 1e-8, 2), lambda:
        F.poisson_nll_loss(X, P.reshape(2, 3, 4), full=True, reduction="sum")),
    ("triplet_margin_loss", (X[0], Y[0], X[1], 1.0, 2.0, 1e-6, True, 0), lambda:
        F.triplet_margin_loss(X[0], Y[0], X[1], swap=True, reduction="none")),
]  # fmt: skip


@pytest.mark.parametrize("name, args, same", SAME, ids=[row[0] for row in SAME])
def test_same_values(name, args, same):
    found, expected = getattr(wt, name)(*args), same()
    if isinstance(expected, tuple):
        assert [x.tolist() for x in found] == [x.tolist() for x in expected]
    else:
        assert found.tolist() == expected.tolist()


@pytest.mark.parity
@pytest.mark.parametrize("name, args, same", SAME, ids=[row[0] for row in SAME])
def test_values_beside_pytorch(name, args, same):
    torch = pytest.importorskip("torch")
    convert = lambda a: torch.tensor(a.tolist(), dtype=getattr(torch, str(a.dtype).split(".")[1]))
    theirs = getattr(torch, name)(*(convert(a) if isinstance(a, wt.Tensor) else a for a in args))
    ours = getattr(wt, name)(*args)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, theirs)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5)


def test_norms_of_weights_and_methods():
    v = wt.arange(1.0, 7.0).reshape(2, 3)
    assert wt.norm_except_dim(v, 2, 0).shape == (2, 1) and wt.norm_except_dim(v, 2, -1).shape == ()
    np.testing.assert_allclose(wt.norm_except_dim(v, 1, 1).tolist(), [[5, 7, 9]])
    unit = wt._weight_norm(v, wt.ones(2, 1), 0)
    np.testing.assert_allclose((unit * unit).sum(1).tolist(), [1, 1], rtol=1e-6)
    assert X.hardshrink(0.5).tolist() == F.hardshrink(X, 0.5).tolist()
    assert X.prelu(SIGN[:1]).tolist() == F.prelu(X, SIGN[:1]).tolist()
    with pytest.raises(TypeError, match=r"argument 'weight' .position 1. must be Tensor"):
        wt.embedding([1], INDEX)


@pytest.mark.parametrize("n", [1, 5, 64, 100])
def test_relu_passes_nan_and_the_sign_of_zero(n: int) -> None:
    """As PyTorch 2.13 does, which gives -0.0 for -0.0."""
    for value, expected in ((-0.0, -0.0), (0.0, 0.0), (-1.0, 0.0), (2.0, 2.0), (-np.inf, 0.0)):
        got = wt.relu(wt.full((n,), value)).numpy()
        assert np.array_equal(got, np.full(n, expected, np.float32))
        assert np.array_equal(np.signbit(got), np.full(n, np.signbit(expected)))
    assert np.isnan(wt.relu(wt.full((n,), float("nan"))).numpy()).all()
