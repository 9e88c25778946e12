"""Layers by hand: text, state in training and in eval, randomness, refusals. Values: also test_parity."""

import numpy as np
import pytest
import warptape as wt
from layer_table import LAYERS
from warptape import nn
from warptape.nn import functional as F


@pytest.mark.parametrize("text, _, expected", LAYERS, ids=[row[0] for row in LAYERS])
def test_text(text, _, expected):
    assert repr(eval("nn." + text, {"nn": nn, "tensor": wt.tensor})) == expected


def close(ours, reference, tolerance=1e-5):
    np.testing.assert_allclose(ours.detach().numpy(), reference, rtol=tolerance, atol=tolerance)


X = np.linspace(-7, 7, 29, dtype=np.float64)
SIGMOID = 1 / (1 + np.exp(-X))
SOFTPLUS = np.log1p(np.exp(X))
FUNCTIONS = {
    "hardtanh": (lambda x: F.hardtanh(x, -1.5, 2.5), np.clip(X, -1.5, 2.5)),
    "relu6": (F.relu6, np.clip(X, 0, 6)),
    "hardsigmoid": (F.hardsigmoid, np.clip(X + 3, 0, 6) / 6),
    "hardswish": (F.hardswish, X * np.clip(X + 3, 0, 6) / 6),
    "selu": (F.selu, 1.0507009873554805 * np.where(X > 0, X, 1.6732632423543772 * np.expm1(X))),
    "celu": (lambda x: F.celu(x, 2.0), np.where(X > 0, X, 2 * np.expm1(X / 2))),
    "mish": (F.mish, X * np.tanh(SOFTPLUS)),
    "threshold": (lambda x: F.threshold(x, 1.0, -9.0), np.where(X > 1, X, -9)),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), np.where(X > 0, X, 0.2 * X)),
    "prelu": (lambda x: F.prelu(x, wt.tensor([0.5], dtype=wt.float64)), np.where(X > 0, X, 0.5 * X)),
    "logsigmoid": (F.logsigmoid, np.log(SIGMOID)),
    "sigmoid": (F.sigmoid, SIGMOID),
    "tanh": (F.tanh, np.tanh(X)),
    "softsign": (F.softsign, X / (1 + np.abs(X))),
    "tanhshrink": (F.tanhshrink, X - np.tanh(X)),
    "softshrink": (lambda x: F.softshrink(x, 1.0), np.sign(X) * np.maximum(np.abs(X) - 1, 0)),
    "hardshrink": (lambda x: F.hardshrink(x, 1.2), np.where(np.abs(X) > 1.2, X, 0)),
    "glu": (lambda x: F.glu(x[:28]), X[:14] * SIGMOID[14:28]),
    "softmin": (lambda x: F.softmin(x, 0), np.exp(-X) / np.exp(-X).sum()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activation_values_and_slopes(name):
    function, expected = FUNCTIONS[name]
    x = wt.tensor(X.tolist(), dtype=wt.float64)
    close(function(x), expected, 1e-12)
    # The slope against a central difference, at points that are no kink of any of them.
    at = wt.tensor((X[:28] + 0.137).tolist(), dtype=wt.float64, requires_grad=True)
    function(at).sum().backward()
    for i in range(0, 28, 5):
        sides = []
        for step in (1e-5, -1e-5):
            moved = at.detach().clone()
            moved[i] += step
            sides.append(function(moved).sum().item())
        assert at.grad[i].item() == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-6)


@pytest.mark.parametrize(
    "function", [F.relu6, F.hardtanh, F.hardsigmoid, F.hardswish, F.selu, F.celu, F.mish, F.rrelu]
)
def test_inplace_writes_over_the_input_and_keeps_the_gradient(function):
    leaf = wt.tensor([-2.5, -0.5, 0.7, 2.0], requires_grad=True)
    middle = leaf * 1
    out = function(middle, inplace=True)
    assert out is middle
    out.sum().backward()
    other = leaf.detach().clone().requires_grad_()
    function(other).sum().backward()
    assert leaf.grad.tolist() == pytest.approx(other.grad.tolist())


def test_kinks_have_pytorchs_slope():
    x = wt.tensor([-1.0, 1.0, 0.0], requires_grad=True)
    F.hardtanh(x).sum().backward()
    assert x.grad.tolist() == [0, 0, 1]


