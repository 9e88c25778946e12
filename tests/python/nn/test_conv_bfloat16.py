"""Convolutions of bfloat16, forward and backward, in both memory formats, against those of float32 on the
same values: they go through AMX tiles where the processor has them, else through vectors (WARPTAPE_AMX=0)."""

import random

import pytest
import warptape as torch
import warptape.nn.functional as F


def draw(seed):
    """Arguments of one convolution: sizes that tiles of 16 and 32 cut, groups, strides, padding, dilation."""
    rng = random.Random(seed)
    while True:
        groups = rng.choice([1, 1, 1, 2, 4])
        channels, outputs = (
            groups * rng.choice([1, 3, 8, 16, 24, 33]),
            groups * rng.choice([1, 4, 16, 17, 40]),
        )
        kernel = rng.choice([1, 2, 3, 3, 5]), rng.choice([1, 3, 3, 7])
        size = rng.choice([7, 14, 17, 33]), rng.choice([7, 9, 30])
        how = {
            "stride": rng.choice([1, 1, 2]),
            "padding": rng.choice([0, 1, 2]),
            "dilation": rng.choice([1, 1, 2]),
        }
        if all((k - 1) * how["dilation"] < n + 2 * how["padding"] for k, n in zip(kernel, size)):
            break
    torch.manual_seed(seed)
    x = torch.randn(rng.choice([1, 2, 5]), channels, *size).bfloat16()
    weight = (torch.randn(outputs, channels // groups, *kernel) * 0.2).bfloat16()
    bias = torch.randn(outputs).bfloat16() if rng.random() < 0.5 else None
    if rng.random() < 0.5:
        x = x.contiguous(memory_format=torch.channels_last)
        weight = weight.contiguous(memory_format=torch.channels_last)
    return x, weight, bias, how | {"groups": groups}


def convolve(x, weight, bias, how, dtype):
    leaves = [None if t is None else t.detach().to(dtype).requires_grad_() for t in (x, weight, bias)]
    y = F.conv2d(*leaves, **how)
    torch.manual_seed(0)
    y.backward(torch.randn(*y.shape).bfloat16().to(dtype))
    return [y.detach(), *(t.grad for t in leaves if t is not None)]


@pytest.mark.parametrize("seed", range(60))
def test_as_float32(seed):
    x, weight, bias, how = draw(seed)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(convolve(x, weight, bias, how, torch.bfloat16))
    finally:
        torch.set_num_threads(before)
    for one, two, three, exact in zip(*results, convolve(x, weight, bias, how, torch.float32)):
        assert torch.equal(one, two) and torch.equal(one, three)
        torch.testing.assert_close(one.float(), exact, rtol=2**-8, atol=1e-3 * float(exact.abs().max()))
