"""Losses element by element: what the op table does not ask: warnings, long inputs, gradients of weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape import nn
from warptape.nn import functional as F

DIFFERENCES = [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss]
REFERENCE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mse_loss": lambda x, y: (x - y) ** 2,
    "l1_loss": lambda x, y: np.abs(x - y),
    "binary_cross_entropy": lambda x, y: -(y * np.log(x) + (1 - y) * np.log1p(-x)),
    "binary_cross_entropy_with_logits": lambda x, y: np.logaddexp(0, x) - x * y,
}


@pytest.mark.parametrize("loss", DIFFERENCES)
def test_other_size_warns_at_the_call(loss: Any) -> None:
    with pytest.warns(UserWarning, match=r"target size \(torch.Size\(\[2, 1\]\)\)") as caught:
        value = loss(wt.ones(2, 3), wt.zeros(2, 1), reduction="none")
    assert caught[0].filename == __file__
    assert value.shape == (2, 3)


def test_warning_as_error_leaves_nothing_behind() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="target size"):
            F.mse_loss(wt.ones(3, 1), wt.ones(3))
    assert F.mse_loss(wt.ones(3), wt.zeros(3)).item() == 1.0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({"size_average": False}, 14.0), ({"reduce": False}, [1.0, 4.0, 9.0]), ({"reduce": True}, 14.0 / 3)],
)
def test_former_flags(flags: dict[str, bool], expected: Any) -> None:
    with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
        loss = F.mse_loss(wt.tensor([1.0, 2.0, 3.0]), wt.zeros(3), **flags)
    assert loss.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("layout", ["packed", "transposed", "narrow"])
def test_many_elements(name: str, layout: str) -> None:
    r = np.random.default_rng(3)
    x, y = (r.uniform(0.01, 0.99, (300, 500)).astype(np.float32) for _ in range(2))
    a, b = wt.tensor(x), wt.tensor(y)
    if layout == "transposed":
        a = a.t().contiguous().t()
    elif layout == "narrow":
        a, b, x, y = a[:, 3:470], b[:, 5:472], x[:, 3:470], y[:, 5:472]
    a = a.detach().requires_grad_()
    exact = REFERENCE[name](x.astype(np.float64), y.astype(np.float64)).mean()
    loss = getattr(F, name)(a, b)
    assert loss.item() == pytest.approx(exact, rel=2e-7)
    loss.backward()
    whole = a.detach().double().contiguous().requires_grad_()
    getattr(F, name)(whole, b.double().contiguous()).backward()
    np.testing.assert_allclose(a.grad.numpy(), whole.grad.numpy(), rtol=2e-5, atol=1e-11)


def test_threads_do_not_change_a_bit() -> None:
    x, y = wt.rand(400, 700), wt.rand(400, 700)
    before = wt.get_num_threads()
    values = set()
    try:
        for threads in (1, 2, 4):
            wt.set_num_threads(threads)
            values.add(F.binary_cross_entropy(x, y).item())
    finally:
        wt.set_num_threads(before)
    assert len(values) == 1


def test_mean_of_nothing() -> None:
    empty = wt.zeros(0, 3)
    assert np.isnan(F.mse_loss(empty, empty).item())
    assert F.mse_loss(empty, empty, reduction="sum").item() == 0.0
    assert F.mse_loss(empty, empty, reduction="none").shape == (0, 3)


def test_dtype_of_result() -> None:
    wide, narrow = wt.ones(2, dtype=wt.float64), wt.ones(2, dtype=wt.bfloat16)
    assert F.mse_loss(narrow, wide).dtype == wt.float64
    assert F.huber_loss(narrow, wide).dtype == wt.bfloat16
    assert F.binary_cross_entropy_with_logits(narrow, wide).dtype == wt.float64
    assert F.mse_loss(narrow, wt.arange(2)).dtype == wt.bfloat16
    assert F.l1_loss(wt.arange(3), wt.tensor([2, 2, 2]), reduction="sum").item() == 3
    with pytest.raises(RuntimeError, match="Found target of dtype float64"):
        F.binary_cross_entropy(wt.ones(2), wide)


def test_gradients_come_in_each_inputs_dtype_and_shape() -> None:
    x = wt.ones(2, 3, dtype=wt.float64, requires_grad=True)
    y = wt.zeros(3, requires_grad=True)
    with pytest.warns(UserWarning, match="target size"):
        F.mse_loss(x, y, reduction="sum").backward()
    assert x.grad.dtype == wt.float64 and x.grad.tolist() == [[2.0] * 3] * 2
    assert y.grad.dtype == wt.float32 and y.grad.tolist() == [-4.0] * 3


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_what_is_no_probability_is_found(reduction: str) -> None:
    good = wt.tensor([[0.0, 1.0, 0.5]])
    for bad in ([[0.5, 1.01, 0.5]], [[0.5, -0.01, 0.5]], [[0.5, float("nan"), 0.5]]):
        with pytest.raises(RuntimeError, match="elements of input should be between 0 and 1"):
            F.binary_cross_entropy(wt.tensor(bad), good, reduction=reduction)
        with pytest.raises(RuntimeError, match="elements of target should be between 0 and 1"):
            F.binary_cross_entropy(good, wt.tensor(bad), reduction=reduction)
    nan = F.binary_cross_entropy(good, good, wt.tensor(float("nan")), reduction=reduction)
    assert nan.isnan().all()


def test_weights_of_probabilities_take_no_gradient() -> None:
    x, w = wt.full((3,), 0.5), wt.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
        F.binary_cross_entropy(x, x, w)
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'pos_weight'"):
        F.binary_cross_entropy_with_logits(x, x, pos_weight=w)
    with wt.no_grad():
        F.binary_cross_entropy(x, x, w)
    F.mse_loss(x, wt.zeros(3), weight=w).backward()  # here the mean is over the weights
    np.testing.assert_allclose(w.grad.numpy(), 0, atol=1e-7)


def test_extremes_of_logits() -> None:
    x = wt.tensor([1000.0, -1000.0, 88.0, -88.0], requires_grad=True)
    loss = F.binary_cross_entropy_with_logits(x, wt.tensor([1.0, 1.0, 0.0, 0.0]), reduction="none")
    assert loss.tolist() == [0.0, 1000.0, 88.0, pytest.approx(0.0, abs=1e-30)]
    loss.sum().backward()
    assert x.grad.tolist() == pytest.approx([0.0, -1.0, 1.0, 0.0])


@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss])
def test_slope_at_the_kinks(loss: Any) -> None:
    x = wt.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, float("inf")], requires_grad=True)
    loss(x, wt.zeros(8), reduction="sum").backward()
    assert x.grad.tolist() == [-1.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.0, 1.0]


def test_huber_loss_takes_a_real_delta() -> None:
    with pytest.raises(TypeError, match="delta must be a float or int, got: <class 'complex'>"):
        nn.HuberLoss(delta=1j)  # type: ignore[arg-type]
    assert nn.HuberLoss(delta=2).delta == 2


def test_kl_div_warns_of_its_mean() -> None:
    x, y = wt.tensor([[-1.0, -2.0]]), wt.tensor([[0.0, 1.0]])
    with pytest.warns(UserWarning, match="'batchmean' divides only by the batch size"):
        assert F.kl_div(x, y).item() == 1.0
    assert F.kl_div(x, y, reduction="batchmean").item() == 2.0
    assert F.kl_div(x[0, 1], y[0, 1], reduction="batchmean").item() == 2.0


def adaptive(library=wt):
    library.manual_seed(7)
    return library.nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0, head_bias=True)


def test_adaptive_softmax_is_a_distribution():
    module = adaptive()
    x, target = wt.randn(9, 8), wt.tensor([0, 1, 2, 3, 6, 7, 11, 5, 2])
    log_probs = module.log_prob(x)
    np.testing.assert_allclose(log_probs.exp().sum(1).tolist(), np.ones(9), rtol=1e-5)
    output, loss = module(x, target)
    np.testing.assert_allclose(output.tolist(), log_probs[range(9), target.tolist()].tolist(), rtol=1e-5)
    assert loss.item() == pytest.approx(-output.mean().item(), rel=1e-6)
    assert module.predict(x).tolist() == log_probs.argmax(1).tolist()
    assert module(x[0], target[0]).output.shape == ()
    for bad, match in (
        ([], "larger than 0"),
        ([3, 3], "increasing"),
        ([0], "increasing"),
        ([12], "increasing"),
    ):
        with pytest.raises(ValueError, match=match):
            wt.nn.AdaptiveLogSoftmaxWithLoss(8, 12, bad)
    with pytest.raises(RuntimeError, match=r"should be in \[0, 11\]"):
        module(x, target + 1)


@pytest.mark.parity
def test_adaptive_softmax_beside_pytorch():
    torch = pytest.importorskip("torch")
    found = []
    for library in (wt, torch):
        module = adaptive(library)
        x = ((library.arange(72.0).reshape(9, 8) * 0.7).sin()).requires_grad_()
        output, loss = module(x, library.tensor([0, 1, 2, 3, 6, 7, 11, 5, 2]))
        loss.backward()
        grads = [p.grad for p in module.parameters()]
        found.append((repr(module), list(module.state_dict()), [output, loss, x.grad, *grads]))
    assert found[0][:2] == found[1][:2]
    for ours, theirs in zip(found[0][2], found[1][2], strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=1e-6)


def test_ctc_gradient_behind_log_softmax():
    target, steps, lengths = wt.tensor([[1, 2, 2], [3, 1, 0]]), wt.tensor([6, 5]), wt.tensor([3, 2])

    def loss(x):
        return wt.nn.functional.ctc_loss(x.log_softmax(-1), target, steps, lengths, reduction="sum")

    x = wt.randn(6, 2, 4, dtype=wt.float64, requires_grad=True)
    assert wt.autograd.gradcheck(loss, (x,))
    (slope,) = wt.autograd.grad(loss(x), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        slope.sum().backward()
    given = (
        x.log_softmax(-1),
        target,
        wt.tensor([2, 5]),
        lengths,
    )  # three labels, two of them equal: 4 steps
    assert wt.nn.functional.ctc_loss(*given, reduction="none")[0].item() == np.inf
    wt.nn.functional.ctc_loss(*given, zero_infinity=True).backward()
    assert (x.grad[:, 0] == 0).all() and (x.grad[:, 1] != 0).any()


def ctc_in_steps(
    log_probs: np.ndarray, labels: np.ndarray, steps: int, blank: int
) -> tuple[float, np.ndarray]:
    """One sample's loss, and its gradient behind log_softmax [steps, C], state by state."""
    states = np.full(2 * len(labels) + 1, blank)
    states[1::2] = labels
    skips = [s for s in range(2, len(states)) if states[s] != blank and states[s] != states[s - 2]]

    def follow(before: np.ndarray, back: int) -> np.ndarray:
        after = before.copy()
        after[1:] = np.logaddexp(after[1:], before[:-1])
        for s in skips if back == 1 else [len(states) + 1 - s for s in skips]:
            after[s] = np.logaddexp(after[s], before[s - 2])
        return after

    ends = np.full(len(states), -np.inf)
    ends[:2] = 0
    chances = []
    for back, order in ((1, range(steps)), (-1, range(steps - 1, -1, -1))):
        row, rows = ends, []
        for number, t in enumerate(order):
            row = (row if number == 0 else follow(row, back)) + log_probs[t, states][::back]
            rows.append(row)
        chances.append(np.array([r[::back] for r in rows][::back]))
    loss = -np.logaddexp.reduce(chances[0][-1, -2:])
    grad = np.exp(log_probs[:steps])
    both = chances[0] + chances[1] - log_probs[:steps, states] + loss
    for s, label in enumerate(states):
        grad[:, label] -= np.exp(both[:, s])
    return loss, grad