def test_nan_stays():
    nan = wt.tensor([float("nan")])
    for function in (F.hardtanh, F.relu6, F.softshrink, F.hardshrink, F.hardswish, F.logsigmoid, F.mish):
        assert bool(function(nan).isnan().all()), function.__name__


def test_gradient_of_shrink_functions():
    for function in (F.softshrink, F.hardshrink):
        x = wt.tensor([-2.0, -0.5, 0.0, 0.5, 2.0, float("nan")], requires_grad=True)
        function(x).sum().backward()
        assert x.grad.tolist() == [1, 0, 0, 0, 1, 1], function.__name__


def test_batch_norm_tracks_and_uses_statistics():
    layer = nn.BatchNorm1d(2, momentum=0.5)
    x = wt.tensor([[1.0, 10.0], [3.0, 30.0]])
    close(layer(x), [[-1, -1], [1, 1]], 1e-4)
    assert layer.running_mean.tolist() == [1, 10]
    assert layer.running_var.tolist() == pytest.approx([0.5 + 0.5 * 2, 0.5 + 0.5 * 200])
    assert layer.num_batches_tracked.item() == 1
    layer.eval()
    close(layer(x), (x.numpy() - [1, 10]) / np.sqrt([1.5, 100.5]), 1e-4)
    assert layer.num_batches_tracked.item() == 1
    layer.reset_running_stats()
    assert layer.running_var.tolist() == [1, 1] and layer.num_batches_tracked.item() == 0


def test_batch_norm_without_momentum_takes_the_mean_of_all_batches():
    layer = nn.BatchNorm1d(1, momentum=None)
    for value in (2.0, 4.0, 9.0):
        layer(wt.tensor([[value - 1], [value + 1]]))
    assert layer.running_mean.item() == pytest.approx(5.0)


def test_instance_norm_tracks_the_mean_over_samples():
    layer = nn.InstanceNorm1d(1, track_running_stats=True, momentum=1.0)
    out = layer(wt.tensor([[[1.0, 3.0]], [[5.0, 9.0]]]))
    close(out, [[[-1, 1]], [[-1, 1]]], 1e-4)
    assert layer.running_mean.item() == pytest.approx((2 + 7) / 2)
    assert layer.running_var.item() == pytest.approx((2 + 8) / 2)
    assert nn.InstanceNorm2d(3)(wt.randn(3, 4, 5)).shape == (3, 4, 5)


def test_embedding_looks_up_rows_and_leaves_padding_alone():
    table = nn.Embedding(4, 3, padding_idx=1)
    assert table.weight[1].tolist() == [0, 0, 0]
    table(wt.tensor([[0, 1], [1, 3]])).sum().backward()
    assert table.weight.grad.tolist() == [[1] * 3, [0] * 3, [0] * 3, [1] * 3]
    weight = wt.arange(6.0).reshape(3, 2)
    pretrained = nn.Embedding.from_pretrained(weight)
    assert not pretrained.weight.requires_grad
    assert pretrained(wt.tensor([2])).tolist() == [[4, 5]]
    assert nn.Embedding.from_pretrained(weight, freeze=False).weight.requires_grad


def test_embedding_divides_a_rows_gradient_by_how_often_it_is_looked_up():
    weight, given = wt.zeros(4, 2, requires_grad=True), wt.tensor([[[1.0], [2.0]], [[4.0], [3.0]]])
    (F.embedding(wt.tensor([[0, 1], [1, 3]]), weight, scale_grad_by_freq=True) * given).sum().backward()
    assert weight.grad[:, 0].tolist() == [1, 3, 0, 3]
    weight.grad = None
    F.embedding_bag(wt.tensor([[0, 1], [1, 3]]), weight, scale_grad_by_freq=True, mode="sum").sum().backward()
    assert weight.grad[:, 0].tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("dtype", [wt.float32, wt.float64, wt.bfloat16, wt.float16])
