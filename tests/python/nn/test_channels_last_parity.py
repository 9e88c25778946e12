"""Strides of results of channels last tensors beside PyTorch's."""

import numpy as np
import pytest
import warptape as wt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

# Expressions of x [2, 16, 8, 6] and z [2, 16, 4, 6, 8], channels last; y is x in row-major order, c [16],
# k [32, 16, 3, 3] and k3 [16, 16, 3, 3, 3] weights; L the library and F its functional namespace.
KEPT = """
x + x; x + y; y + x; x * 2; x + c.reshape(16, 1, 1); c.reshape(1, 16, 1, 1) * x; x ** 2; x > y
L.where(x > 0, x, y); L.maximum(x, y); L.lerp(x, y, 0.5); L.addcmul(x, x, y); x.clamp(0, 1)
x.masked_fill(x > 0, 0.0); L.nan_to_num(x); x.sigmoid(); F.relu(x); F.gelu(x); F.silu(x); F.leaky_relu(x)
F.elu(x); F.hardswish(x); F.relu6(x); F.mish(x); F.softplus(x); F.prelu(x, c); F.glu(x, 1); F.celu(x)
F.hardsigmoid(x); F.softsign(x); F.hardshrink(x); F.tanhshrink(x); x[:, :, ::2] + 1; x[:, :8] + 1
x[:, :, ::2].clone(); x[:, :8].double(); x[0]; x[:1]; x.chunk(2, 1)[1]; x.clone(); x.double(); x.half()
x.to(L.int32); L.zeros_like(x); L.empty_like(x); L.rand_like(x); x.new_zeros(x.shape); x.contiguous()
y.contiguous(memory_format=L.channels_last); y.to(memory_format=L.channels_last)
x.to(memory_format=L.contiguous_format); x.clone(memory_format=L.contiguous_format)
y.clone(memory_format=L.channels_last); x.to(L.float64, memory_format=L.contiguous_format)
y.double(memory_format=L.channels_last); x[:, :, :1, :1].clone()
L.empty(2, 3, 4, 5, memory_format=L.channels_last); L.empty(2, 0, 4, 5, memory_format=L.channels_last)
L.empty(1).resize_as_(x, memory_format=L.preserve_format)
L.empty(1).resize_(2, 3, 4, 5, memory_format=L.channels_last)
L.ones(4, 1, 5, 5).to(memory_format=L.channels_last)
L.ones(4, 1, 5, 5).contiguous(memory_format=L.channels_last)
L.ones(4, 3, 1, 1).to(memory_format=L.channels_last)
L.ones(4, 3, 1, 1).clone(memory_format=L.channels_last); F.batch_norm(x, None, None, c, c, True)
F.batch_norm(x, c, c); F.batch_norm(z, None, None, training=True); F.group_norm(x, 4, c, c)
F.instance_norm(x); F.layer_norm(x, (8, 6)); F.local_response_norm(x, 2); F.normalize(x); F.max_pool2d(x, 2)
F.max_pool2d(x, 3, 2, 1); F.max_pool2d(x, 2, dilation=2); F.max_pool2d(x, 3, ceil_mode=True)
F.max_pool2d(x, 3, return_indices=True)[1]; F.max_pool3d(z, 2); F.max_pool3d(z, 2, return_indices=True)[1]
F.avg_pool2d(x, 2); F.avg_pool2d(x, 3, 2, 1, count_include_pad=False); F.adaptive_avg_pool2d(x, 1)
F.adaptive_avg_pool2d(x, (3, 5)); F.adaptive_max_pool2d(x, (3, 5)); F.lp_pool2d(x, 2, 2)
F.interpolate(x, scale_factor=2); F.interpolate(x, size=(4, 3))
F.interpolate(x, scale_factor=2, mode="bilinear"); F.interpolate(x, size=(5, 7), mode="bicubic")
F.interpolate(x, size=(5, 7), mode="area"); F.interpolate(z, scale_factor=2)
F.interpolate(z, scale_factor=2, mode="trilinear"); L.cat([x, x], 1); L.cat([x, x]); L.cat([x, y], 1)
L.cat(x.chunk(2, 1), 1); x.flip(3); x.roll(1, 2); F.pad(x, (1, 1, 1, 1))
F.pad(x, (1, 1, 1, 1), mode="reflect"); F.pad(x, (1, 1, 1, 1), mode="replicate"); F.pixel_shuffle(x, 2)
F.pixel_unshuffle(x, 2); F.channel_shuffle(x, 4); F.dropout(x, 0.5); F.dropout2d(x, 0.5); F.softmax(x, 1)
F.log_softmax(x, 1); x.sum(1); x.sum(1, keepdim=True); x.mean((2, 3), keepdim=True); x.cumsum(1)
F.conv2d(x, k); F.conv2d(x, k, padding=1, stride=2); F.conv2d(y, k.to(memory_format=L.channels_last))
F.conv2d(y, k); F.conv2d(x, k[:, :4], groups=4); F.conv2d(x, k[:16, :1], groups=16)
F.conv_transpose2d(x, k[:16, :4], stride=2); F.conv3d(z, k3, padding=1); F.conv_transpose3d(z, k3)
F.linear(x, c.reshape(-1, 2)[:, :1].expand(8, 6)); x.flatten(1)
"""
ROWS = [text.strip() for line in KEPT.strip().splitlines() for text in line.split(";")]


def evaluate(library, text):
    random = np.random.default_rng(0)
    make = lambda *shape: library.tensor(random.standard_normal(shape, dtype=np.float32))
    y, z, k, k3 = make(2, 16, 8, 6), make(2, 16, 4, 6, 8), make(32, 16, 3, 3), make(16, 16, 3, 3, 3)
    return eval(
        text,
        {
            "L": library,
            "F": library.nn.functional,
            "x": y.to(memory_format=library.channels_last),
            "y": y,
            "z": z.to(memory_format=library.channels_last_3d),
            "c": library.arange(1.0, 17.0),
            "k": k,
            "k3": k3,
        },
    )


@pytest.mark.parametrize("text", ROWS)
def test_strides(text):
    ours, theirs = evaluate(wt, text), evaluate(torch, text)
    assert ours.stride() == theirs.stride()
    if not any(word in text for word in ("empty", "rand", "dropout")):
        np.testing.assert_allclose(ours.double().numpy(), theirs.double().numpy(), rtol=1e-4, atol=1e-4)
