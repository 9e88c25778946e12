"""Epilogues of convolutions: a factor of each channel, residual and activation in its kernel, to the bit."""

from __future__ import annotations

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._C import _Program as Program

from .test_compile import same
from .test_epilogues import check, compiled
from .test_program_text import lines

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
# Input [N, C, H, W], weight [O, C / groups, KH, KW], stride, padding, groups; by the ways of the kernels: few
# and many positions, images side by side, rows and columns in several tasks, groups.
SIZES = {
    "plain": ((2, 3, 16, 16), (8, 3, 3, 3), 1, 1, 1),
    "strided": ((3, 16, 15, 13), (20, 16, 3, 3), 2, 1, 1),
    "one_by_one": ((2, 24, 14, 14), (40, 24, 1, 1), 1, 0, 1),
    "small_images": ((9, 8, 3, 3), (16, 8, 3, 3), 1, 1, 1),
    "wide": ((1, 64, 6, 6), (512, 64, 3, 3), 1, 1, 1),
    "groups": ((2, 16, 9, 9), (32, 8, 3, 3), 1, 1, 2),
    "large": ((2, 16, 56, 56), (64, 16, 3, 3), 1, 1, 1),
}


def made(size, dtype, layout):
    """A convolution, a residual, and a factor of each channel."""
    torch.manual_seed(0)
    shape, weight, stride, padding, groups = SIZES[size]
    x = torch.randn(shape, dtype=dtype).contiguous(memory_format=FORMATS[layout])
    w, b = torch.randn(weight, dtype=dtype), torch.randn(weight[0], dtype=dtype)

    def conv(bias=b):
        return F.conv2d(x, w, bias, stride, padding, groups=groups)

    return conv, torch.randn_like(conv()), torch.randn(weight[0], 1, 1, dtype=dtype)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_bias_scale_residual_activation(size, dtype, layout):
    conv, r, scale = made(size, dtype, layout)
    check(lambda: [F.relu(conv())], count=1)
    check(lambda: [F.relu(conv(None) * scale + r)], count=1)
    check(lambda: [F.silu(conv()) * r, conv()], count=1)


def test_other_orders_and_sizes():
    conv, r, _ = made("plain", torch.float32, "channels_last")
    other = r.contiguous()
    assert other.stride() != r.stride()
    check(lambda: [conv() + other], count=1)  # what is read may lie in another order
    check(lambda: [conv()[:, 1:].relu()], count=0)
    check(lambda: [conv().mul(r[:, :1])], count=1)

    x, w = torch.randn(4, 6, 50), torch.randn(10, 6, 5)
    check(lambda: [F.conv1d(x, w).tanh()], count=1)
    check(lambda: [F.conv1d(x[0], w, padding="same").tanh()], count=1)
    depthwise = torch.randn(6, 1, 3, 3)
    images = torch.randn(2, 6, 9, 9).contiguous(memory_format=torch.channels_last)
    check(lambda: [F.conv2d(images, depthwise, groups=6).relu()], count=1)  # behind its kernel
    volume, deep = torch.randn(1, 2, 5, 6, 7), torch.randn(3, 2, 2, 2, 2)
    check(lambda: [F.conv3d(volume, deep).relu()], count=0)


def test_a_residual_block():
    torch.manual_seed(0)
    first, last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
    x = torch.randn(2, 8, 20, 20)

    def step():
        for p in (*first.parameters(), *last.parameters()):
            p.grad = None
        y = F.relu(last(F.relu(first(x))) + x)
        y.square().mean().backward()
        return [y, first.weight.grad, first.bias.grad]

    f = check(step, count=2)
    off = compiled(step)
    off.region.fuses_epilogues = False
    assert all(same(a, b) for a, b in zip(off(), f(), strict=True)) and off.explain().epilogues == 0


# ---- batch norm --------------------------------------------------------------------------------------------