@pytest.mark.parametrize("dim", [1, 16, 67, 300])
def test_bags_are_the_same_with_and_without_gradients(dtype, dim):
    weight = wt.randn(dim, 9, dtype=dtype).t()
    rows, flat = wt.randint(0, 9, (6, 5), dtype=wt.int32), wt.randint(0, 9, (30,))
    starts, factors = wt.tensor([0, 4, 4, 20, 29]), wt.randn(30, dtype=dtype)
    calls = [
        {"input": given, "mode": mode, "padding_idx": padding, **more}
        for given, more in ((rows, {}), (flat, {"offsets": starts}))
        for mode in ("sum", "mean")
        for padding in (None, 3, -1)
    ]
    calls.append({"input": flat, "offsets": starts, "mode": "sum", "per_sample_weights": factors})
    calls.append({"input": flat, "offsets": starts, "include_last_offset": True})
    recorded = weight.clone().requires_grad_()
    for options in calls:
        tolerance = {wt.bfloat16: 5e-2, wt.float16: 8e-3, wt.float32: 1e-5, wt.float64: 1e-12}[dtype]
        wt.testing.assert_close(
            F.embedding_bag(weight=weight, **options),
            F.embedding_bag(weight=recorded, **options).detach(),
            rtol=tolerance,
            atol=tolerance,
        )


def test_bags_refuse_indices_beyond_the_table():
    for index in (4, -1):
        with pytest.raises(IndexError, match="embedding"):
            F.embedding_bag(wt.tensor([[0, index]]), wt.ones(4, 3))
    assert F.embedding_bag(wt.zeros(0, 2, dtype=wt.int64), wt.ones(4, 3)).shape == (0, 3)
    assert F.embedding_bag(wt.zeros(2, 0, dtype=wt.int64), wt.ones(4, 3)).tolist() == [[0] * 3] * 2


def test_batch_norm_of_no_elements_leaves_the_running_statistics():
    layer = nn.BatchNorm1d(3)
    out = layer(wt.ones(0, 3, 2))
    out.sum().backward()
    assert out.shape == (0, 3, 2) and layer.running_mean.tolist() == [0] * 3
    assert layer.weight.grad.tolist() == [0] * 3


DROPOUTS = [
    (nn.Dropout, (1000,)),
    (nn.Dropout1d, (1000, 7)),
    (nn.Dropout1d, (10, 100, 7)),
    (nn.Dropout2d, (10, 100, 3, 2)),
    (nn.Dropout3d, (1000, 3, 2, 2)),
    (nn.Dropout3d, (10, 100, 3, 2, 2)),
]


@pytest.mark.parametrize("kind, shape", DROPOUTS)
def test_dropout_drops_whole_channels_at_its_rate(kind, shape):
    wt.manual_seed(0)
    layer = kind(0.3)
    units = layer(wt.ones(shape)).reshape(1000, -1)
    kept = units[:, 0]
    assert bool((units == kept.unsqueeze(1)).all())
    assert kept.max().item() == pytest.approx(1 / 0.7)
    assert (kept != 0).float().mean().item() == pytest.approx(0.7, abs=0.05)
    x = wt.randn(shape)
    assert wt.equal(layer.eval()(x), x)


@pytest.mark.parametrize(
    "kind, shape", [(nn.AlphaDropout, (200, 500)), (nn.FeatureAlphaDropout, (500, 200, 2))]
)
def test_alpha_dropout_keeps_mean_and_variance(kind, shape):
    wt.manual_seed(0)
    out = kind(0.2)(wt.randn(shape))
    assert out.mean().item() == pytest.approx(0, abs=0.02)
    assert out.std().item() == pytest.approx(1, abs=0.02)


def test_gumbel_softmax():
    wt.manual_seed(0)
    logits = wt.log(wt.tensor([0.2, 0.8])).expand(4000, 2).clone().requires_grad_()
    hard = F.gumbel_softmax(logits, tau=0.5, hard=True)
    assert set(hard.detach().round().flatten().tolist()) == {0.0, 1.0}
    assert hard.detach()[:, 1].mean().item() == pytest.approx(0.8, abs=0.03)
    (hard[:, 1]).sum().backward()
    assert logits.grad.abs().sum().item() > 0
    assert F.gumbel_softmax(logits).sum(-1).detach().numpy() == pytest.approx(np.ones(4000), abs=1e-5)


