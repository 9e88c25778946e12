"""Channels last: who keeps the layout, who refuses it, and that values do not depend on it."""

import numpy as np
import pytest
import warptape as wt
from warptape import nn
from warptape.nn import functional as F

IMAGES = wt.channels_last
VOLUMES = wt.channels_last_3d


def images(*shape, seed=0, dtype=np.float32):
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return wt.tensor(values).contiguous(memory_format=IMAGES if len(shape) == 4 else VOLUMES)


def strides_of(shape):
    """Of a tensor without gaps whose dim 1 is innermost."""
    moved = (shape[0], *shape[2:], shape[1])
    steps = [int(np.prod(moved[i + 1 :])) for i in range(len(moved))]
    return (steps[0], steps[-1], *steps[1:-1])


def is_last(tensor):
    return tensor.stride() == strides_of(tuple(tensor.shape))


# ---- the formats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to(memory_format=IMAGES),
        lambda x: x.to(wt.float64, memory_format=IMAGES),
        lambda x: x.contiguous(memory_format=IMAGES),
        lambda x: x.clone(memory_format=IMAGES),
        lambda x: x.double(memory_format=IMAGES),
        lambda x: x.cpu(memory_format=IMAGES),
        lambda x: wt.empty_like(x, memory_format=IMAGES).copy_(x),
        lambda x: wt.empty(2, 3, 4, 5, memory_format=IMAGES).copy_(x),
        lambda x: x.clone().resize_(2, 3, 4, 5, memory_format=IMAGES).copy_(x),
        lambda x: wt.empty(1).resize_as_(x, memory_format=IMAGES).copy_(x),
        lambda x: wt.zeros_like(x, memory_format=IMAGES) + x,
    ],
)
def test_a_format_asked_for_is_taken(make):
    x = wt.randn(2, 3, 4, 5)
    y = make(x)
    assert y.stride() == (60, 1, 15, 3)
    assert y.is_contiguous(memory_format=IMAGES) and not y.is_contiguous()
    assert np.array_equal(y.numpy(), x.numpy())
    assert y.contiguous().stride() == y.to(memory_format=wt.contiguous_format).stride() == (60, 20, 5, 1)


def test_volumes_have_a_format_of_their_own():
    x = wt.randn(2, 3, 4, 5, 6).to(memory_format=VOLUMES)
    assert x.stride() == (360, 1, 90, 18, 3)
    assert x.is_contiguous(memory_format=VOLUMES) and not x.is_contiguous(memory_format=IMAGES)
    assert (x * 2).stride() == x.stride()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.clone(),
        lambda x: x.double(),
        lambda x: x.to(wt.float16),
        lambda x: wt.empty_like(x),
        lambda x: wt.ones_like(x),
        lambda x: wt.full_like(x, 2),
        lambda x: wt.rand_like(x),
        lambda x: wt.randint_like(x, 3),
        lambda x: x.detach(),
        lambda x: x.to("meta"),
    ],
)
def test_copies_keep_the_format(make):
    assert make(images(2, 3, 4, 5)).stride() == (60, 1, 15, 3)


def test_a_part_is_copied_in_the_order_of_its_dims():
    part = images(2, 8, 6, 6)[:, :, ::2]
    assert part.clone().stride() == (part + 1).stride() == wt.empty_like(part).stride() == (144, 1, 48, 8)


def test_where_sizes_of_one_leave_it_open_both_formats_hold():
    x = wt.randn(2, 3, 1, 1)
    assert x.is_contiguous(memory_format=IMAGES)
    assert x.contiguous(memory_format=IMAGES) is x
    assert x.to(memory_format=IMAGES).stride() == (3, 1, 3, 3)


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: wt.randn(2, 3).to(memory_format=IMAGES), RuntimeError),
        (lambda: wt.randn(2, 3, 4).contiguous(memory_format=IMAGES), RuntimeError),
        (lambda: wt.randn(2, 3, 4, 5).clone(memory_format=VOLUMES), RuntimeError),
        (lambda: wt.empty(2, 3, memory_format=IMAGES), RuntimeError),
        (lambda: wt.empty(2, 3, 4, 5, memory_format=wt.preserve_format), RuntimeError),
        (lambda: images(2, 3, 4, 5).contiguous(memory_format=wt.preserve_format), RuntimeError),
    ],
)
def test_a_format_of_other_dims_is_refused(call, error):
    with pytest.raises(error, match=r"required rank|[pP]reserve"):
        call()


@pytest.mark.parametrize("name", ["to", "contiguous", "clone", "is_contiguous", "float", "resize_as_"])
def test_an_unknown_format_is_refused(name):
    x = wt.randn(2, 3, 4, 5)
    args = (x,) if name == "resize_as_" else ()
    with pytest.raises(TypeError, match=r"memory_format.*channels_last_3d, not 'torch\.channels_first'"):
        getattr(x, name)(*args, memory_format="torch.channels_first")


# ---- who keeps it ---------------------------------------------------------------------------------------