@pytest.mark.parametrize("dtype", [wt.float32, wt.float64])
@pytest.mark.parametrize("blank", [0, 4])
def test_ctc_of_more_states_than_a_vector_has(dtype: Any, blank: int) -> None:
    rng = np.random.default_rng(0)
    steps, counts, rows = [40, 25, 33, 9], [14, 4, 7, 0], np.full((4, 14), 1)
    for n, count in enumerate(counts):
        rows[n, :count] = rng.choice([c for c in range(7) if c != blank], count)
    x = wt.from_numpy(rng.standard_normal((40, 4, 7)) * 5).to(dtype).log_softmax(-1).requires_grad_()
    found = set()
    before = wt.get_num_threads()
    try:
        for threads in (1, 2, 4):
            wt.set_num_threads(threads)
            loss = F.ctc_loss(x, wt.tensor(rows), steps, counts, blank, reduction="none")
            (grad,) = wt.autograd.grad(loss.sum(), x)
            found.add((loss.detach().numpy().tobytes(), grad.numpy().tobytes()))
    finally:
        wt.set_num_threads(before)
    assert len(found) == 1
    tolerance = 1e-10 if dtype == wt.float64 else 2e-5
    for n, (last, count) in enumerate(zip(steps, counts, strict=True)):
        want, slope = ctc_in_steps(x.detach().double().numpy()[:, n], rows[n, :count], last, blank)
        assert loss[n].item() == pytest.approx(want, rel=tolerance)
        np.testing.assert_allclose(grad[:last, n].numpy(), slope, rtol=tolerance, atol=tolerance)
        assert (grad[last:, n] == 0).all()