def test_shape_functions_undo_each_other():
    x = wt.arange(48.0).reshape(1, 4, 4, 3)
    assert F.pixel_shuffle(x, 2).shape == (1, 1, 8, 6)
    assert F.pixel_shuffle(x, 2)[0, 0, :2, :2].tolist() == [[0, 12], [24, 36]]
    assert wt.equal(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), x)
    assert F.channel_shuffle(wt.arange(6.0).reshape(1, 6, 1), 2).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_functional_names_what_it_lacks():
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        F.nothing_of_the_kind
    assert "relu" in dir(F) and "hardtanh" in dir(F)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: nn.Dropout(-0.1), ValueError, "between 0 and 1, but got -0.1"),
        (lambda: F.dropout1d(wt.ones(3)), RuntimeError, "Expected 2D or 3D input"),
        (lambda: nn.Conv1d(3, 4, 1, groups=2), ValueError, "in_channels must be divisible by groups"),
        (lambda: nn.Conv1d(4, 3, 1, groups=2), ValueError, "out_channels must be divisible by groups"),
        (lambda: nn.Conv1d(4, 4, 1, groups=0), ValueError, "groups must be a positive integer"),
        (lambda: nn.Conv2d(1, 1, 3, padding="full"), ValueError, "Invalid padding string 'full'"),
        (lambda: nn.Conv2d(1, 1, 3, padding_mode="odd"), ValueError, "padding_mode must be one of"),
        (lambda: nn.Conv2d(1, 1, 3, 2, "same"), ValueError, "not supported for strided"),
        (lambda: nn.GroupNorm(2, 3), ValueError, "must be divisible by num_groups"),
        (
            lambda: nn.BatchNorm1d(2)(wt.ones(2, 2, 2, 2)),
            ValueError,
            r"expected 2D or 3D input \(got 4D input\)",
        ),
        (lambda: nn.BatchNorm2d(2)(wt.ones(2, 2)), ValueError, r"expected 4D input \(got 2D input\)"),
        (lambda: nn.Embedding(3, 2, padding_idx=3), AssertionError, "within num_embeddings"),
        (lambda: nn.Embedding.from_pretrained(wt.ones(3)), AssertionError, "2-dimensional"),
        (lambda: nn.Bilinear(0, 1, 1), ValueError, "in1_features must be > 0"),
        (
            lambda: F.bilinear(wt.ones(2), wt.ones(3), wt.ones(1, 3, 2)),
            RuntimeError,
            "bilinear: ",
        ),
        (lambda: nn.Hardtanh(1, 0), AssertionError, "max_val must be larger"),
        (lambda: F.prelu(wt.ones(2, 3), wt.ones(2)), RuntimeError, "channel size = 3"),
        (lambda: F.glu(wt.ones(3)), RuntimeError, "Halving dimension must be even"),
        (lambda: F.softshrink(wt.ones(3), -1), RuntimeError, "greater or equal to 0"),
        (lambda: nn.Softmax2d()(wt.ones(2, 2)), ValueError, "3D or 4D"),
        (lambda: F.pixel_shuffle(wt.ones(3, 2, 2), 2), RuntimeError, "divisible by the square"),
        (lambda: F.channel_shuffle(wt.ones(1, 3, 2), 2), RuntimeError, "divisible by groups"),
        (lambda: nn.Unflatten("N", (2, 3)), TypeError, "expected int"),
        (lambda: nn.Unflatten(0, 3), TypeError, "must be a tuple"),
        (lambda: nn.MultiMarginLoss(p=3), ValueError, "p == 1 and p == 2"),
        (lambda: nn.TripletMarginLoss(margin=-1.0), ValueError, "greater than 0"),
        (
            lambda: F.soft_margin_loss(wt.ones(1), wt.ones(1), reduction="all"),
            ValueError,
            "not a valid value",
        ),
        (
            lambda: F.gaussian_nll_loss(wt.ones(2), wt.ones(2), wt.ones(3)),
            ValueError,
            "var is of incorrect size",
        ),
        (lambda: F.gaussian_nll_loss(wt.ones(2), wt.ones(2), -1.0), ValueError, "negative entry"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_transposed_convolution_reaches_the_size_asked_for():
    layer = nn.ConvTranspose2d(1, 1, 3, stride=2, padding=1)
    x = wt.ones(1, 1, 3, 4)
    assert layer(x).shape == (1, 1, 5, 7)
    assert layer(x, output_size=(6, 8)).shape == (1, 1, 6, 8)
    assert layer(x, output_size=(1, 1, 5, 8)).shape == (1, 1, 5, 8)
    with pytest.raises(ValueError, match=r"valid sizes range from \[5, 7\] to \[6, 8\]"):
        layer(x, output_size=(7, 7))
    with pytest.raises(ValueError, match='Only "zeros" padding mode'):
        nn.ConvTranspose1d(1, 1, 1, padding_mode="reflect")


def test_embedding_keeps_rows_below_max_norm():
    table = nn.Embedding.from_pretrained(wt.tensor([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]]), max_norm=1.0)
    out = table(wt.tensor([0, 1, 0]))
    close(out, [[0.6, 0.8], [0.3, 0.4], [0.6, 0.8]])
    close(table.weight, [[0.6, 0.8], [0.3, 0.4], [6, 8]])