KEEPERS = {
    "sum": lambda x: x + x,
    "number": lambda x: 2 * x,
    "channel": lambda x: x * wt.arange(16.0).reshape(16, 1, 1),
    "first decides": lambda x: x + x.contiguous(),
    "where": lambda x: wt.where(x > 0, x, 0 * x),
    "relu": F.relu,
    "gelu": F.gelu,
    "prelu": lambda x: F.prelu(x, wt.full((16,), 0.3)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, wt.arange(16.0), wt.ones(16), True),
    "batch_norm evaluated": lambda x: F.batch_norm(x, wt.ones(16), wt.full((16,), 2.0)),
    "group_norm": lambda x: F.group_norm(x, 4, wt.arange(16.0), wt.ones(16)),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool2d dilated": lambda x: F.max_pool2d(x, 2, 1, 0, 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 5)),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "global average": lambda x: F.adaptive_avg_pool2d(x, 1),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, size=(5, 11), mode="bilinear"),
    "cat": lambda x: wt.cat([x, 2 * x], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "reflect": lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 4),
    "flip": lambda x: x.flip(3),
    "depthwise": lambda x: F.conv2d(x, wt.ones(16, 1, 3, 3), padding=1, groups=16),
    "grouped": lambda x: F.conv2d(x, wt.ones(6, 8, 3, 3), padding=1, groups=2),
    "transposed": lambda x: F.conv_transpose2d(x, wt.ones(16, 5, 3, 3), stride=2, output_padding=1),
}