def normed(dtype, layout, shape, train):
    """relu(batch_norm(conv(x)) + r) with its gradients and running statistics, and one without a residual."""
    torch.manual_seed(0)
    channels = shape[1]
    conv, bn = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
    for t in (bn.weight.data, bn.bias.data, bn.running_mean):
        t.normal_()
    bn.running_var.uniform_(0.5, 2)
    conv, bn = conv.to(dtype), bn.train(train).to(dtype)
    statistics = [t.clone() for t in bn.buffers()]
    x, r = (torch.randn(shape, dtype=dtype).contiguous(memory_format=FORMATS[layout]) for _ in range(2))
    parameters = [*conv.parameters(), *bn.parameters()]

    def step():
        for t, start in zip(bn.buffers(), statistics, strict=True):
            t.copy_(start)
        for p in parameters:
            p.grad = None
        y = F.relu(bn(conv(x)) + r)
        y.square().mean().backward()
        with torch.no_grad():
            z = F.relu_(bn(conv(x)))
        out = [y, z, *(p.grad for p in parameters), *(t.clone() for t in bn.buffers())]
        return [t.float() if t.dtype == torch.bfloat16 else t for t in out]  # NumPy has no bfloat16

    return step


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 8, 14, 14), (9, 33, 3, 3), (4, 80, 7, 7)])
def test_batch_norm(shape, dtype, layout, train):
    # In training the statistics are of all of the convolution's result; epilogues are of wider dtypes.
    made = check(normed(dtype, layout, shape, train), count=0 if train or dtype == torch.bfloat16 else 2)
    text = made.explain().programs[0]
    assert "op batch_norm" not in text and text.count("add_scaled") == 2
    fused = [part for part in text.split("fused {")[1:] if "add_scaled" in part.split("}")[0]]
    assert len(fused) == 2 and all("relu" in part.split("}")[0] for part in fused)


def test_batch_norm_without_weights_and_of_other_dims():
    torch.manual_seed(0)
    mean, var = torch.randn(6), torch.rand(6) + 0.5
    half = [t.bfloat16() for t in (mean, var)]
    for shape in ((5, 6), (3, 6, 11), (2, 6, 3, 4, 5), (0, 6, 4, 4)):
        x = torch.randn(shape)
        check(
            lambda x=x: [F.batch_norm(x, mean, var).relu(), F.batch_norm(x, *half, weight=half[0])], count=0
        )
    w, x = torch.randn(6, 3, 3, 3), torch.randn(2, 3, 9, 9)
    check(lambda: [F.silu(F.batch_norm(F.conv2d(x, w), mean, var, None, mean)) * 2], count=1)
    check(lambda: [F.batch_norm(F.conv2d(x, w), None, None, training=True).relu()], count=0)


# ---- the pass and what verify() refuses --------------------------------------------------------------------

NHWC = "[2, 3, 2, 2] strides [12, 1, 6, 3]"
JOINED = f"""
    %0: 96 bytes in
    %1: 96 bytes in
    %3: 96 bytes out
    fused {{
    %2{NHWC} = op conv2d(%0[2, 3, 2, 2], %1[3, 3, 1, 1])
    %3{NHWC} = add(%2{NHWC}, %0[2, 3, 2, 2])
    }}
    """


def test_the_pass():
    recorded = JOINED.replace("fused {\n", "").replace("}\n", "")
    program = Program.parse(lines(recorded))
    program.run_pass("fuse_epilogues", least_epilogue_bytes=96)
    assert program.text() == lines(JOINED)
    for new in (f"%2{NHWC}".replace("%2", "%3").replace(" strides [12, 1, 6, 3]", ""), "op conv3d"):
        old = f"%3{NHWC}" if new.startswith("%3") else "op conv2d"
        program = Program.parse(lines(recorded.replace(old, new)))
        program.run_pass("fuse_epilogues", least_epilogue_bytes=96)
        assert "fused {" not in program.text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f"%3{NHWC} = add", "%3[2, 3, 2, 2] = add", "writes other elements"),
        (f"add(%2{NHWC}", "add(%2[2, 3, 2, 2]", "sees the product before it in another"),
        (f"%2{NHWC} = op", "%2[2, 3, 2, 2] strides [12, 1, 3, 6] = op", "writes other elements"),
        (f"%2{NHWC} = op", "%2[2, 3, 2, 2] strides [12, 1, 6, 2] = op", "writes other elements"),
    ],
)
def test_planted_bugs(old, new, message):
    assert Program.parse(lines(JOINED)).text() == lines(JOINED)
    assert JOINED.count(old) == 1
    with pytest.raises(ValueError, match=r"graph: line \d+: instruction 1 \(add\) " + message):
        Program.parse(lines(JOINED.replace(old, new)))