def test_cross_map_norm_is_the_local_one():
    x = wt.randn(2, 5, 4, 3)
    old, new = nn.CrossMapLRN2d(3, alpha=0.1), nn.LocalResponseNorm(3, alpha=0.1)
    assert old(x).tolist() == new(x).tolist() and repr(old) == "CrossMapLRN2d(3, alpha=0.1, beta=0.75, k=1)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.Linear(8, 3)(wt.ones(2, 7)), "linear: input has 7 features, layer expects 8"),
        (lambda: F.linear(wt.ones(2, 7), wt.ones(8)), "linear: input has 7 features, layer expects 8"),
        (
            lambda: nn.Bilinear(3, 4, 5)(wt.ones(2, 3), wt.ones(2, 5)),
            "input2 has 5 features, layer expects 4",
        ),
        (
            lambda: nn.Bilinear(3, 4, 5)(wt.ones(2, 3), wt.ones(3, 4)),
            "batch dimensions do not match at dim 0",
        ),
        (lambda: nn.Conv2d(3, 4, 2)(wt.ones(2, 5, 9, 9)), "to have 3 channels, but got 5 channels"),
        (lambda: nn.BatchNorm1d(8)(wt.ones(2, 7)), "input has 7 channels, layer expects 8: running_mean"),
        (lambda: nn.GroupNorm(2, 8)(wt.ones(2, 6, 3)), "input has 6 channels, layer expects 8: weight"),
        (lambda: nn.LayerNorm(8)(wt.ones(2, 7)), r"normalized_shape=\[8\].*got input of size \[2, 7\]"),
        (lambda: nn.InstanceNorm1d(8, affine=True)(wt.ones(2, 7, 3)), r"dim=1 to match num_features \(8\)"),
    ],
)
def test_a_wrong_size_is_told_beside_the_right_one(call, message):
    with pytest.raises((wt.ShapeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_softmax_without_a_dim_warns(name):
    for shape, dim in (((), 0), ((3,), 0), ((2, 3), 1), ((2, 3, 2), 0), ((2, 3, 2, 2), 1)):
        x = wt.randn(shape)
        with pytest.warns(UserWarning, match=f"^Implicit dimension choice for {name} has been deprecated"):
            found = getattr(F, name)(x)
        close(found, getattr(F, name)(x, dim).tolist())


def test_instance_norm_warns_of_channels_that_it_does_not_need():
    with pytest.warns(UserWarning, match="^input's size at dim=1 does not match num_features"):
        nn.InstanceNorm1d(8)(wt.ones(2, 7, 3))


@pytest.mark.parametrize("name, n", [("BatchNorm1d", 0), ("BatchNorm2d", 2), ("SyncBatchNorm", 2)])
def test_batch_norm_takes_no_eps_that_divides_by_zero(name, n):
    x = wt.ones(2, 3, *[2] * n)
    for eps in (0.0, -1.0):
        with pytest.raises(
            ValueError, match=f"batch_norm eps must be positive during training, but got {eps}"
        ):
            getattr(nn, name)(3, eps=eps)(x)
    close(getattr(nn, name)(3, eps=0.0).eval()(x), x.tolist())
    with pytest.raises(ValueError, match=r"batch_norm eps must be non-negative, but got -1\.0"):
        getattr(nn, name)(3, eps=-1.0).eval()(x)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_circular_padding_names_the_dims_that_it_takes(n):
    layer = getattr(nn, f"CircularPad{n}d")(1)
    assert layer(wt.ones(1, *[2] * n)).shape == (1, *[4] * n)
    for dims in (n, n + 3):
        with pytest.raises(ValueError, match=rf"expected {n + 1}D or {n + 2}D input \(got {dims}D input\)"):
            layer(wt.ones([2] * dims))