@pytest.mark.parametrize("name", KEEPERS)
def test_results_and_gradients_keep_the_format_and_the_values(name):
    x = images(2, 16, 8, 6).requires_grad_()
    plain = x.detach().contiguous().requires_grad_()
    y, same = KEEPERS[name](x), KEEPERS[name](plain)
    assert is_last(y), y.stride()
    weight = images(*y.shape, seed=1)
    y.backward(weight)
    same.backward(weight.contiguous())
    assert x.grad.stride() == x.stride() and plain.grad.stride() == plain.stride()
    np.testing.assert_allclose(y.detach().numpy(), same.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), plain.grad.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: F.max_pool3d(x, 2),
        lambda x: F.avg_pool3d(x, 3, 2, 1),
        lambda x: F.adaptive_avg_pool3d(x, 2),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.conv3d(x, wt.ones(5, 8, 3, 3, 3), padding=1),
        lambda x: F.conv_transpose3d(x, wt.ones(8, 5, 3, 3, 3), stride=2),
    ],
)
def test_volumes_are_kept(op):
    x = images(2, 8, 4, 6, 5).requires_grad_()
    plain = x.detach().contiguous().requires_grad_()
    y, same = op(x), op(plain)
    assert is_last(y), y.stride()
    (y * y).sum().backward()
    (same * same).sum().backward()
    assert x.grad.stride() == x.stride()
    np.testing.assert_allclose(y.detach().numpy(), same.detach().numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(x.grad.numpy(), plain.grad.numpy(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", [wt.float16, wt.bfloat16])
def test_pools_and_norms_of_narrow_floats(dtype):
    x = images(2, 16, 8, 6).to(dtype).requires_grad_()
    plain = x.detach().contiguous().requires_grad_()
    for op in (
        lambda t: F.max_pool2d(t, 3, 2, 1),
        lambda t: F.batch_norm(F.avg_pool2d(t, 2), None, None, training=True),
    ):
        y, same = op(x), op(plain)
        assert is_last(y)
        y.sum().backward()
        same.sum().backward()
        np.testing.assert_allclose(
            y.detach().float().numpy(), same.detach().float().numpy(), rtol=0.02, atol=0.02
        )
        np.testing.assert_allclose(x.grad.float().numpy(), plain.grad.float().numpy(), rtol=0.02, atol=0.02)


def test_the_places_of_maxima_are_those_of_the_row_major_tensor():
    x = images(2, 5, 7, 6)
    x[0, :, 2, 2] = float("nan")
    values, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    same = F.max_pool2d(x.contiguous(), 3, 2, 1, return_indices=True)
    assert is_last(values) and is_last(places)
    assert np.array_equal(values.numpy(), same[0].numpy(), equal_nan=True)
    assert np.array_equal(places.numpy(), same[1].numpy())
    assert np.array_equal(
        F.max_unpool2d(values, places, 3, 2, 1, (7, 6)).numpy(),
        F.max_unpool2d(*same, 3, 2, 1, (7, 6)).numpy(),
        equal_nan=True,
    )


# ---- convolution ----------------------------------------------------------------------------------------

# batch, channels, height, width, outputs, kernel, stride, padding, dilation, groups
CONVOLUTIONS = [
    (2, 3, 9, 11, 5, 3, 1, 1, 1, 1),
    (2, 3, 32, 30, 20, 7, 2, 3, 1, 1),  # several taps make one run, which the border cuts
    (2, 64, 6, 7, 40, 1, 1, 0, 1, 1),
    (2, 24, 9, 8, 40, 1, 2, 0, 1, 1),  # positions of the input that no output sees
    (2, 130, 5, 5, 70, 3, 1, 1, 1, 1),  # several blocks of depth
    (1, 8, 6, 6, 2000, 1, 1, 0, 1, 1),  # several blocks of columns
    (3, 33, 13, 12, 17, 3, 2, 1, 1, 1),
    (2, 16, 13, 12, 16, 3, 1, 2, 2, 1),
    (2, 4, 16, 16, 8, 4, 3, 2, 2, 1),
    (2, 16, 9, 8, 32, 3, 1, 1, 1, 2),
    (2, 20, 9, 8, 20, 3, 2, 1, 1, 20),
    (2, 20, 9, 8, 20, 5, 1, 2, 2, 20),
    (2, 6, 9, 8, 12, 3, 1, 1, 1, 6),
    (1, 5, 6, 7, 4, 2, 3, 0, 1, 1),
]


def reference(x, w, g, stride, padding, dilation, groups):
    """Convolution and its gradients by the input and the weight, one element of the kernel after another."""
    _, c, h, wide = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    grad_padded, grad_w = np.zeros_like(padded), np.zeros_like(w)
    high, long = g.shape[2:]
    y = np.zeros(g.shape)
    parts, outs = c // groups, w.shape[0] // groups
    for ky in range(w.shape[2]):
        for kx in range(w.shape[3]):
            rows = slice(ky * dilation, ky * dilation + (high - 1) * stride + 1, stride)
            cols = slice(kx * dilation, kx * dilation + (long - 1) * stride + 1, stride)
            for q in range(groups):
                i, o = slice(q * parts, (q + 1) * parts), slice(q * outs, (q + 1) * outs)
                seen = padded[:, i, rows, cols]
                y[:, o] += np.einsum("nchw,oc->nohw", seen, w[o, :, ky, kx])
                grad_padded[:, i, rows, cols] += np.einsum("nohw,oc->nchw", g[:, o], w[o, :, ky, kx])
                grad_w[o, :, ky, kx] = np.einsum("nohw,nchw->oc", g[:, o], seen)
    return y, grad_padded[:, :, padding : padding + h, padding : padding + wide], grad_w


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_and_its_gradients(case, dtype):
    n, c, h, wide, o, k, stride, padding, dilation, groups = case
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    dtype = getattr(wt, dtype)
    x = images(n, c, h, wide, dtype=np.float64).to(dtype).requires_grad_()
    w = images(o, c // groups, k, k, seed=1, dtype=np.float64).to(dtype).requires_grad_()
    b = wt.arange(o, dtype=dtype).requires_grad_()
    y = F.conv2d(x, w, b, **options)
    g = images(*y.shape, seed=2, dtype=np.float64).to(dtype)
    y.backward(g)
    assert is_last(y) and is_last(x.grad) and (is_last(w.grad) or k == 1)
    double = [t.detach().double().numpy() for t in (x, w, g)]
    expected = reference(*double, **options)
    eps = {wt.float64: 1e-12, wt.float32: 1e-5, wt.float16: 2e-3, wt.bfloat16: 2e-2}[dtype]
    bias = np.arange(o).reshape(-1, 1, 1)
    for got, want in zip((y, x.grad, w.grad), (expected[0] + bias, *expected[1:])):
        want_scale = np.abs(want).max()
        np.testing.assert_allclose(
            got.detach().double().numpy() / want_scale, want / want_scale, atol=eps, rtol=eps
        )


def test_convolution_follows_the_weight_too():
    x, w = wt.randn(2, 3, 8, 8), wt.randn(16, 3, 3, 3)
    assert is_last(F.conv2d(x, w.to(memory_format=IMAGES)))
    assert is_last(F.conv2d(x.to(memory_format=IMAGES), w))
    assert F.conv2d(x, w).is_contiguous()


def test_second_gradients():
    x = images(2, 8, 5, 6, dtype=np.float64).requires_grad_()
    w = images(9, 8, 3, 3, seed=1, dtype=np.float64).requires_grad_()

    def both(a, b):
        y = F.conv2d(a, b, stride=2, padding=1)
        (g,) = wt.autograd.grad((y * y * y).sum(), a, create_graph=True)
        return [t.numpy() for t in wt.autograd.grad((g * g).sum(), (a, b))]

    plain = [t.detach().contiguous().requires_grad_() for t in (x, w)]
    for last, same in zip(both(x, w), both(*plain)):
        np.testing.assert_allclose(last, same, rtol=1e-10)


# ---- modules --------------------------------------------------------------------------------------------


def network():
    wt.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 32, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def test_training_takes_the_same_way_in_both_layouts():
    losses = []
    for last in (False, True):
        model, x, target = network(), images(8, 3, 12, 12).contiguous(), wt.arange(8) % 4
        if last:
            model, x = model.to(memory_format=IMAGES), x.to(memory_format=IMAGES)
            assert model[0].weight.stride() == (27, 1, 9, 3) and model[1].weight.stride() == (1,)
        optimizer = wt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            for p in model.parameters():
                assert p.grad.stride() == p.stride() or p.shape[2:] == (1, 1)
            optimizer.step()
            run.append(loss.item())
        assert not last or model[0].weight.stride() == (27, 1, 9, 3)
        losses.append(run)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]