def test_ctc_gradients_that_are_not_numbers() -> None:
    x = wt.zeros(3, 2, 4).log_softmax(-1)
    x[:, 1, 3] = -np.inf  # of a class that no label has
    x.requires_grad_()
    loss = F.ctc_loss(x, wt.tensor([[1, 1], [1, 2]]), [2, 3], [2, 2], reduction="none")
    loss.sum().backward()
    assert loss[0].item() == np.inf and np.isfinite(loss[1].item())
    nan = x.grad.isnan()
    assert nan[:2, 0].all() and not nan[2:, 0].any()
    assert nan[:, 1, 3].all() and not nan[:, 1, :3].any()


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_chunk_size": 3}, {"chunking_method": None}, {"chunking_method": "aspect_ratio:4"}],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy_in_chunks(options: dict[str, Any], reduction: str) -> None:
    wt.manual_seed(0)
    x, target = wt.randn(10, 4, dtype=wt.float64), wt.randint(0, 30, (10,))
    weight = wt.rand(30, dtype=wt.float64) + 0.5
    layers = [
        wt.nn.LinearCrossEntropyLoss(
            4,
            30,
            bias=True,
            dtype=wt.float64,
            weight=weight,
            reduction=reduction,
            ignore_index=7,
            options=given,
        )
        for given in (None, wt.nn.LinearCrossEntropyOptions(**options))
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    whole, chunked = (layer(x, target) for layer in layers)
    wt.testing.assert_close(chunked, whole)
    for _ in range(2):
        for loss in (whole, chunked):
            loss.sum().backward(retain_graph=True)
    for theirs, ours in zip(layers[0].parameters(), layers[1].parameters()):
        wt.testing.assert_close(ours.grad, theirs.grad)


def test_second_gradient_of_linear_cross_entropy_in_chunks() -> None:
    x, w = (wt.randn(5, n, dtype=wt.float64, requires_grad=True) for n in (3, 3))
    target = wt.tensor([0, 4, 2, 1, 4])
    assert wt.autograd.gradgradcheck(lambda x, w: F.linear_cross_entropy(x, w, target, options=2), (x, w))
    assert F.linear_cross_entropy(x.to("meta"), w.to("meta"), target.to("meta"), options=2).shape == ()


def test_linear_cross_entropy_without_chunks() -> None:
    x, w = wt.randn(4, 3), wt.randn(5, 3)
    options = wt.nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    with pytest.warns(UserWarning, match="options ignored"):
        smooth = F.linear_cross_entropy(x, w, wt.tensor([0, 1, 2, 4]), label_smoothing=0.1, options=options)
    wt.testing.assert_close(smooth, F.cross_entropy(x @ w.T, wt.tensor([0, 1, 2, 4]), label_smoothing=0.1))
    with pytest.raises(ValueError, match="invalid chunking_method"):
        wt.nn.LinearCrossEntropyOptions(chunking_method="aspect_ratio:0")
    with pytest.raises(ValueError, match="batch_chunk_size must be positive"):
        wt.nn.LinearCrossEntropyOptions(batch_chunk_size=0)
    with pytest.raises(IndexError):
        F.linear_cross_entropy(x, w, wt.tensor([0, 1, 2, 5]), options=options)


@pytest.mark.parametrize("dtype", [wt.float32, wt.float64, wt.bfloat16, wt.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"reduction": "none"}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_images_is_that_of_their_pixels(
    dtype: wt.dtype, options: dict[str, Any], weighted: bool
) -> None:
    """Pixels side by side advance together, in bands of 256; ignored ones may hold anything."""
    wt.manual_seed(0)
    x, target = wt.randn(2, 5, 17, 19).to(dtype), wt.randint(0, 5, (2, 17, 19))
    target[0, 3] = target[1, :, 18] = -100
    x[0, :, 3, 4] = float("inf")
    x[1, :, 2, 18] = float("nan")
    weight = wt.rand(5).to(dtype) if weighted else None
    images = x.clone().requires_grad_()
    pixels = x.permute(0, 2, 3, 1).reshape(-1, 5).requires_grad_()
    loss = F.cross_entropy(images, target, weight, **options)
    expected = F.cross_entropy(pixels, target.flatten(), weight, **options)
    wt.testing.assert_close(loss.flatten(), expected.flatten())
    upstream = wt.rand(loss.shape).to(dtype)
    (dx,) = wt.autograd.grad(loss, images, upstream)
    (rows,) = wt.autograd.grad(expected, pixels, upstream.reshape(expected.shape))
    assert dx.is_contiguous()
    wt.testing.assert_close(dx.permute(0, 2, 3, 1).reshape(-1, 5), rows)


def test_cross_entropy_of_images_refuses_what_is_no_class() -> None:
    with pytest.raises(IndexError, match="7"):
        F.cross_entropy(wt.zeros(1, 5, 3, 3), wt.full((1, 3, 3), 7))
